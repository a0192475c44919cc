"""The indices of the k largest values."""

import math

import jax.numpy as jnp
from jax import Array, lax


def top_k(values: Array, k: int) -> Array:
    """The indices of the k largest values, largest first, ties by smaller index: values [..., V] -> [..., k].

    The k largest values are in the k chunks with the largest maxima. This takes one pass for the maxima, and sorts two
    short lists instead of a long one: for 32,000 words and k = 10, with chunks of 64, lists of 500 and 640.
    """
    size = values.shape[-1]
    chunk = 1 << max(0, round(math.log2(size / k) / 2))
    chunks = -(-size // chunk)
    if chunks <= 4 * k:
        return lax.top_k(values, k)[1]
    lowest = jnp.array(-jnp.inf, values.dtype)
    whole = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, chunks * chunk - size)], constant_values=lowest)
    maxima = whole.reshape(*values.shape[:-1], chunks, chunk).max(-1)
    # In index order, so that ties still go to the smaller index.
    best = jnp.sort(lax.top_k(maxima, k)[1], axis=-1)
    places = (best[..., None] * chunk + jnp.arange(chunk)).reshape(*values.shape[:-1], k * chunk)
    few = jnp.take_along_axis(whole, places, axis=-1)
    return jnp.take_along_axis(places, lax.top_k(few, k)[1], axis=-1)


def top_k_small(values: Array, k: int) -> Array:
    """The same as `top_k` for short lists: values [..., J] -> [..., k].

    On an accelerator, counting larger values is faster than sorting.
    """
    if values.shape[-1] > 64:
        return lax.top_k(values.astype(jnp.float32), k)[1]
    one, other = values[..., :, None], values[..., None, :]
    before = jnp.tri(values.shape[-1], k=-1, dtype=bool)  # [J, J] whether the other comes before the one
    rank = jnp.sum((other > one) | ((other == one) & before), axis=-1)  # [..., J]
    chosen = rank[..., None, :] == jnp.arange(k)[:, None]  # [..., k, J]
    return jnp.sum(jnp.where(chosen, jnp.arange(values.shape[-1]), 0), axis=-1)
