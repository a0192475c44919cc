"""What is measured: a layer at one size, the operations of which it consists, and the rows of the table of layers.

Letters: B batch, n sequence length, d width.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Point(NamedTuple):
    """One layer at one size."""

    layer: str
    batch: int
    length: int
    width: int
    heads: int
    kernel: int | None = None
    radius: int | None = None
    unroll: int | None = None
    """number of unrolled time steps; None: the default of the device"""
    remat: str = "none"
    dtype: str = "float32"
    form: str | None = None
    """form of a recurrence of s2sjax/core/mixers/: chunked, scan or associative; None: its first one"""
    chunk: int | None = None
    """positions of a chunk; None: the default of the device"""

    @property
    def tokens(self) -> int:
        return self.batch * self.length


class Operation(NamedTuple):
    """The FLOPs of an operation, and the elements that it reads and writes; it runs `times` times in sequence."""

    flops: float
    inputs: float
    weights: float
    outputs: float
    times: int = 1


Operations = Callable[[Point], list[Operation]]


class Type(NamedTuple):
    """A row of the table of layers."""

    shapes: Callable[[Point], Mapping[str, tuple[int, ...]]]
    apply: Callable[[Point, Mapping[str, Array], Array, Array], Array]
    """weights, xs [B, n, d], lengths [B] -> ys [B, n, d]"""
    operations: Operations
    sequential: Callable[..., int]
    """number of sequential operations for n positions, and for chunks of C positions if the layer has chunks"""
    complexity: str
    """complexity as in Table 1"""
    exponents: tuple[int, int]
    """exponents of n and of d in the complexity"""
    draw: Callable[[Point], Mapping[str, Array]] | None = None
    """random weights in float32; None: weights that preserve the scale of their inputs"""
    recurrent: bool = False
    """whether it has a state of constant size"""
    forms: tuple[str, ...] = ()
    """forms of a recurrence of s2sjax/core/mixers/, the usual one first"""


def mask(point: Point, lengths: Array) -> Array:
    return jnp.arange(point.length) < lengths[:, None]  # [B, n]


def project(point: Point, outputs: int, inputs: int | None = None) -> Operation:
    """The projection [B n, inputs] @ [inputs, outputs], by default of d inputs."""
    rows, inputs = point.tokens, inputs or point.width
    return Operation(2 * rows * inputs * outputs, rows * inputs, inputs * outputs, rows * outputs)
