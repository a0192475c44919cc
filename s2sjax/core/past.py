"""The past of K prefixes that are written side by side: a cache of keys and values that never moves.

Letters: B batch, K prefixes of a sentence, N heads, D width of a head, L places of the cache.

When prefixes change places, only `rows` [B, K, L] does: it tells in which of the K rows of the cache each place of a
prefix's past lies. Position p is written at place p % L, over what was there: a cache of window + 1 places rolls.
"""

import jax
import jax.numpy as jnp
from jax import Array

from s2sjax.core import fused
from s2sjax.core.attention import attend_heads

Cache = tuple[Array, Array]
"""keys and values [B, N, L, K, D]"""


def attend(qkv: Array, cache: Cache, rows: Array, position: Array, bias: Array | None = None) -> tuple[Array, Cache]:
    """The prefixes, at position [B], look at their new keys and values and at their past: [B, K, N, D], and the cache.

    qkv: their queries, keys and values [B, K, 3, N, D]. bias [B, N, 1, L]: added to the scores.
    """
    if bias is None and fused.fits(qkv):
        return fused.attend_and_write(qkv, cache, rows, position)

    queries, *new = jnp.moveaxis(qkv, 2, 0)
    prefix, place = jnp.arange(rows.shape[1]), jnp.arange(rows.shape[2])
    write = jax.vmap(lambda past, now, at: past.at[:, at].set(now))
    keys, values = (write(past, now.swapaxes(1, 2), position % len(place)) for past, now in zip(cache, new))
    written = place <= position[:, None]  # [B, L]
    if jax.default_backend() == "cpu":  # gathers the past of each: [B, N, K, L, D]
        own = lambda part: jax.vmap(lambda past, row: past[:, place, row])(part, rows)
        seen = jnp.broadcast_to(written[:, None], rows.shape)
        return attend_heads(queries, own(keys), own(values), seen, bias)[0], (keys, values)
    # An accelerator reads all rows for each, which its matrix units do for nothing: [B, N, L * K, D].
    flat = lambda part: part.reshape(*part.shape[:2], -1, part.shape[-1])
    mine = (rows[..., None] == prefix) & written[:, None, :, None]  # [B, K, L, K]
    bias = None if bias is None else jnp.repeat(bias, len(prefix), axis=-1)
    attended, _ = attend_heads(queries, flat(keys), flat(values), mine.reshape(*rows.shape[:2], -1), bias)
    return attended, (keys, values)
