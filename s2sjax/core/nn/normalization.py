"""Layer norm, RMS norm and group norm. Letters: D width, G gates, H state width. Leading axes are free."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from s2sjax.core.backend.matmul import at_least_float32

EPSILON = 1e-6
"""added to the variance, unless another number is given"""


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(
    x: Float[Array, "*shape D"], scale: Float[Array, " D"], bias: Float[Array, " D"], epsilon: float = EPSILON
) -> Float[Array, "*shape D"]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias over the last axis, in at least float32 (Ba et al. 2016).

    The result has the dtype of x. Example: [1, 3] has mean 2, variance 1 -> [-1, 1].
    """
    return _forward(x, scale, bias, epsilon)[0]


def _forward(x: Array, scale: Array, bias: Array, epsilon: float) -> tuple[Array, tuple[Array, ...]]:
    n, mean, inverse = standardise(x, epsilon)
    return _affine(n, scale, bias).astype(x.dtype), (x, scale, mean, inverse)


# With n = (x - mean) * inverse and g = dy * scale:  dx = (g - mean(g) - n mean(g n)) * inverse.
#
# The forward pass saves x and two numbers per row, and n is recomputed where it is used: JAX's own derivative keeps
# float32 arrays of the size of x between several passes.


def _backward(epsilon: float, saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array]:
    x, scale, mean, inverse = saved
    centre = lambda g: g - g.mean(-1, keepdims=True)
    return _gradients(x, scale, gradient, lambda x: (x.astype(mean.dtype) - mean) * inverse, inverse, centre)


layer_norm.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(
    x: Float[Array, "*shape D"], scale: Float[Array, " D"], epsilon: float = EPSILON
) -> Float[Array, "*shape D"]:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis, in at least float32 (Zhang and Sennrich 2019).

    The result has the dtype of x. Example: [3, 4] has mean square 12.5 -> [0.85, 1.13].
    """
    return _rms_forward(x, scale, epsilon)[0]


def _rms_forward(x: Array, scale: Array, epsilon: float) -> tuple[Array, tuple[Array, ...]]:
    exact = x.astype(at_least_float32(x.dtype))
    inverse = lax.rsqrt(jnp.mean(exact**2, axis=-1, keepdims=True) + epsilon)
    return _affine(exact * inverse, scale, 0.0).astype(x.dtype), (x, scale, inverse)


def _rms_backward(epsilon: float, saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array]:
    x, scale, inverse = saved
    return _gradients(x, scale, gradient, lambda x: x.astype(inverse.dtype) * inverse, inverse, lambda g: g)[:2]


rms_norm.defvjp(_rms_forward, _rms_backward)


def _gradients(
    x: Array, scale: Array, gradient: Array, normalized: Callable[[Array], Array], inverse: Array,
    centre: Callable[[Array], Array],
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The gradients for x, scale and bias of n * scale + bias, with n = normalized(x)."""
    n, dy = normalized(x), gradient.astype(inverse.dtype)
    g = dy * lax.broadcast_to_rank(scale, x.ndim)
    dx = (centre(g) - n * jnp.mean(g * n, axis=-1, keepdims=True)) * inverse
    # Without the barrier, XLA would store n dy in float32 for these two sums.
    x, gradient = lax.optimization_barrier((x, gradient))
    n, dy = normalized(x), gradient.astype(inverse.dtype)
    zero = jnp.zeros((), inverse.dtype)
    add = lambda one, other: (one[0] + other[0], one[1] + other[1])
    d_scale, d_bias = lax.reduce((n * dy, dy), (zero, zero), add, range(x.ndim - 1))
    return dx.astype(x.dtype), d_scale.astype(scale.dtype), d_bias.astype(scale.dtype)


def _affine(x: Array, scale: Array, bias: Array | float) -> Array:
    """x * scale + bias, both along the last axis."""
    bias = lax.broadcast_to_rank(bias, x.ndim) if jnp.ndim(bias) else bias
    return x * lax.broadcast_to_rank(scale, x.ndim) + bias


def standardise(
    x: Float[Array, "*shape D"], epsilon: float = EPSILON
) -> tuple[Float[Array, "*shape D"], Float[Array, "*shape 1"], Float[Array, "*shape 1"]]:
    """(x - mean) / sqrt(var + epsilon) over the last axis, the mean and 1 / sqrt, in at least float32."""
    x = x.astype(at_least_float32(x.dtype))
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    inverse = lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + epsilon)
    return centred * inverse, mean, inverse


def norm_by_gate(
    x: Float[Array, "*shape GH"], scale: Float[Array, " GH"], bias: Float[Array, " GH"] | float = 0.0, *, width: int
) -> Float[Array, "*shape GH"]:
    """Normalises each block of H = `width` separately."""
    blocks = x.reshape(*x.shape[:-1], -1, width)
    return _affine(standardise(blocks)[0].reshape(x.shape), scale, bias)


def group_norm(
    x: Float[Array, "B H W C"], scale: Float[Array, " C"], bias: Float[Array, " C"], groups: int
) -> Float[Array, "B H W C"]:
    """Normalises groups of channels over their channels and all positions of a picture (Wu and He 2018).

    The result has the dtype of x; statistics are in at least float32.
    """
    B, H, W, C = x.shape
    parts = x.astype(at_least_float32(x.dtype)).reshape(B, H * W, groups, C // groups)
    mean = parts.mean((1, 3), keepdims=True)
    centred = parts - mean
    inverse = lax.rsqrt(jnp.mean(centred**2, axis=(1, 3), keepdims=True) + 1e-6)
    return _affine((centred * inverse).reshape(x.shape), scale, bias).astype(x.dtype)
