"""Layer norm as a pure function. Letters: G gates, H state width. Leading axes are free."""

import jax.numpy as jnp
from jax import Array, lax

from s2sjax.core.attention import at_least_float32


def layer_norm(x: Array, scale: Array | float = 1.0, bias: Array | float = 0.0) -> Array:
    """(x - mean) / sqrt(var + 1e-6) * scale + bias over the last axis, in float32 at the least (Ba et al. 2016).

    [1, 3] has mean 2 and variance 1 -> [-1, 1].
    """
    x = x.astype(at_least_float32(x.dtype))
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-6) * scale + bias


def norm_by_gate(x: Array, scale: Array, bias: Array | float = 0.0, *, width: int) -> Array:
    """Each block of `width` normalised by itself: [..., G*H], scale and bias [G*H] -> [..., G*H]."""
    blocks = x.reshape(*x.shape[:-1], -1, width)
    return layer_norm(blocks).reshape(x.shape) * scale + bias
