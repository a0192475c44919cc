"""Applies a compiled function to all rows of a data set, each exactly once. Results are in the order of the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from s2sjax.config import require
from s2sjax.data.columns import AnyColumns, Batch, Bucket, Buckets, first_bucket
from s2sjax.evaluate.counter import count

Tree = Any
ROWS = PartitionSpec(("data", "fsdp"))
COMPILATION = 10**11
"""operations that a CPU does in the seconds that compiling one more program takes"""


DOUBLINGS = 2
"""how often `few_shapes` doubles the last bucket"""
_shapes: ContextVar[Literal["any", "few", "all"]] = ContextVar("shapes", default="any")


@contextlib.contextmanager
def few_shapes(all: bool = False) -> Iterator[None]:
    """Inside, predictions have few shapes, and refuse what is longer: the last bucket is doubled twice, no more.

    all: a call also runs the programs of all other shapes, on padding, so that later calls compile nothing.
    """
    token = _shapes.set("all" if all else "few")
    try:
        yield
    finally:
        _shapes.reset(token)


def shapes() -> Literal["any", "few", "all"]:
    """Which shapes are compiled here: see `few_shapes`."""
    return _shapes.get()


def spare_tokens(params: Tree) -> int:
    """The tokens of padding that cost less than compiling another program, at two operations a weight and token."""
    return COMPILATION // (2 * max(sum(leaf.size for leaf in jax.tree.leaves(params)), 1))


class Batched:
    """function(params, batch) -> a tree of arrays [B, ...], compiled once per bucket and reused between calls.

    A row that is longer than the last bucket gets one that is twice, four times, ... as long, with fewer rows at once,
    and at most `longest`: the positions that a model can address.

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
        self.mesh = mesh if mesh is not None and mesh.size > 1 else None
        self.devices = 1 if self.mesh is None else self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        self.rows = -(-rows // self.devices) * self.devices
        replicated = None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())
        self._compiled = jax.jit(function, out_shardings=replicated)

    def __call__(self, params: Tree, columns: AnyColumns) -> list[Tree]:
        """One result for each row of the columns, in order."""
        buckets = self._buckets(columns.lengths)
        bucket = first_bucket(columns.lengths, buckets)
        found: list[Tree] = [None] * len(bucket)
        done = 0
        for number, widths in enumerate(buckets):
            members = np.flatnonzero(bucket == number)
            doubled = max(0, number + 1 - len(self.buckets))  # how often the last bucket was
            many = max(self.rows >> doubled, self.devices) // self.devices * self.devices
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
        batch = {name: self._place(array) for name, array in columns.batch(rows, widths).items()}
        return jax.device_get(self._compiled(params, batch))

    def lower(self, params: Tree, batch: Tree) -> Any:
        """The program for arrays of these shapes, ready to be compiled."""
        sharding = None if self.mesh is None else NamedSharding(self.mesh, ROWS)
        place = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return self._compiled.lower(params, jax.tree.map(place, batch))

    def _buckets(self, lengths: np.ndarray) -> list[Bucket]:
        """Those of the data, and the last of them doubled until every row fits: what is predicted may be longer."""
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

    def _place(self, array: np.ndarray) -> Any:
        if self.mesh is None:
            return array
        sharding = NamedSharding(self.mesh, ROWS)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
