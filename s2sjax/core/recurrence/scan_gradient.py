"""`lax.scan` with a faster gradient of the weight matrices that every step uses.

Worked example: h_t = tanh(a_t), a_t = h_{t-1} W, for t = 1, 2, 3. With g_t the gradient of a_t [B, H], that of W is

    dW = h_0^T g_1 + h_1^T g_2 + h_2^T g_3

JAX's derivative of `lax.scan` adds one small product per step to a running sum. Here the factors are stacked over time:
X = [h_0, h_1, h_2] and G = [g_1, g_2, g_3], both [3, B, H]. After the scan, dW = X^T G is one large product over all
3 B rows, which is twice as fast. Autodiff provides both stacks:

    X    each step returns the factor of the matrix as another output, a *tap*, which the scan stacks
    G    the scan gets another input, zeros [3, B, H], and each step computes a_t = h_{t-1} W + zeros_t; the gradient
         of zeros_t is g_t, which the backward scan stacks

Within the scan W itself is a constant, so that no running sum is computed. `_Tapped` replaces each matrix to do this in
`x @ matrix`, so that steps are written as usual.

Letters: B batch, D input width, H state width.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from s2sjax.core.backend import device
from s2sjax.core.backend.batch_sharding import gather_for_loop
from s2sjax.core.backend.matmul import summed_products
from s2sjax.core.backend.remat import remat

Step = Callable[[PyTree, PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]
"""step(weights, shared, carry, x) -> carry, y"""


def plain_scan(step: Step, weights, carry, xs, shared=None, reverse: bool = False, remat_policy: str = "none"):
    """`lax.scan` of step(weights, shared, carry, x) -> carry, y over the leading axis of xs.

    `remat_policy` is that of each step: see s2sjax/core/backend/remat.py.
    """
    body = remat(remat_policy, partial(step, weights, shared), looped=True)
    return lax.scan(body, carry, xs, reverse=reverse, unroll=device.scan_unroll())


def scan(step: Step, weights, carry, xs, shared=None, reverse: bool = False, remat_policy: str = "none"):
    """Computes `plain_scan`, with the gradient of each matrix in `weights` as one product after the backward scan.

    A step may multiply by each matrix at most once, as `x @ matrix`, outside of any vmap. It must not close over traced
    arrays: pass constants that need gradients as `shared`.
    """
    return _late_scan(step, reverse, remat_policy, weights, carry, xs, shared)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _late_scan(step, reverse, remat_policy, weights, carry, xs, shared):
    return plain_scan(step, gather_for_loop(weights), carry, xs, shared, reverse)


def _forward(step, reverse, remat_policy, weights, carry, xs, shared):
    """Runs the scan with taps: jax.vjp differentiates everything but the matrices, which are closed over."""
    leaves, structure = jax.tree.flatten(gather_for_loop(weights))
    matrices = {i: leaf for i, leaf in enumerate(leaves) if leaf.ndim == 2}
    vectors = {i: leaf for i, leaf in enumerate(leaves) if leaf.ndim != 2}

    def tapped_step(vectors, shared, carry, inputs):
        x, zeros = inputs
        taps: dict[int, Array] = {}
        tapped = {i: _Tapped(i, matrix, zeros.get(i), taps) for i, matrix in matrices.items()}
        both = tapped | vectors
        carry, y = step(jax.tree.unflatten(structure, [both[i] for i in range(len(leaves))]), shared, carry, x)
        return carry, (y, taps)

    def tapped_scan(vectors, shared, carry, xs, zeros):
        policy = device.scan_remat(remat_policy)
        carry, (ys, taps) = plain_scan(tapped_step, vectors, carry, (xs, zeros), shared, reverse, policy)
        return (carry, ys), taps

    first = jax.tree.map(lambda leaf: leaf[0], xs)
    _, (_, taps) = jax.eval_shape(tapped_step, vectors, shared, carry, (first, {}))
    steps = jax.tree.leaves(xs)[0].shape[0]
    zeros = {
        i: jnp.zeros((steps, *tap.shape[:-1], matrices[i].shape[1]), jnp.promote_types(tap.dtype, matrices[i].dtype))
        for i, tap in taps.items()
    }
    outputs, pull, taps = jax.vjp(tapped_scan, vectors, shared, carry, xs, zeros, has_aux=True)
    return outputs, (pull, taps, weights)


def _backward(step, reverse, remat_policy, residuals, gradients):
    """Finds all g_t by the backward scan, then the gradient of each matrix as one product X^T G."""
    pull, taps, weights = residuals
    d_vectors, d_shared, d_carry, d_xs, d_products = pull(gradients)
    leaves, structure = jax.tree.flatten(weights)
    d_leaves = {i: jnp.zeros_like(leaf) for i, leaf in enumerate(leaves)} | d_vectors
    for i, x in taps.items():
        d_leaves[i] = summed_products(x, d_products[i]).astype(leaves[i].dtype)
    d_weights = jax.tree.unflatten(structure, [d_leaves[i] for i in range(len(leaves))])
    return d_weights, d_carry, d_xs, d_shared


_late_scan.defvjp(_forward, _backward)


@jax.custom_vjp
def _plus_zero(product: Array, zero: Array) -> Array:
    """product + zero, without reading the zero, which exists only for its gradient."""
    return product


_plus_zero.defvjp(lambda product, zero: (product, None), lambda _, gradient: (gradient, gradient))


class _Tapped:
    """A matrix in `x @ matrix` that records x in `taps` and adds a zero to the product.

    number: the index of the matrix among the leaves of the weights, its key in `taps`
    zero: None to find only the shapes of the taps
    taps: receives the factor x
    """

    __array_priority__ = 1000  # makes NumPy call __rmatmul__ for `x @ tapped`

    def __init__(self, number: int, matrix: Float[Array, "D H"], zero: Array | None, taps: dict[int, Array]):
        self.number, self.matrix, self.zero, self.taps = number, matrix, zero, taps

    def __rmatmul__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B H"]:
        if self.number in self.taps:
            raise ValueError("a step of a scan multiplies twice by the same matrix: use `plain_scan`")
        self.taps[self.number] = x
        product = x @ self.matrix
        return product if self.zero is None else _plus_zero(product, self.zero)
