"""Position encodings.

Sinusoidal encodings are added to the embeddings. Rotary and relative encodings act on the scores of queries and keys,
and depend only on the distance between them.
"""

import jax
import jax.numpy as jnp
from jax import Array


def sinusoidal(positions: Array, width: int) -> Array:
    """sin and cos of pos / 10000^(2i / width), sines first: positions [...] -> [..., width] (Vaswani et al. 2017).

    Example: position 0 gives width/2 zeros, then width/2 ones.
    """
    rates = 10000.0 ** (-jnp.arange(0, width, 2) / width)  # [width / 2]
    angles = positions[..., None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def within(segments: Array) -> Array:
    """The position of each token in its segment: segment numbers [B, T] -> [B, T].

    Example: segments 1 1 1 2 2 0 give 0 1 2 0 1 0.
    """
    place = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
    first = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return place - jax.lax.cummax(jnp.where(first, place, 0), axis=1)


def rotate(x: Array, positions: Array) -> Array:
    """Rotates each pair (x_i, x_{i + D/2}) by the angle pos / 10000^(2i / D): rotary positions (Su et al. 2021).

    x [..., D], positions [...] -> [..., D]. The product of rotated queries and keys depends only on their distance:
    rotate(q, t) . rotate(k, s) = rotate(q, t - s) . k. Example: D = 2, (1, 0) at pos -> (cos pos, sin pos).
    """
    sin, cos = jnp.split(sinusoidal(positions, x.shape[-1]), 2, axis=-1)
    left, right = jnp.split(x, 2, axis=-1)
    rotated = jnp.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)
    return rotated.astype(x.dtype)


BUCKETS, FURTHEST = 32, 128  # T5's


def bucket(offsets: Array, causal: bool) -> Array:
    """The bucket of an offset (key - query), from 0 to `BUCKETS` - 1: offsets [...] -> [...] (Raffel et al. 2020).

    Half of a side's buckets hold one distance each; the others grow in width up to `FURTHEST`, and the last holds all
    distances beyond. If causal, one side has all buckets, and later keys count as distance 0; otherwise the second half
    of the buckets is for later keys.

        causal      offset    0   -1  ..  -15  | -16 .. -18 ..  -113 and beyond
                    bucket    0    1  ..   15  |     16     ..      31
        otherwise   offset    0   -1  ..   -7  |  -8 .. -11 ..   -91 and beyond  |    1  ..  7   |  8 .. 11 ..
                    bucket    0    1  ..    7  |      8     ..      15           |   17  ..  23  |    24    ..
    """
    count = BUCKETS if causal else BUCKETS // 2
    single = count // 2
    distance = jnp.maximum(-offsets, 0) if causal else jnp.abs(offsets)
    # The position among the wide buckets on a logarithmic scale: 0 at `single`, 1 at `FURTHEST`.
    far = jnp.log(jnp.maximum(distance, single) / single) / jnp.log(FURTHEST / single)
    # Some edges are exact powers: 1e-4 keeps rounding errors from deciding.
    wide = single + jnp.floor(far * (count - single) + 1e-4).astype(jnp.int32)
    found = jnp.where(distance < single, distance, jnp.minimum(wide, count - 1))
    return found if causal else found + count * (offsets > 0)


def relative_bias(table: Array, offsets: Array, causal: bool) -> Array:
    """The bias of each head's score at each offset: table [BUCKETS, N], offsets [...] -> [N, ...]."""
    return jnp.moveaxis(table[bucket(offsets, causal)], -1, 0)
