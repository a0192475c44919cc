"""Forecasts of a series: a recurrent network reads a window and predicts a later value.

By default, dev and test are later than all of training, and the persistence forecast (the last value) is also scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.config import require, settings
from s2sjax.data import assets
from s2sjax.data.batching.columns import Bucket, Columns, Ragged
from s2sjax.data.data_notes import Sides
from s2sjax.errors import UserError
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult
from s2sjax.evaluate.prediction.batched_apply import Batched
from s2sjax.evaluate.prediction.heldout_loss import EvaluationLoss
from s2sjax.tasks.regression.regressor import Regressor, squared_error
from s2sjax.tasks.regression.settings import SeriesEvaluate, SeriesModel, Windows
from s2sjax.tasks.task import Assets, Predictor, Task, abstract
from s2sjax.training.train_state import Loss


@settings
class Regression(config.Experiment):
    """An experiment that predicts values of a series."""

    _: KW_ONLY
    data: Windows = Windows()
    model: SeriesModel = SeriesModel()
    evaluate: SeriesEvaluate = SeriesEvaluate()

    init_fields: ClassVar = ("model", "data.scale")
    free_fields: ClassVar = ("data.series.file", "evaluate.dev_examples", "evaluate.samples", "evaluate.batch_size")

    def __post_init__(self):
        self.check_name()
        self.refuse_train("a regression", "label_smoothing", "r_drop", "scheduled_sampling", "softmax")

    def task(self) -> RegressionTask:
        return RegressionTask(self)


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

    higher_is_better = False
    json_assets: ClassVar = {"scale": Scale}
    experiment: Regression

    # ------------------------------------------------------------------------------------ data

    def has(self, split: str) -> bool:
        return split == "train" or getattr(self.experiment.data, f"{split}_percent") > 0

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
        return assets.sha256(np.append(window.values, window.target).tobytes() for window in data)

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

    columns_use_seed = False

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
        module = self.module
        return lambda params, batch, key, step: squared_error(module, params, batch)

    def evaluation_loss(self) -> EvaluationLoss:
        return partial(squared_error, self.module)

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        return abstract(
            values=((rows, *bucket, 1), np.float32), values_lengths=((rows,), np.int32), target=((rows, 1), np.float32)
        )

    # ----------------------------------------------------------------------------- predictions

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        module, e, scale = self.module, self.experiment, self.assets["scale"]
        require(not others, "a regression has no ensembles: name one run")
        apply = lambda params, batch: module.apply({"params": params}, batch["values"], batch["values_lengths"])
        batched = Batched(apply, e.data.buckets, e.evaluate.batch_size, mesh, longest=e.data.steps)

        def predict(params: Any, examples: Sequence[Window]) -> list[Estimate]:
            found = batched(params, self.columns(examples))
            return [Estimate(scale.invert(float(scaled)), float(scaled)) for (scaled,) in found]

        return predict

    def metrics(self, examples: Sequence[Window], outputs: Sequence[Estimate]) -> dict[str, MetricResult]:
        scale = self.assets["scale"]
        correct = scale.apply([window.target for window in examples])
        errors = np.array([output.scaled for output in outputs]) - correct
        persistence = (scale.apply([window.values[-1] for window in examples]) - correct) ** 2
        values = {"mse": errors**2, "mae": np.abs(errors), "persistence": persistence}
        signature = f"scale:{scale.low:.6g}..{scale.high:.6g}"
        return {
            name: MetricResult(
                name, float(values[name].mean()), False, signature, len(examples), LABELS[name], "{:.4g}",
                [(float(error), 1.0) for error in values[name]],
            )
            for name in self.experiment.evaluate.metrics
        }  # fmt: skip

    def record(self, example: Window, output: Estimate) -> dict[str, Any]:
        source = " ".join(f"{value:.17g}" for value in example.values)
        return {"source": source, "hypothesis": f"{output.value:.17g}", "references": [f"{example.target:.17g}"]}

    def show(self, example: Window, output: Estimate) -> str:
        right = self.assets["scale"].apply(example.target)
        scaled = f"scaled {output.scaled:.6f} ({right:.6f})"
        return f"... {example.values[-1]:.6g}  ->  {output}  ({example.target:.6g}), {scaled}"
