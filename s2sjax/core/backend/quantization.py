"""Parameters at lower precision, for decoding.

bfloat16   every parameter rounded to 8 significant bits, but the rates and biases of recurrences, which decide how
           long they remember
int8       each column of a matrix (each row of an embedding table) as integers q from -127 to 127 and one scale:
           w ~ q * scale, scale = max |w| / 127; the rounding error of an entry is at most half a scale
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int8

from s2sjax.core.backend import device

Precision = Literal["trained", "float32", "bfloat16", "int8"]
Tree = Any


@partial(jax.tree_util.register_dataclass, data_fields=("numbers", "scale"), meta_fields=())
@dataclass(frozen=True)
class Quantised:
    """The matrix numbers * scale. Supports what layers do with a matrix: x @ W, and rows of a table W[ids]."""

    numbers: Int8[Array, "... D V"]
    scale: Float[Array, " ... #D #V"]  # [..., 1, V], or [..., D, 1] for an embedding table

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def ndim(self) -> int:
        return self.numbers.ndim

    def astype(self, dtype: Any) -> Quantised:
        """Returns itself: the dtype of a product is that of the other factor."""
        return self

    def __getitem__(self, ids: Int[Array, "*shape"]) -> Float[Array, "*shape V"]:
        return self.numbers[ids] * self.scale[ids]

    def __rmatmul__(self, x: Float[Array, "*shape D"]) -> Float[Array, "*shape V"]:
        return self._product(x, 0)

    def as_table(self, x: Float[Array, "*shape D"]) -> Float[Array, "*shape V"]:
        """x W^T for a table W [V, D]."""
        return self._product(x, 1)

    def _product(self, x: Array, summed: int) -> Array:
        """The product over axis `summed` of W, accumulated in int32. Each row of x is rounded like W:

        x ~ p * step, step = max |x| / 127;    x W ~ (p q) * step * scale
        """
        rows, step = _rounded(x.reshape(-1, x.shape[-1]).astype(jnp.float32), -1)
        over = (((1,), (summed,)), ((), ()))
        product = jax.lax.dot_general(rows, self.numbers, over, preferred_element_type=jnp.int32)
        return (product * (step * self.scale.reshape(1, -1))).astype(x.dtype).reshape(*x.shape[:-1], -1)


def stored(params: Tree, precision: Precision) -> Tree:
    """Converts parameters to the given precision, for storage in memory."""
    match precision:
        case "bfloat16":
            return jax.tree_util.tree_map_with_path(_rounded_to_bfloat16, params)
        case "int8":
            return jax.tree_util.tree_map_with_path(_quantised, params)
        case _:
            return params


def _rounded_to_bfloat16(path: tuple, leaf: Array) -> Array:
    of_recurrence = not {"mixer", "backward"}.isdisjoint(getattr(key, "key", "") for key in path)
    return leaf if of_recurrence and leaf.ndim < 2 else leaf.astype(jnp.bfloat16)


def restored(params: Tree) -> Tree:
    """Converts stored parameters for computation: int8 becomes float, except where the device multiplies int8."""
    is_quantised = lambda leaf: isinstance(leaf, Quantised)

    def used(path: tuple, leaf: Any) -> Any:
        if not is_quantised(leaf) or (device.multiplies_int8() and _is_factor(path, leaf)):
            return leaf
        return leaf.numbers * leaf.scale

    return jax.tree_util.tree_map_with_path(used, params, is_leaf=is_quantised)


def _is_factor(path: tuple, leaf: Quantised) -> bool:
    """Whether the leaf is a matrix that layers only multiply by, or an embedding table.

    Matrices of stacked blocks have a third axis. The kernel of a convolution has three axes too, but is not a factor.
    """
    names = [str(getattr(key, "key", "")) for key in path]
    stacked = "blocks" in names and "stack" in names
    return names[-1] in ("table", "kernel") and leaf.ndim == (3 if stacked else 2)


def _quantised(path: tuple, leaf: Array) -> Array | Quantised:
    if leaf.ndim < 2:
        return leaf
    return Quantised(*_rounded(leaf, -1 if path[-1].key == "table" else -2))


def _rounded(x: Array, axis: int) -> tuple[Array, Array]:
    """Rounds x to int8 -> integers, and their scale along an axis."""
    scale = jnp.max(jnp.abs(x), axis=axis, keepdims=True) / 127
    return jnp.round(x / jnp.where(scale > 0, scale, 1)).astype(jnp.int8), scale
