"""Attention to the last R positions of a text that is read in segments, those of earlier segments included.

    segment       0 1 2 3 | 4 5 6 7          R = 3: query 5 sees the keys 2 .. 5,
    keys            1 2 3   4 5 6 7          of which 2 and 3 come from the past

The past of a segment is the keys and values of the R positions before it, so a text in segments gives what the whole
text gives. The keys of the past are stored before they are rotated: each segment counts from its own start, so
that angles stay small, however long the text is.

Letters: B batch, T positions of a segment, R reach, N heads, D width of a head, C positions of a block, M = ceil(T / C)
blocks.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from s2sjax.core import attention

Heads = Float[Array, "B T N D"]


class Past(NamedTuple):
    """The last R positions."""

    keys: Float[Array, "B R N D"]
    values: Float[Array, "B R N D"]
    read: Int[Array, " B"]
    """number of positions that have been read, at most R: they are at the end"""


def start(rows: int, reach: int, heads: int, width: int, dtype) -> Past:
    """The past of the first segment: no position."""
    empty = jnp.zeros((rows, reach, heads, width), dtype)
    return Past(empty, empty, jnp.zeros(rows, jnp.int32))


def attend(
    queries: Heads, keys: Heads, values: Heads, past: Past, mask: Bool[Array, "B T"], rotate: Callable
) -> tuple[Heads, Past]:
    """Computes softmax(q . k / sqrt(D)) v over the own position and the R before it -> contexts, the new past.

    mask: True for real positions. Those of a row are consecutive; the past ends where they begin
    rotate: rotate(x, position) applies positions to queries and keys
    """
    length, reach = mask.shape[1], past.keys.shape[1]
    first = jnp.argmax(mask, axis=1)  # [B]
    join = lambda before, x: jax.vmap(_join)(before, x, first)  # [B, R + T, ...]
    was_read = jnp.arange(reach)[None] >= reach - past.read[:, None]
    real, keys, values = join(was_read, mask), join(past.keys, keys), join(past.values, values)

    size = min(length, reach)
    blocks = -(-length // size)
    cut = lambda x: _padded(x, blocks * size).reshape(-1, size, *x.shape[2:])  # [B * M, C, ...]
    seen = lambda x: _neighbours(_padded(x, reach + blocks * size), blocks, size)  # [B * M, R + C, ...]
    ago = jnp.arange(size)[:, None] + reach - jnp.arange(reach + size)[None]  # [C, R + C]
    pairs = ((ago >= 0) & (ago <= reach))[None] & seen(real)[:, None]
    place = jnp.arange(-reach, length)
    attended = attention.fused_multi_head(
        cut(rotate(queries, place[reach:])), seen(rotate(keys, place)), seen(values), mask=pairs
    )

    end = jnp.max(mask * jnp.arange(1, length + 1)[None], axis=1)
    last = (end[:, None] + jnp.arange(reach)[None])[..., None, None]  # the last R real positions
    keep = lambda x: jnp.take_along_axis(x, last, axis=1)
    read = jnp.minimum(past.read + mask.sum(1, dtype=jnp.int32), reach)
    return attended.reshape(len(mask), -1, *attended.shape[2:])[:, :length], Past(keep(keys), keep(values), read)


def _join(past: Shaped[Array, "R ..."], x: Shaped[Array, "T ..."], first: Int[Array, ""]) -> Shaped[Array, "RT ..."]:
    """Puts the past directly before the first real position of a row.

    >>> _join(jnp.array([1, 2]), jnp.array([0, 0, 3, 4]), jnp.array(2))
    Array([0, 0, 1, 2, 3, 4], dtype=int32)
    """
    return lax.dynamic_update_slice_in_dim(jnp.concatenate([jnp.zeros_like(past), x]), past, first, axis=0)


def _padded(x: Shaped[Array, "B S ..."], length: int) -> Shaped[Array, "B S1 ..."]:
    return jnp.pad(x, ((0, 0), (0, length - x.shape[1])) + ((0, 0),) * (x.ndim - 2))


def _neighbours(x: Shaped[Array, "B S ..."], blocks: int, size: int) -> Shaped[Array, "BM K ..."]:
    """What each block of queries sees: itself and the R positions before it. Several blocks have R positions each."""
    if blocks == 1:
        return x
    parts = x.reshape(len(x), blocks + 1, size, *x.shape[2:])
    return jnp.concatenate([parts[:, :-1], parts[:, 1:]], axis=2).reshape(-1, 2 * size, *x.shape[2:])
