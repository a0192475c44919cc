"""Evaluation of the dev examples during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from s2sjax.evaluate.prediction.heldout_loss import DevLoss
from s2sjax.evaluate.prediction.progress_listener import counting
from s2sjax.runs.evaluations import score
from s2sjax.tasks.task import Predictor, Task
from s2sjax.training.loop import Scores
from s2sjax.training.run_log import Log
from s2sjax.training.train_state import TrainState, evaluation_params


class DevEvaluation:
    """Predicts the dev examples with the current parameters, scores them, shows a few, and computes their loss."""

    def __init__(
        self, task: Task, dev: Sequence[Any], predict: Predictor, log: Log, *, mesh: jax.sharding.Mesh | None = None
    ):
        self.task, self.predict, self.log = task, predict, log
        self.dev = task.dev_sample(dev, task.experiment.evaluate.dev_examples)
        self.loss = self._loss(mesh)

    def _loss(self, mesh: jax.sharding.Mesh | None) -> DevLoss | None:
        loss, data = self.task.evaluation_loss(), self.task.experiment.data
        if loss is None:
            return None
        columns = self.task.dev_columns(self.dev)
        found = DevLoss(loss, columns, data.buckets, data.batch_tokens, mesh, self.task.has_perplexity)
        if found.left_out:
            self.log.print(
                f"{found.left_out:,} of {len(columns.lengths):,} dev {self.task.noun}s are longer than the last of "
                f"data.buckets, {tuple(data.buckets[-1])}: dev_loss excludes them"
            )
        return found

    def __call__(self, state: TrainState, step: int) -> Scores:
        params = self.task.merged(evaluation_params(state))
        with counting(self.log.count):
            outputs = self.predict(params, self.dev)
        results, groups = score(self.task, self.dev, outputs)
        some = zip(self.dev[: self.task.experiment.evaluate.samples], outputs)
        self.log.samples(step, [f"  {self.task.show(example, output)}" for example, output in some])
        first, *others = results.values()
        details = {other.name: other.value for other in others} | (self.loss(params) if self.loss else {})
        details |= {f"{first.name} {label}": part[first.name].value for label, part in groups.items()}
        return Scores(first.name, first.value, first.higher_is_better, details)
