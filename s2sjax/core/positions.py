"""Positions, for models that would otherwise not know the order of their input."""

import jax
import jax.numpy as jnp
from jax import Array


def sinusoidal(positions: Array, width: int) -> Array:
    """sin and cos of pos / 10000^(2i / width): [...] -> [..., width], the sines first (Vaswani et al. 2017).

    Example: position 0 gives width/2 zeros, then width/2 ones.
    """
    rates = 10000.0 ** (-jnp.arange(0, width, 2) / width)  # [width / 2]
    angles = positions[..., None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def within(segments: Array) -> Array:
    """The position of each token in its own segment: [B, T] -> [B, T].

    Example: segments 1 1 1 2 2 0 give 0 1 2 0 1 0.
    """
    place = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
    first = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return place - jax.lax.cummax(jnp.where(first, place, 0), axis=1)
