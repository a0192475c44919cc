"""A cell run over time, with masks, in either direction: by `lax.scan`, or in parallel if the cell allows it.

Letters: B batch, T time, D input width, H state width, G gates.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from s2sjax.core import device
from s2sjax.core.cells import NO_NOISE, Carry, Cell, Noise, Weights, project, step
from s2sjax.core.products import summed_products
from s2sjax.core.remat import remat
from s2sjax.core.rows import gather_for_loop

Step = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
"""step(weights, shared, carry, x) -> carry, y"""


def keep(mask: Array, new, old):
    """Padded steps leave the carry unchanged: `new` where `mask` [B] is True, else `old`."""
    return jax.tree.map(lambda n, o: jnp.where(mask.reshape(mask.shape + (1,) * (n.ndim - mask.ndim)), n, o), new, old)


def reverse_sequences(xs: Array, mask: Array) -> Array:
    """The real steps of each row from the last to the first, padding where it was: a b c _ -> c b a _.

    xs [B, T, ...], mask [B, T] with padding at the end. It is its own inverse.
    """
    place, lengths = jnp.arange(mask.shape[1]), mask.sum(1)[:, None]
    order = jnp.where(mask, lengths - 1 - place, place)  # [B, T]
    return jnp.take_along_axis(xs, order.reshape(order.shape + (1,) * (xs.ndim - 2)), axis=1)


def run(
    cell: Cell,
    weights: Weights,
    xs: Array,
    mask: Array,
    carry: Carry,
    reverse: bool = False,
    noise: Noise = NO_NOISE,
    remat_policy: str = "none",
) -> tuple[Array, Carry]:
    """Outputs of every step and the last carry: xs [B, T, D], mask [B, T] -> ys [B, T, H], carry.

    With `reverse` time runs from the last step to the first; ys stay in the order of xs. `noise` has the time in
    front, [T, ...], also in the order of xs. `remat_policy`: for the backward pass, see s2sjax/core/remat.py.
    """

    def layer(weights, xs, mask, carry, noise):
        inputs = project(weights, xs.swapaxes(0, 1)), mask.swapaxes(0, 1), noise  # [T, B, G*H], [T, B]
        if cell.parallel:
            ys = _in_parallel(cell, weights, *inputs, carry[0], reverse)
            carry = (ys[0 if reverse else -1],)
        else:
            one = partial(_masked_step, cell)
            carry, ys = scan(one, weights, carry, inputs, reverse=reverse, remat_policy=remat_policy)
        return ys.swapaxes(0, 1), carry

    # The products of a cell that scans are inside its steps.
    policy = "none" if remat_policy == "products" and not cell.parallel else remat_policy
    return remat(policy, layer)(weights, xs, mask, carry, noise)


def _masked_step(cell: Cell, weights: Weights, shared: None, carry: Carry, inputs: tuple[Array, Array, Noise]):
    projected, mask, noise = inputs
    new = keep(mask, step(cell, weights, carry, projected, noise)[0], carry)
    return new, new[0]


def plain_step(cell: Cell, weights: Weights, shared: None, carry: Carry, projected: Array) -> tuple[Carry, Array]:
    """A cell as a `Step`, for projections of more than the input."""
    return step(cell, weights, carry, projected)


def _in_parallel(cell: Cell, weights: Weights, projected: Array, mask: Array, noise: Noise, h: Array, reverse: bool):
    """h_t = u_t h_{t-1} + (1 - u_t) h~_t of all t in O(log T) rounds: [T, B, G*H] -> [T, B, H].

    Two steps a, b and c, d are one: c (a h + b) + d = (c a) h + (c b + d). Every factor is within [0, 1], so
    products only decrease, and logarithms are not needed. Zoneout is u = z + (1 - z) u, and padding is u = 1.
    """
    assert cell.blend is not None, "a cell that runs in parallel requires `blend`"
    u, candidate = cell.blend(weights, projected, h)
    if noise.zone is not None:
        zone = noise.zone[:, 0]  # its carry is h alone
        u = zone + (1 - zone) * u
    u = jnp.where(mask[..., None], u, 1)
    join = lambda first, then: (then[0] * first[0], then[0] * first[1] + then[1])
    factors, terms = lax.associative_scan(join, (u, (1 - u) * candidate), reverse=reverse)
    return factors * h + terms


# ---------------------------------------------------------------- the late weight gradient
#
# The gradient of a weight that every step uses is a sum over time of x_t^T g_t. Differentiated naively, the scan adds
# one small product a step to a running sum; kept until the scan is over, the same sum is one large product, which runs
# at twice the speed. So the backward scan only finds each g_t, as the gradient of a zero that is added to the product.


def plain_scan(step: Step, weights, carry, xs, shared=None, reverse: bool = False, remat_policy: str = "none"):
    """`lax.scan` of step(weights, shared, carry, x) -> carry, y over the leading axis of xs.

    `remat_policy`: of each step, for the backward pass, see s2sjax/core/remat.py.
    """
    body = remat(remat_policy, partial(step, weights, shared), looped=True)
    return lax.scan(body, carry, xs, reverse=reverse, unroll=device.scan_unroll())


def scan(step: Step, weights, carry, xs, shared=None, reverse: bool = False, remat_policy: str = "none"):
    """The same as `plain_scan`, forward and backward, with the gradients of the matrices in `weights` summed late.

    A step multiplies by a matrix at most once, as `x @ weight`, outside of any vmap; it closes over no traced
    value: what does not change from step to step, and has a gradient, is in `shared`.
    """
    return _late_scan(step, reverse, remat_policy, weights, carry, xs, shared)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _late_scan(step, reverse, remat_policy, weights, carry, xs, shared):
    return plain_scan(step, gather_for_loop(weights), carry, xs, shared, reverse)


def _forward(step, reverse, remat_policy, weights, carry, xs, shared):
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
    """product + zero, without reading the zero: what counts is its gradient."""
    return product


_plus_zero.defvjp(lambda product, zero: (product, None), lambda _, gradient: (gradient, gradient))


class _Tapped:
    """A matrix that records what it is multiplied with and adds a zero to the product."""

    __array_priority__ = 1000  # NumPy leaves `x @ tapped` to it

    def __init__(self, number: int, matrix: Array, zero: Array | None, taps: dict[int, Array]):
        self.number, self.matrix, self.zero, self.taps = number, matrix, zero, taps

    def __rmatmul__(self, x: Array) -> Array:
        assert self.number not in self.taps, "a step of a scan multiplies twice by the same matrix"
        self.taps[self.number] = x
        product = x @ self.matrix
        return product if self.zero is None else _plus_zero(product, self.zero)
