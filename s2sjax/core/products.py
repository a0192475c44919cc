"""Matrix products in two precisions: bfloat16 operands, float32 results; and those of a few rows."""

import jax
import jax.numpy as jnp
from jax import Array

from s2sjax.core import device
from s2sjax.core.attention import at_least_float32
from s2sjax.core.precision import Quantised


def product_in_float32(x: Array, kernel: Array | Quantised) -> Array:
    """x W with float32 accumulation and result, whatever the type of its operands: [..., D] @ [D, V] -> [..., V].

    The gradient is rounded to the operands' type before it is multiplied. Left to itself JAX would multiply a float32
    gradient with a bfloat16 matrix, which XLA computes in TF32, at a fraction of the speed.
    """
    if isinstance(kernel, Quantised):
        return x.astype(at_least_float32(x.dtype)) @ kernel
    return _dot(x, kernel) if x.dtype == at_least_float32(x.dtype) else _narrow_dot(x, kernel)


def product_with_table(x: Array, table: Array | Quantised) -> Array:
    """x W^T in float32, W stored as a table [V, D]: [..., D] -> [..., V].

    A CPU copies the second operand of a product into another layout. Of a few rows, that costs as much as the product:
    there the table comes first, and is read as it is stored.
    """
    if isinstance(table, Quantised):
        return table.as_table(x.astype(at_least_float32(x.dtype)))
    rows = x.reshape(-1, x.shape[-1])
    if not device.reads_table_as_stored(len(rows)):
        return product_in_float32(x, table.T)
    # The barrier keeps XLA from transposing the product back.
    transposed = jax.lax.optimization_barrier(product_in_float32(table, rows.T))
    return transposed.T.reshape(*x.shape[:-1], len(table))


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
