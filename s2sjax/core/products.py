"""Matrix products in two precisions: bfloat16 operands, float32 results."""

import jax
import jax.numpy as jnp
from jax import Array

from s2sjax.core.attention import at_least_float32


def product_in_float32(x: Array, kernel: Array) -> Array:
    """x W with float32 accumulation and result, whatever the type of its operands: [..., D] @ [D, V] -> [..., V].

    The gradient is rounded to the operands' type before it is multiplied. Left to itself JAX would multiply a float32
    gradient with a bfloat16 matrix, which XLA computes in TF32, at a fraction of the speed.
    """
    return _dot(x, kernel) if x.dtype == at_least_float32(x.dtype) else _narrow_dot(x, kernel)


def _dot(x: Array, kernel: Array) -> Array:
    return jnp.dot(x, kernel, preferred_element_type=at_least_float32(x.dtype))


@jax.custom_vjp
def _narrow_dot(x: Array, kernel: Array) -> Array:
    return _dot(x, kernel)


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _dot(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = saved
    gradient = gradient.astype(x.dtype)
    rows = lambda array: array.reshape(-1, array.shape[-1])
    return jnp.dot(gradient, kernel.T), jnp.dot(rows(x).T, rows(gradient))


_narrow_dot.defvjp(_forward, _backward)
