"""Position encodings.

Sinusoidal encodings are added to the embeddings. Rotary and relative encodings act on the scores of queries and keys,
and depend only on the distance between them.
"""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Num


def sinusoidal(
    positions: Num[Array, "..."], width: int, layout: Literal["vaswani", "tensor2tensor"] = "vaswani"
) -> Float[Array, "... {width}"]:
    """sin and cos of pos / 10000^(2i / width), sines first (Vaswani et al. 2017).

    In the layout of Tensor2Tensor (Vaswani et al. 2018), the slowest rate is exactly 1 / 10000: the exponents are
    i / (width / 2 - 1).

    >>> sinusoidal(jnp.array([0]), 4)
    Array([[0., 0., 1., 1.]], dtype=float32)
    """
    last = width if layout == "vaswani" else max(width - 2, 1)
    rates = 10000.0 ** (-jnp.arange(0, width, 2) / last)  # [width / 2]
    angles = positions[..., None] * lax.broadcast_to_rank(rates, positions.ndim + 1)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def exact_sinusoidal(positions: Int[Array, "..."], width: int) -> Float[Array, "... {width}"]:
    """`sinusoidal` for positions in texts of any length, where the product pos * rate has lost its digits.

    The angle is the sum of those of the powers of two in the position, each reduced to one turn beforehand.
    """
    powers = np.arange(31)
    rates = 10000.0 ** (-np.arange(0, width, 2) / width)
    of_powers = np.float32(2.0 ** powers[:, None] * rates % (2 * np.pi))  # [31, width / 2], in float64 until here
    bits = lax.broadcast_to_rank(jnp.array(powers), positions.ndim + 1)
    bits = (positions[..., None] >> bits) & 1
    angles = jnp.sum(bits[..., None] * lax.broadcast_to_rank(jnp.array(of_powers), positions.ndim + 2), axis=-2)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def within(segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """The position of each token in its segment, from segment numbers.

    >>> within(jnp.array([[1, 1, 1, 2, 2, 0]]))
    Array([[0, 1, 2, 0, 1, 0]], dtype=int32)
    """
    place = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
    first = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return place - lax.cummax(jnp.where(first, place, 0), axis=1)


def rotate(x: Float[Array, "... D"], positions: Num[Array, "..."]) -> Float[Array, "... D"]:
    """Rotates each pair (x_i, x_{i + D/2}) by the angle pos / 10000^(2i / D): rotary positions (Su et al. 2021).

    The product of rotated queries and keys depends only on their distance:
    rotate(q, t) . rotate(k, s) = rotate(q, t - s) . k. Example: D = 2, (1, 0) at pos -> (cos pos, sin pos).
    """
    return turn(x, sinusoidal(positions, x.shape[-1]))


def turn(x: Float[Array, "... D"], sines: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Rotates each pair (x_i, x_{i + D/2}) by the angle whose sine is sines_i, and whose cosine is sines_{i + D/2}."""
    rank = max(x.ndim, sines.ndim)
    x, sines = (lax.broadcast_to_rank(each, rank) for each in (x, sines))
    sin, cos = jnp.split(sines, 2, axis=-1)
    left, right = jnp.split(x, 2, axis=-1)
    rotated = jnp.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)
    return rotated.astype(x.dtype)


BUCKETS, FURTHEST = 32, 128  # T5's


def bucket(offsets: Int[Array, "*shape"], causal: bool) -> Int[Array, "*shape"]:
    """The bucket of an offset (key - query), from 0 to `BUCKETS` - 1 (Raffel et al. 2020).

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


def relative_bias(
    table: Float[Array, "BUCKETS N"], offsets: Int[Array, "*shape"], causal: bool
) -> Float[Array, " N *shape"]:
    """The bias of each head's score at each offset."""
    return jnp.moveaxis(table[bucket(offsets, causal)], -1, 0)
