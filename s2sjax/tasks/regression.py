"""Forecasts of a series: a recurrent network reads a window and predicts a later value.

By default, dev and test are later than all of training, and the persistence forecast (the last value) is also scored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config, layers, models
from s2sjax.config import at_least, require, settings
from s2sjax.config.models import CellName
from s2sjax.core.pooling import attention_pool
from s2sjax.data import assets
from s2sjax.data.columns import Bucket, Columns, Ragged
from s2sjax.data.remarks import Sides
from s2sjax.data.tables import read_column
from s2sjax.errors import UserError
from s2sjax.evaluate.batched import Batched
from s2sjax.evaluate.dev_loss import EvaluationLoss
from s2sjax.evaluate.metrics import Result
from s2sjax.models.frontends import Frames
from s2sjax.tasks.task import Assets, Predictor, Task, abstract
from s2sjax.training.state import Loss

# ------------------------------------------------------------------------------------- settings


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

    file: config.FilePath = ""
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
    tokens: int = 640
    """budget of a batch: rows x steps"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""

    @property
    def buckets(self) -> tuple[tuple[int], ...]:
        return ((self.steps,),)

    def __post_init__(self):
        at_least(1, self, "data", "steps", "tokens", "horizon")
        at_least(0, self, "data", "prefetch", "dev_percent", "test_percent")
        total = self.dev_percent + self.test_percent
        require(total < 100, f"data: dev_percent + test_percent is {total}: nothing is left to train on")


@settings
class SeriesModel:
    """A recurrent cell and a dense layer of its last state, or of attention over all states."""

    width: int = 32
    """width of the state"""
    cell: CellName = "gru"
    """recurrent cell: see s2sjax/core/cells.py"""
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
    rows: int = 256


@settings
class Regression(config.Experiment):
    """An experiment that predicts values of a series."""

    _: KW_ONLY
    data: Windows = Windows()
    model: SeriesModel = SeriesModel()
    evaluate: SeriesEvaluate = SeriesEvaluate()

    free_fields: ClassVar = ("data.series.file", "evaluate.lines", "evaluate.samples", "evaluate.rows")

    def __post_init__(self):
        self.check_name()
        self.refuse_train("a regression", "label_smoothing", "r_drop", "scheduled_sampling", "softmax")

    def task(self) -> RegressionTask:
        return RegressionTask(self)


# ---------------------------------------------------------------------------------------- model


class Regressor(nn.Module):
    """Maps values [B, S, 1] and lengths [B] to W pooled + b [B, 1] or its tanh; `residual` adds the last value."""

    config: SeriesModel
    steps: int
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        c = self.config
        self.frontend = Frames(1, dtype=self.dtype)
        self.stack = layers.Recurrent(
            c.cell, c.width, layers=1, inputs=1, dtype=self.dtype, remat_policy=self.remat_policy
        )
        if c.attention:
            self.attention = layers.Weights({"kernel": (c.width,), "bias": (self.steps,)}, self.dtype)
        self.output = layers.Dense(c.width, 1, self.dtype)

    def __call__(self, values: Array, lengths: Array) -> Array:
        xs, mask = self.frontend(values, lengths)
        states, final = self.stack(xs, mask)
        pooled = attention_pool(self.attention(), states, mask)[0] if self.config.attention else final[-1][0]
        found = self.output(pooled).astype(jnp.float32)
        found = jnp.tanh(found) if self.config.output == "tanh" else found
        last = jnp.maximum(lengths - 1, 0)[:, None, None]
        return found + jnp.take_along_axis(values, last, axis=1)[:, 0] if self.config.residual else found


def squared_error(module: Regressor, params: Any, batch: dict[str, Array]) -> dict[str, tuple[Array, Array]]:
    """The squared error of a batch: its sum, and the number of windows."""
    predicted: Any = module.apply({"params": params}, batch["values"], batch["values_lengths"])
    real = (batch["values_lengths"] > 0).astype(jnp.float32)  # [B]
    return {"loss": (jnp.sum(real * jnp.square(predicted - batch["target"])[:, 0]), jnp.sum(real))}


# ----------------------------------------------------------------------------------------- task


LARGEST = 1e15
"""largest scaled value, for which sums of squares stay far below the largest float32"""
LABELS = {"mse": "MSE", "mae": "MAE", "persistence": "MSE of persistence"}
"""printed names of the metrics"""


class Window(NamedTuple):
    values: np.ndarray  # float64 [steps]
    target: float


class Estimate(NamedTuple):
    value: float
    scaled: float

    def __str__(self) -> str:
        return f"{self.value:.6g}"


