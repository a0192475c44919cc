"""Parameters at lower precision, for decoding.

bfloat16   every parameter rounded to 8 significant bits
int8       each column of a matrix (each row of an embedding table) as whole numbers q from -127 to 127 and one
           scale: w ~ q * scale, scale = max |w| / 127; so an entry is off by at most half a scale
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

Precision = Literal["trained", "float32", "bfloat16", "int8"]
Tree = Any


class Quantised(NamedTuple):
    numbers: Array  # int8
    scale: Array  # float32, of length 1 in the direction that is summed over


def stored(params: Tree, precision: Precision) -> Tree:
    """The parameters at the given precision, as stored."""
    match precision:
        case "bfloat16":
            return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        case "int8":
            return jax.tree_util.tree_map_with_path(_quantised, params)
        case _:
            return params


def restored(params: Tree) -> Tree:
    """The parameters as used in computation: int8 is converted back."""
    is_quantised = lambda leaf: isinstance(leaf, Quantised)
    whole = lambda leaf: leaf.numbers * leaf.scale if is_quantised(leaf) else leaf
    return jax.tree.map(whole, params, is_leaf=is_quantised)


def _quantised(path: tuple, leaf: Array) -> Array | Quantised:
    if leaf.ndim < 2:
        return leaf
    summed_over = -1 if path[-1].key == "table" else -2
    scale = jnp.max(jnp.abs(leaf), axis=summed_over, keepdims=True) / 127
    numbers = jnp.round(leaf / jnp.where(scale > 0, scale, 1)).astype(jnp.int8)
    return Quantised(numbers, scale)
