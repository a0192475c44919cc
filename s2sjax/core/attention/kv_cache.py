"""The key-value cache of K prefixes that are decoded in parallel. Its entries never move.

Letters: B batch, K prefixes of a sentence, N heads, D width of a head, L places of the cache.

When a beam is reordered, only `beam_index` [B, K, L] changes: which of the K rows of the cache holds each place of a
prefix. Position p overwrites place p % L: a cache of window + 1 places is a ring buffer.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from s2sjax.core.attention import decode_kernel
from s2sjax.core.attention.multi_head_attention import attend_heads
from s2sjax.core.backend import device

Cache = tuple[Float[Array, "B N L K D"], Float[Array, "B N L K D"]]
"""cached keys and values"""


def attend(
    qkv: Float[Array, "B K 3 N D"],
    cache: Cache,
    beam_index: Int[Array, "B K L"],
    position: Int[Array, " B"],
    bias: Float[Array, "B N 1 L"] | None = None,
) -> tuple[Float[Array, "B K N D"], Cache]:
    """Attends to the new keys and values and to the cache -> contexts, new cache.

    qkv: queries, keys and values of the prefixes
    beam_index: row of the cache that holds each place of a prefix
    position: position of the new token
    bias: added to the scores
    """
    if bias is None and decode_kernel.fits(qkv):
        return decode_kernel.attend_and_write(qkv, cache, beam_index, position)

    queries, *new = jnp.moveaxis(qkv, 2, 0)
    prefix, place = jnp.arange(beam_index.shape[1]), jnp.arange(beam_index.shape[2])
    write = jax.vmap(lambda cached, now, at: cached.at[:, at].set(now))
    keys, values = (write(cached, now.swapaxes(1, 2), position % len(place)) for cached, now in zip(cache, new))
    written = place[None] <= position[:, None]  # [B, L]
    if device.gathers_kv_cache():  # the entries of each prefix: [B, N, K, L, D]
        own = lambda part: jax.vmap(lambda cached, row: cached[:, place, row])(part, beam_index)
        seen = jnp.broadcast_to(written[:, None], beam_index.shape)
        return attend_heads(queries, own(keys), own(values), seen, bias)[0], (keys, values)
    # All entries for each prefix, which matrix units do at no extra cost: [B, N, L * K, D].
    flat = lambda part: part.reshape(*part.shape[:2], -1, part.shape[-1])
    mine = (beam_index[..., None] == lax.broadcast_to_rank(prefix, 4)) & written[:, None, :, None]  # [B, K, L, K]
    bias = None if bias is None else jnp.repeat(bias, len(prefix), axis=-1)
    attended, _ = attend_heads(queries, flat(keys), flat(values), mine.reshape(*beam_index.shape[:2], -1), bias)
    return attended, (keys, values)