class Scale(NamedTuple):
    """(x - low) / (high - low); low and high are the extreme values, or the mean and the mean plus one deviation."""

    low: float
    high: float

    @property
    def fingerprint(self) -> str:
        return assets.fingerprint(self)

    def save(self, folder: Path, name: str) -> None:
        assets.save_json(folder, name, self._asdict())

    def apply(self, values: Any) -> Any:
        return (np.asarray(values) - self.low) / ((self.high - self.low) or 1.0)

    def invert(self, scaled: float) -> float:
        return self.low + scaled * ((self.high - self.low) or 1.0)


class RegressionTask(Task):
    """Windows of a series to a later value. Asset: the `scale` of the values."""

    experiment: Regression

    # ------------------------------------------------------------------------------------ data

    def has(self, split: str) -> bool:
        return split == "train" or getattr(self.experiment.data, f"{split}_percent") > 0

    def read(self) -> list[Window]:
        return self.examples("train")

    def examples(self, split: str) -> list[Window]:
        data, values = self.experiment.data, self._values()
        ahead = data.steps + data.horizon - 1  # offset of the target in a window
        chosen = np.flatnonzero(self._splits(len(values) - ahead) == split)
        fewer = "lower data.steps, data.dev_percent or data.test_percent"
        remedy = fewer if split == "train" else f"raise data.{split}_percent"
        require(len(chosen) > 0, f"there are no {split} examples: {remedy}, or give a longer series")
        return [Window(values[i : i + data.steps], float(values[i + ahead])) for i in chosen]

    def _values(self) -> np.ndarray:
        data = self.experiment.data
        values, least = np.asarray(data.series.values(), np.float64), data.steps + data.horizon
        has = f"the series has {len(values)} values"
        require(len(values) >= least, f"{has}: data.steps {data.steps} and data.horizon {data.horizon} need {least}")
        for index in np.flatnonzero(~np.isfinite(values))[:1]:
            raise UserError(f"{data.series.where(index)} is {values[index]}: give finite numbers, or leave it out")
        return values

    def _splits(self, count: int) -> np.ndarray:
        """The split of each window [count], or "gap"."""
        data = self.experiment.data
        test, dev = data.test_percent / 100, (data.test_percent + data.dev_percent) / 100
        ahead = data.steps + data.horizon - 1
        if data.split == "spread":
            # Multiples of the golden ratio modulo 1 are even, and do not change when the series grows.
            place = np.arange(count) * (5**0.5 - 1) / 2 % 1
            return np.where(place < test, "test", np.where(place < dev, "dev", "train"))
        total = count + ahead
        place = 1 - (np.arange(ahead, total) + 0.5) / total  # the share of values after the target
        tests, held_out = int((place < test).sum()), int((place < dev).sum())
        gap = ahead if data.split == "gap" else 0
        first, second = gap * (tests > 0), gap * (held_out > tests)
        ends = np.cumsum([tests, first, held_out - tests, second])  # counted from the last window
        later = np.arange(count)[::-1]
        return np.array(["test", "gap", "dev", "gap", "train"])[np.searchsorted(ends, later, side="right")]

    def example_of(self, line: str, where: str) -> Window:
        steps = self.experiment.data.steps
        try:
            values = np.array([float(number) for number in line.split()])
        except ValueError as error:
            raise UserError(f"{where}: {error}: write {steps} numbers, separated by blanks") from None
        require(bool(np.isfinite(values).all()), f"{where} has a number that is not finite: correct it")
        require(len(values) == steps, f"{where} has {len(values)} numbers: write {steps}, separated by blanks")
        if "scale" in self.assets:
            self._check_size(values, lambda index: f"{where}, number {index + 1}")
        return Window(values, np.nan)

    def blank_example(self) -> Window:
        return Window(np.zeros(self.experiment.data.steps), np.nan)

    def _check_size(self, values: np.ndarray, where: Callable[[int], str]) -> None:
        """Raises if values overflow when they are scaled and squared in float32."""
        scale = self.assets["scale"]
        with np.errstate(over="ignore", invalid="ignore"):
            large = np.flatnonzero(~(np.abs(scale.apply(values)) < LARGEST))
        if len(large):
            least, most = scale.low, scale.high
            raise UserError(
                f"{where(int(large[0]))} is {values[large[0]]:.6g}, too far from the training values (scaled by "
                f"{least:.6g} to {most:.6g}) for float32: use logarithms or differences, or leave it out"
            )

    def check_examples(self, split: str, examples: Sequence[Window]) -> None:
        self._check_size(self._values(), self.experiment.data.series.where)

    def fingerprint(self, data: Sequence[Window]) -> str:
        digest = hashlib.sha256()
        for window in data:
            digest.update(np.append(window.values, window.target).tobytes())
        return digest.hexdigest()

    def remarks(self, data: Sequence[Window]) -> list[str]:
        options, total = self.experiment.data, len(self._values())
        ahead = options.steps + options.horizon - 1
        splits, read = self._splits(total - ahead), np.zeros(total, bool)
        for first in np.flatnonzero(splits == "train"):
            read[first : first + options.steps] = True
        predicted = read[ahead:][(splits == "dev") | (splits == "test")]
        if not predicted.any():
            return []
        leak = f"training reads {predicted.sum():,} of the {len(predicted):,} values that dev and test predict"
        return [f"{leak}: set data.split gap to measure forecasts"]

    def sides(self, split: str, examples: Sequence[Window]) -> Iterable[Sides]:
        return (Sides(window.values.tobytes(), (np.float64(window.target).tobytes(),)) for window in examples)

    def learn_assets(self, data: Sequence[Window]) -> Assets:
        options = self.experiment.data
        values = np.concatenate([[*window.values, window.target] for window in data])
        if options.split != "spread":  # count each value once
            values = self._values()[: len(data) + options.steps + options.horizon - 1]
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = float(values.min()), float(values.max())
            if options.scale == "deviation":
                low, high = float(values.mean()), float(values.mean() + values.std())
        if not np.isfinite([low, high, high - low]).all():
            series = self._values()
            largest = int(np.argmax(np.abs(series)))
            raise UserError(
                f"{options.series.where(largest)} is {series[largest]:.6g}: sums or squares of such numbers "
                "overflow: divide the series by a power of ten"
            )
        return {"scale": Scale(low, high)}

    def load_assets(self, folder: Path, names: Sequence[str]) -> Assets:
        return {"scale": assets.load_json(Scale, folder, "scale")}

    def columns(self, data: Sequence[Window]) -> Columns:
        scale = self.assets["scale"]
        values = Ragged.of_frames([scale.apply(window.values)[:, None] for window in data])
        target = np.array([[scale.apply(window.target)] for window in data], np.float32)
        return Columns({"values": values}, {"target": target}, np.arange(len(data), dtype=np.int32), (len(data),))

    # ----------------------------------------------------------------------------------- model

    @property
    def module(self) -> Regressor:
        e = self.experiment
        return Regressor(e.model, e.data.steps, jnp.dtype(e.train.dtype), e.train.remat)

    def init(self, key: Array) -> Any:
        return self.module.init(key, jnp.zeros((1, self.experiment.data.steps, 1)), jnp.ones(1, jnp.int32))["params"]

    def loss(self, columns: Any = None) -> Loss:
        """The squared error."""
        module = self.module

        def loss(params: Any, batch: dict[str, Array], key: Array, step: Array) -> dict[str, tuple[Array, Array]]:
            return squared_error(module, params, batch)

        return loss

    def evaluation_loss(self) -> EvaluationLoss:
        return partial(squared_error, self.module)

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        return abstract(
            values=((rows, *bucket, 1), np.float32), values_lengths=((rows,), np.int32), target=((rows, 1), np.float32)
        )

    def check_mesh(self, mesh: Mapping[str, int]) -> None:
        models.check_scan_mesh("a recurrent network", mesh)

    # ----------------------------------------------------------------------------- predictions

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        module, e, scale = self.module, self.experiment, self.assets["scale"]
        require(not others, "a regression has no ensembles: name one run")
        apply = lambda params, batch: module.apply({"params": params}, batch["values"], batch["values_lengths"])
        batched = Batched(apply, e.data.buckets, e.evaluate.rows, mesh, e.data.steps)  # all windows have one length

        def predict(params: Any, examples: Sequence[Window]) -> list[Estimate]:
            found = batched(params, self.columns(examples))
            return [Estimate(scale.invert(float(scaled)), float(scaled)) for (scaled,) in found]

        return predict

    def metrics(self, examples: Sequence[Window], outputs: Sequence[Estimate]) -> dict[str, Result]:
        scale = self.assets["scale"]
        correct = scale.apply([window.target for window in examples])
        errors = np.array([output.scaled for output in outputs]) - correct
        persistence = (scale.apply([window.values[-1] for window in examples]) - correct) ** 2
        values = {"mse": errors**2, "mae": np.abs(errors), "persistence": persistence}
        signature = f"scale:{scale.low:.6g}..{scale.high:.6g}"
        return {
            name: Result(
                name, float(values[name].mean()), False, signature, len(examples), LABELS[name], "{:.4g}",
                [(float(error), 1.0) for error in values[name]],
            )
            for name in self.experiment.evaluate.metrics
        }  # fmt: skip

    @property
    def higher_is_better(self) -> bool:
        return False

    def record(self, example: Window, output: Estimate) -> dict[str, Any]:
        source = " ".join(f"{value:.17g}" for value in example.values)
        return {"source": source, "hypothesis": f"{output.value:.17g}", "references": [f"{example.target:.17g}"]}

    def show(self, example: Window, output: Estimate) -> str:
        right = self.assets["scale"].apply(example.target)
        scaled = f"scaled {output.scaled:.6f} ({right:.6f})"
        return f"... {example.values[-1]:.6g}  ->  {output}  ({example.target:.6g}), {scaled}"
