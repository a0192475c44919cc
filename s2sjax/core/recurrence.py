"""A cell run over time: `lax.scan` with masks, in either direction.

Letters: B batch, T time, D input width, H state width, G gates.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from s2sjax.core.cells import Carry, Cell, Weights, project, step


def unroll() -> int:
    """Steps of a scan that are compiled as one: accelerators gain from 8, the CPU only compiles longer."""
    return 1 if jax.default_backend() == "cpu" else 8


def keep(mask: Array, new, old):
    """Padded steps leave the carry as it was: `new` where `mask` [B] holds, else `old`."""
    return jax.tree.map(lambda n, o: jnp.where(mask.reshape(mask.shape + (1,) * (n.ndim - mask.ndim)), n, o), new, old)


def run(
    cell: Cell, weights: Weights, xs: Array, mask: Array, carry: Carry, reverse: bool = False
) -> tuple[Array, Carry]:
    """Outputs of every step and the last carry: xs [B, T, D], mask [B, T] -> ys [B, T, H], carry.

    With `reverse` time runs from the last step to the first; ys stay in the order of xs.
    """
    projected = project(weights, xs.swapaxes(0, 1))  # [T, B, G*H]
    # A cell whose update holds a product of its own (the GRU's candidate) takes the plain road.
    scan = _scan if "candidate" in weights else _scan_with_late_weight_gradient
    ys, carry = scan(cell, reverse, weights, projected, mask.swapaxes(0, 1), carry)
    return ys.swapaxes(0, 1), carry


def _scan(cell: Cell, reverse: bool, weights: Weights, projected: Array, mask: Array, carry: Carry):
    def body(carry, inputs):
        projected, mask = inputs
        new = keep(mask, step(cell, weights, carry, projected)[0], carry)
        return new, new[0]

    carry, ys = lax.scan(body, carry, (projected, mask), reverse=reverse, unroll=unroll())
    return ys, carry


# ---------------------------------------------------------------- the late weight gradient
#
# The gradient of W_h is a sum over time of h_{t-1}^T g_t. Differentiated naively, the scan adds one
# [H, G*H] product a step; kept until the scan is over, the same sum is one large product. 5 to 13%
# of a training step on the CPU.


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scan_with_late_weight_gradient(cell, reverse, weights, projected, mask, carry):
    return _scan(cell, reverse, weights, projected, mask, carry)


def _forward(cell, reverse, weights, projected, mask, carry):
    small = {name: value for name, value in weights.items() if name not in ("input", "state", "bias")}

    def body(carry, inputs):
        projected, mask = inputs
        recurrent = carry[0] @ weights["state"]
        update = lambda *args: keep(mask, cell.update(*args), args[1])
        new, pull = jax.vjp(update, small, carry, projected, recurrent)
        return new, (new[0], carry[0], pull)

    carry, (ys, previous, pulls) = lax.scan(body, carry, (projected, mask), reverse=reverse, unroll=unroll())
    return (ys, carry), (weights, previous, pulls)


def _backward(cell, reverse, residuals, gradients):
    weights, previous, pulls = residuals
    d_ys, d_carry = gradients

    def body(d_carry, inputs):
        d_y, pull = inputs
        d_small, d_old, d_projected, d_recurrent = pull((d_carry[0] + d_y, *d_carry[1:]))
        d_old = (d_old[0] + d_recurrent @ weights["state"].T, *d_old[1:])
        return d_old, (d_small, d_projected, d_recurrent)

    d_carry, (d_small, d_projected, d_recurrent) = lax.scan(
        body, d_carry, (d_ys, pulls), reverse=not reverse, unroll=unroll()
    )
    d_weights = {name: jnp.zeros_like(value) for name, value in weights.items()}
    d_weights |= {name: value.sum(0) for name, value in d_small.items()}
    d_weights["state"] = jnp.einsum("tbh,tbg->hg", previous, d_recurrent)
    return d_weights, d_projected, None, d_carry


_scan_with_late_weight_gradient.defvjp(_forward, _backward)
