"""Layer norm and group norm. Letters: D width, G gates, H state width. Leading axes are free."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from s2sjax.core.backend.matmul import at_least_float32


@jax.custom_vjp
def layer_norm(
    x: Float[Array, "*shape D"], scale: Float[Array, " D"], bias: Float[Array, " D"]
) -> Float[Array, "*shape D"]:
    """(x - mean) / sqrt(var + 1e-6) * scale + bias over the last axis, in at least float32 (Ba et al. 2016).

    The result has the dtype of x. Example: [1, 3] has mean 2, variance 1 -> [-1, 1].
    """
    return _forward(x, scale, bias)[0]


def _forward(x: Array, scale: Array, bias: Array):
    n, mean, inverse = standardise(x)
    return _affine(n, scale, bias).astype(x.dtype), (x, scale, mean, inverse)


# With n = (x - mean) * inverse and g = dy * scale:  dx = (g - mean(g) - n mean(g n)) * inverse.
#
# The forward pass saves x and two numbers per row, and n is recomputed where it is used: JAX's own derivative keeps
# float32 arrays of the size of x between several passes.


def _backward(saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array]:
    x, scale, mean, inverse = saved

    def again(x: Array, gradient: Array) -> tuple[Array, Array]:
        return (x.astype(mean.dtype) - mean) * inverse, gradient.astype(mean.dtype)

    n, dy = again(x, gradient)
    g = dy * lax.broadcast_to_rank(scale, x.ndim)
    dx = (g - g.mean(-1, keepdims=True) - n * jnp.mean(g * n, axis=-1, keepdims=True)) * inverse
    # Without the barrier, XLA would store n dy in float32 for these two sums.
    n, dy = again(*lax.optimization_barrier((x, gradient)))
    zero = jnp.zeros((), mean.dtype)
    add = lambda one, other: (one[0] + other[0], one[1] + other[1])
    d_scale, d_bias = lax.reduce((n * dy, dy), (zero, zero), add, range(x.ndim - 1))
    return dx.astype(x.dtype), d_scale.astype(scale.dtype), d_bias.astype(scale.dtype)


layer_norm.defvjp(_forward, _backward)


def _affine(x: Array, scale: Array, bias: Array | float) -> Array:
    """x * scale + bias, both along the last axis."""
    bias = lax.broadcast_to_rank(bias, x.ndim) if jnp.ndim(bias) else bias
    return x * lax.broadcast_to_rank(scale, x.ndim) + bias


def standardise(
    x: Float[Array, "*shape D"],
) -> tuple[Float[Array, "*shape D"], Float[Array, "*shape 1"], Float[Array, "*shape 1"]]:
    """(x - mean) / sqrt(var + 1e-6) over the last axis, the mean and 1 / sqrt, in at least float32."""
    x = x.astype(at_least_float32(x.dtype))
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    inverse = lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-6)
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
