"""Matrix products: of many rows or few, and of bfloat16 operands with float32 results."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from s2sjax.core.backend import device
from s2sjax.core.backend.quantization import Quantised


def at_least_float32(dtype):
    """The dtype of softmax, norms, logits and losses: float32, or float64 for float64 inputs."""
    return jnp.promote_types(dtype, jnp.float32)


def product(x: Float[Array, "... D"], kernel: Any) -> Float[Array, "... V"]:
    """x W for a matrix [D, V], or what stands for it in `x @ matrix`."""
    if x.ndim <= 2 or not device.multiplies_rows():
        return x @ kernel
    return (_rows(x) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def summed_products(xs: Float[Array, "*shape D"], ys: Float[Array, "*shape V"]) -> Float[Array, "D V"]:
    """The sum of x^T y over all leading axes. If ys is the gradient of xs W, this is the gradient of W."""
    if device.multiplies_rows():
        xs, ys = _rows(xs), _rows(ys)
    return jnp.einsum("...i,...o->io", xs, ys)


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def product_in_float32(
    x: Float[Array, "*shape D"], kernel: Float[Array, "D V"] | Quantised
) -> Float[Array, "*shape V"]:
    """x W with float32 accumulation and result for any dtype.

    The gradient is rounded to the operands' dtype before it is multiplied. Otherwise JAX would multiply a float32
    gradient by a bfloat16 matrix, which XLA computes in TF32, at a fraction of the speed.
    """
    if isinstance(kernel, Quantised):
        return x.astype(at_least_float32(x.dtype)) @ kernel
    return _dot(x, kernel) if x.dtype == at_least_float32(x.dtype) else _narrow_dot(x, kernel)


def product_with_table(x: Float[Array, "*shape D"], table: Float[Array, "V D"] | Quantised) -> Float[Array, "*shape V"]:
    """x W^T in float32 for a table W.

    A CPU copies the second operand of a product into another layout. For few rows, that costs as much as the product:
    the table then comes first and is read as it is stored.
    """
    if isinstance(table, Quantised):
        return table.as_table(x.astype(at_least_float32(x.dtype)))
    rows = _rows(x)
    if not device.reads_table_as_stored(len(rows)):
        return product_in_float32(x, table.T)
    # The barrier keeps XLA from transposing the product back.
    transposed = jax.lax.optimization_barrier(product_in_float32(table, rows.T))
    return transposed.T.reshape(*x.shape[:-1], len(table))


def _dot(x: Array, kernel: Array) -> Array:
    if x.ndim > 2 and device.multiplies_rows():
        return _dot(_rows(x), kernel).reshape(*x.shape[:-1], kernel.shape[-1])
    return jnp.dot(x, kernel, preferred_element_type=at_least_float32(x.dtype))


@jax.custom_vjp
def _narrow_dot(x: Array, kernel: Array) -> Array:
    return _dot(x, kernel)


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _dot(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = saved
    gradient = gradient.astype(x.dtype)
    return jnp.dot(gradient, kernel.T), jnp.dot(_rows(x).T, _rows(gradient))


_narrow_dot.defvjp(_forward, _backward)
