"""Applies a compiled function to all rows of a data set, each exactly once. Results are in the order of the rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from s2sjax.config import require
from s2sjax.core.backend import device
from s2sjax.data.batching.columns import AnyColumns, Batch, Bucket, Buckets, first_bucket
from s2sjax.evaluate.prediction.progress_listener import count

Tree = Any
COMPILATION = 10**11
"""number of operations that a CPU performs in the time it takes to compile one more program"""
DOUBLINGS = 2
"""number of times that `few_shapes` doubles the last bucket"""
_shapes: ContextVar[Literal["any", "few", "all"]] = ContextVar("shapes", default="any")


@contextlib.contextmanager
def few_shapes(all: bool = False) -> Iterator[None]:
    """Limits the shapes of the predictions made inside: the last bucket is doubled at most twice, and longer inputs
    raise a UserError.

    all: each call also runs the programs of all other shapes, on padding, so that later calls compile nothing.
    """
    token = _shapes.set("all" if all else "few")
    try:
        yield
    finally:
        _shapes.reset(token)


def shapes() -> Literal["any", "few", "all"]:
    """The current limit on shapes: see `few_shapes`."""
    return _shapes.get()


def spare_tokens(params: Tree) -> int:
    """The number of padding tokens that cost as much as compiling a program: two operations per weight and token."""
    return COMPILATION // (2 * max(sum(leaf.size for leaf in jax.tree.leaves(params)), 1))


def row_sharding(mesh: Mesh | None) -> tuple[NamedSharding | None, int]:
    """Returns the sharding of the rows of a batch over all devices, and the number of shards; (None, 1) without one.

    Devices of a tensor axis compute a row together. Those of a context axis do not: predictions need little memory.
    """
    if mesh is None or mesh.size == 1:
        return None, 1
    axes = tuple(name for name in ("fsdp", "data", "context") if name in mesh.shape)
    return NamedSharding(mesh, PartitionSpec(axes)), math.prod(mesh.shape[name] for name in axes)


def replicated(sharding: NamedSharding | None) -> NamedSharding | None:
    """The sharding of results that every process gets in full."""
    return sharding and NamedSharding(sharding.mesh, PartitionSpec())


def placed(array: np.ndarray, sharding: NamedSharding | None) -> np.ndarray | jax.Array:
    """Splits the rows of an array that every process has in full."""
    if sharding is None:
        return array
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def dispatched(results: Tree) -> Tree:
    """Waits for a program if several processes run on CPUs: concurrent programs may start their collectives in
    different orders, and would deadlock.
    """
    return jax.block_until_ready(results) if jax.process_count() > 1 and device.on_cpu() else results


class Batched:
    """Applies function(params, batch) -> tree of arrays [B, ...], compiled once per bucket and reused between calls.

    Rows that are longer than the last bucket get a bucket that is twice, four times, ... as long, with fewer rows per
    batch. No bucket is longer than `longest`, the number of positions that the model can address.

    With a mesh, the rows of a batch are split over all devices, and every process gets all results.
    """

    def __init__(
        self,
        function: Callable[[Tree, Batch], Tree],
        buckets: Buckets,
        rows: int,
        mesh: Mesh | None = None,
        longest: int | None = None,
    ):
        self.buckets, self.longest = buckets, longest
        self._sharding, self._shards = row_sharding(mesh)
        self.rows = -(-rows // self._shards) * self._shards
        self._compiled = jax.jit(function, out_shardings=replicated(self._sharding))

    def __call__(self, params: Tree, columns: AnyColumns) -> list[Tree]:
        """Returns one result for each row of the columns, in order."""
        buckets = self._buckets(columns.lengths)
        bucket = first_bucket(columns.lengths, buckets)
        found: list[Tree] = [None] * len(bucket)
        done = 0
        for number, widths in enumerate(buckets):
            members = np.flatnonzero(bucket == number)
            doubled = max(0, number + 1 - len(self.buckets))  # how many times the last bucket was doubled
            many = max(self.rows >> doubled, self._shards) // self._shards * self._shards
            if shapes() == "all":
                self._run(params, columns, np.full(many, -1), widths)
            for first in range(0, len(members), many):
                chosen = members[first : first + many]
                rows = np.full(many, -1)
                rows[: len(chosen)] = chosen
                results = self._run(params, columns, rows, widths)
                for place, row in enumerate(chosen):
                    found[row] = jax.tree.map(lambda leaf, at=place: leaf[at], results)
                done += len(chosen)
                count(done, len(bucket))
        return found

    def _run(self, params: Tree, columns: AnyColumns, rows: np.ndarray, widths: Bucket) -> Tree:
        batch = {name: placed(array, self._sharding) for name, array in columns.batch(rows, widths).items()}
        return jax.device_get(self._compiled(params, batch))

    def lower(self, params: Tree, batch: Tree) -> Any:
        """Lowers the program for arrays of these shapes, ready to be compiled."""
        place = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._sharding)
        return self._compiled.lower(params, jax.tree.map(place, batch))

    def _buckets(self, lengths: np.ndarray) -> list[Bucket]:
        """The buckets of the data, with the last one doubled until every row fits: test data may be longer."""
        buckets = [tuple(bucket) for bucket in self.buckets]
        most = len(buckets) + DOUBLINGS
        while len(lengths) and (shapes() == "all" or np.any(lengths.max(axis=0) > buckets[-1])):
            wider = tuple(min(2 * width, self.longest or 2 * width) for width in buckets[-1])
            if shapes() == "all" and (wider == buckets[-1] or len(buckets) == most):
                break
            require(wider != buckets[-1], f"an example has {lengths.max()} positions, the model reads {self.longest}")
            require(
                shapes() == "any" or len(buckets) < most,
                f"an example has {lengths.max()} positions, at most {max(buckets[-1])} are read here: shorten it",
            )
            buckets.append(wider)
        return buckets
