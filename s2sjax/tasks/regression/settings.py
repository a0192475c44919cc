"""Settings of regression: the series, the windows, the model and its evaluation."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, field
from typing import Literal

import numpy as np

from s2sjax import config
from s2sjax.config import at_least, require, settings
from s2sjax.config.models.recurrent_settings import CellName
from s2sjax.data.corpora import frame_reader
from s2sjax.data.corpora.text_files import read_column
from s2sjax.errors import UserError


class Series:
    """A source of numbers. Your own series inherits from this class and defines `values`."""

    def values(self) -> np.ndarray:
        """The numbers, float64 [length]."""
        raise UserError(f"{type(self).__name__} defines no values(): return the numbers of the series from it")

    def where(self, index: int) -> str:
        """The name of the value with this index, for errors."""
        return f"value {index + 1:,} of {type(self).__name__}"


@settings
class Fibonacci(Series):
    """1, 1, 2, 3, 5, 8, ..."""

    length: int = 1200
    """length of the series; float64 holds the first 1476 numbers"""

    def __post_init__(self):
        require(3 <= self.length <= 1476, f"data.series.length is {self.length}: it must be from 3 to 1476")

    def values(self) -> np.ndarray:
        found = [1, 1]
        while len(found) < self.length:
            found.append(found[-1] + found[-2])
        return np.array([float(number) for number in found])


@settings
class Waves(Series):
    """sin(2 pi t / 24) + sin(2 pi t / 31) / 2: two waves, for first experiments."""

    length: int = 1200
    """length of the series"""

    def __post_init__(self):
        require(self.length >= 3, f"data.series.length is {self.length}: it must be at least 3")

    def values(self) -> np.ndarray:
        t = 2 * np.pi * np.arange(self.length)
        return np.sin(t / 24) + np.sin(t / 31) / 2


@settings
class CsvSeries(Series):
    """A column of a CSV file whose first line names the columns."""

    file: config.AnyPath = ""
    """path of the file, relative to the experiment file"""
    column: str = ""
    """name of the column"""
    origin: str = ""
    """source of the data, for the error if the file is missing"""

    def __post_init__(self):
        for name in ("file", "column"):
            require(getattr(self, name) != "", f"data.series.{name} is empty: set it")

    def values(self) -> np.ndarray:
        return np.array(read_column(self.file, self.column, "data.series.file", self.origin))

    def where(self, index: int) -> str:
        return f"value {index + 1:,} of column {self.column!r} of {config.relative_path(self.file)}"


@settings
class FrameSeries(Series):
    """A column of a frame, or of Parquet or JSON lines files: FrameSeries(Frame(df, source="degrees"))."""

    frame: config.Tabular = field(default_factory=config.Frame)
    """table whose rows of `train` are the series; `source` names the column"""

    def __post_init__(self):
        table = self.frame
        require(table.has("train"), "data.series.frame.train is empty: give the rows of the series")
        more = table.has("dev") or table.has("test") or table.target != ""
        require(not more, "data.series.frame has only train and source: data.dev_percent and test_percent split it")

    def values(self) -> np.ndarray:
        found = []
        for row in frame_reader.rows(self.frame, "train"):
            number = isinstance(row.source, int | float) and not isinstance(row.source, bool)
            wrong = f"{row.where}: the column {self.frame.source!r} is {row.source!r:.60}: it must be a number"
            require(number, wrong)
            try:
                found.append(float(row.source))
            except OverflowError:  # the error for numbers that are not finite names it
                found.append(math.inf)
        return np.array(found)

    def where(self, index: int) -> str:
        return f"value {index + 1:,} of column {self.frame.source!r}"


@settings
class Windows:
    """Windows of a series: every run of `steps` values is an example, whose target is the next value or a later one."""

    series: Series = field(default_factory=Waves)
    """source of the numbers"""
    steps: int = 20
    """number of values that are read"""
    horizon: int = 1
    """distance of the target from the last value read, in steps"""
    dev_percent: float = 10.0
    """percentage of the examples in dev"""
    test_percent: float = 20.0
    """percentage of the examples in test"""
    split: Literal["gap", "time", "spread"] = "gap"
    """order of the splits; gap: train, dev, then test, with a window left out between them, so that no value is in two
    splits; time: the same without the window; spread: dev and test are spread evenly over the series, so that training
    reads the values that they predict"""
    scale: Literal["range", "deviation"] = "deviation"
    """scale of the training values: from 0 to 1, or with mean 0 and standard deviation 1"""
    batch_tokens: int = 640
    """budget of a batch: rows x steps"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""

    @property
    def buckets(self) -> tuple[tuple[int], ...]:
        return ((self.steps,),)

    def __post_init__(self):
        at_least(1, self, "data", "steps", "batch_tokens", "horizon")
        at_least(0, self, "data", "prefetch", "dev_percent", "test_percent")
        total = self.dev_percent + self.test_percent
        require(total < 100, f"data: dev_percent + test_percent is {total}: nothing is left to train on")


@settings
class SeriesModel:
    """A recurrent cell and a dense layer of its last state, or of attention over all states."""

    width: int = 32
    """width of the state"""
    cell: CellName = "gru"
    """recurrent cell: see s2sjax/core/recurrence/cells.py"""
    attention: bool = False
    """whether to pool all states by attention instead of taking the last"""
    output: Literal["tanh", "linear"] = "linear"
    """output function of the dense layer: tanh suits values scaled to [0, 1]"""
    residual: bool = True
    """whether to predict the difference from the last value"""

    def __post_init__(self):
        at_least(1, self, "model", "width")


@settings
class SeriesEvaluate(config.PredictionSettings):
    """Evaluation of forecasts."""

    metrics: tuple[Literal["mse", "mae", "persistence"], ...] = ("mse", "persistence")
    """mean squared or absolute error of scaled values; persistence: the mean squared error of the last value as
    forecast, which a model should beat. The first one selects the best checkpoint"""
    _: KW_ONLY
    batch_size: int = 256
