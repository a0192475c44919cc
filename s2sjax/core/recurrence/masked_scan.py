"""Runs a cell over time, with masks, in either direction: by `lax.scan`, or in parallel if the cell allows it.

Letters: B batch, T time, D input width, H state width, GH gates times H.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from s2sjax.core.backend.remat import remat
from s2sjax.core.recurrence.cells import NO_NOISE, Carry, Cell, Gates, Noise, State, Weights, project, step
from s2sjax.core.recurrence.scan_gradient import plain_scan as plain_scan
from s2sjax.core.recurrence.scan_gradient import scan as scan


def keep(mask: Bool[Array, " B"], new: PyTree[Array], old: PyTree[Array]) -> PyTree[Array]:
    """`new` where the mask is True, else `old`, leaves [B, ...]: padded steps leave the carry unchanged."""
    return jax.tree.map(lambda n, o: jnp.where(mask.reshape(mask.shape + (1,) * (n.ndim - mask.ndim)), n, o), new, old)


def reverse_sequences(xs: Shaped[Array, "B T ..."], mask: Bool[Array, "B T"]) -> Shaped[Array, "B T ..."]:
    """Reverses the real steps of each row, and leaves padding in place. Applying it twice gives xs.

    >>> reverse_sequences(jnp.array([[1, 2, 3, 0]]), jnp.array([[True, True, True, False]]))
    Array([[3, 2, 1, 0]], dtype=int32)
    """
    place, lengths = jnp.arange(mask.shape[1])[None], mask.sum(1)[:, None]
    order = jnp.where(mask, lengths - 1 - place, place)  # [B, T]
    return jnp.take_along_axis(xs, order.reshape(order.shape + (1,) * (xs.ndim - 2)), axis=1)


def run(
    cell: Cell,
    weights: Weights,
    xs: Float[Array, "B T D"],
    mask: Bool[Array, "B T"],
    carry: Carry,
    reverse: bool = False,
    noise: Noise = NO_NOISE,
    remat_policy: str = "none",
) -> tuple[Float[Array, "B T H"], Carry]:
    """Runs a cell over time -> outputs of every step, last carry.

    mask: True for real steps
    carry: arrays [B, H], the carry before the first step
    reverse: whether time runs from the last step to the first; ys stay in the order of xs
    noise: masks [T, ...] in the order of xs
    remat_policy: see s2sjax/core/backend/remat.py
    """

    def layer(weights, xs, mask, carry, noise):
        inputs = project(weights, xs.swapaxes(0, 1)), mask.swapaxes(0, 1), noise  # [T, B, GH], [T, B]
        if cell.parallel:
            ys = _in_parallel(cell, weights, *inputs, carry[0], reverse)
            carry = (ys[0 if reverse else -1],)
        else:
            one = partial(_masked_step, cell)
            carry, ys = scan(one, weights, carry, inputs, reverse=reverse, remat_policy=remat_policy)
        return ys.swapaxes(0, 1), carry

    # The products of a scanned cell are inside its steps, whose policy `scan` applies.
    policy = "none" if remat_policy == "products" and not cell.parallel else remat_policy
    return remat(policy, layer)(weights, xs, mask, carry, noise)


def _masked_step(cell: Cell, weights: Weights, shared: None, carry: Carry, inputs: tuple[Array, Array, Noise]):
    projected, mask, noise = inputs
    new = keep(mask, step(cell, weights, carry, projected, noise)[0], carry)
    return new, new[0]


def plain_step(cell: Cell, weights: Weights, shared: None, carry: Carry, projected: Gates) -> tuple[Carry, State]:
    """A cell as a `Step`, for inputs that are already projected."""
    return step(cell, weights, carry, projected)


def _in_parallel(cell: Cell, weights: Weights, projected: Array, mask: Array, noise: Noise, h: Array, reverse: bool):
    """h_t = u_t h_{t-1} + (1 - u_t) h~_t for all t in O(log T) rounds: projected [T, B, GH] -> [T, B, H].

    Two steps (a, b) and (c, d) compose to one: c (a h + b) + d = (c a) h + (c b + d). Every factor is within [0, 1], so
    products cannot overflow, and logarithms are not needed. Zoneout is u = z + (1 - z) u, and padding is u = 1.
    """
    if cell.blend is None:
        raise ValueError("the cell has parallel=True but no `blend`: define `blend`, or set parallel=False")
    u, candidate = cell.blend(weights, projected, h)
    if noise.zone is not None:
        zone = noise.zone[:, 0]  # the carry is h alone
        u = zone + (1 - zone) * u
    u = jnp.where(mask[..., None], u, 1)
    join = lambda first, then: (then[0] * first[0], then[0] * first[1] + then[1])
    factors, terms = lax.associative_scan(join, (u, (1 - u) * candidate), reverse=reverse)
    return factors * h[None] + terms
