"""The loss on held-out examples under teacher forcing: means of (sum, weight) pairs over all examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from s2sjax.data.batching.batch_plan import Plan, joined_buckets
from s2sjax.data.batching.columns import AnyColumns, Batch, Buckets, first_bucket
from s2sjax.evaluate.prediction.batched_apply import dispatched, placed, replicated, row_sharding, spare_tokens

Tree = Any
Sums = dict[str, tuple[Any, Any]]
EvaluationLoss = Callable[[Tree, Batch], Sums]
"""pure function loss(params, batch) -> {"loss": (sum, weight), ...}, without dropout"""


class DevLoss:
    """Computes dev_loss(params) -> {"dev_loss": 1.2, ...}, compiled once per bucket and reused between calls.

    With a mesh, the rows of a batch are split over all devices, and every process gets the result. As in training,
    rows that are longer than the last bucket are left out.
    """

    def __init__(
        self,
        loss: EvaluationLoss,
        columns: AnyColumns,
        buckets: Buckets,
        tokens: int,
        mesh: Mesh | None = None,
        perplexity: bool = False,
    ):
        self._columns, self._buckets, self._tokens, self._perplexity = columns, buckets, tokens, perplexity
        self._sharding, self._shards = row_sharding(mesh)
        self.left_out = int(np.sum(first_bucket(columns.lengths, buckets) < 0))
        """number of rows that are longer than the last bucket"""
        self._plan: Plan | None = None
        self._compiled = jax.jit(loss, out_shardings=replicated(self._sharding))

    def __call__(self, params: Tree) -> dict[str, float]:
        if self.left_out == len(self._columns.lengths):
            return {}
        self._plan = self._plan or self._make_plan(params)
        found = [self._sums(self._plan, params, step) for step in range(self._plan.steps_per_epoch)]  # each row once
        totals: dict[str, np.ndarray] = {}
        for sums in jax.device_get(found):
            for name, pair in sums.items():
                totals[name] = totals.get(name, 0.0) + np.asarray(pair, np.float64)
        means = {f"dev_{name}": float(total / weight) for name, (total, weight) in totals.items() if weight}
        if self._perplexity and "dev_loss" in means:
            loss = means["dev_loss"]
            means = {"dev_loss": loss, "dev_perplexity": math.exp(loss) if loss < 700 else math.inf} | means
        return means

    def _make_plan(self, params: Tree) -> Plan:
        buckets = joined_buckets(self._columns.lengths, self._buckets, spare_tokens(params))
        return Plan(self._columns.lengths, buckets, self._tokens, 0, self._shards)

    def _sums(self, plan: Plan, params: Tree, step: int) -> Sums:
        bucket, rows = plan.at(step)
        batch = self._columns.batch(rows, plan.buckets[bucket])
        placed_batch = {name: placed(array, self._sharding) for name, array in batch.items()}
        return dispatched(self._compiled(params, placed_batch))
