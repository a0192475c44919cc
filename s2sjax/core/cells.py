"""Recurrent cells as pairs of pure functions.

Letters: D input width, H state width. Leading axes (batch, time) are free: `[..., D]`.

A cell has two halves. `project` is all that depends on the input alone, done for every time step
at once as one large product; `step` is what must wait for the carry, and is all that a scan runs.

    projected = W_x x + b                        project   [..., G*H], G gates
    recurrent = W_h h'                           the product that waits for the carry
    carry     = update(carry', projected, recurrent)

A carry is a tuple of arrays `[..., H]` whose first member is the cell's output h.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

Carry = tuple[Array, ...]
Weights = Mapping[str, Array]


class Cell(NamedTuple):
    """One row of the table of cells."""

    carries: int  # arrays in the carry
    shapes: Callable[[int, int], dict[str, tuple[int, ...]]]  # (D, H) -> shape of each weight
    update: Callable[[Weights, Carry, Array, Array], Carry]


def start(cell: Cell, width: int, batch: tuple[int, ...], dtype) -> Carry:
    """The carry before the first step: zeros."""
    return (jnp.zeros((*batch, width), dtype),) * cell.carries


def project(weights: Weights, xs: Array) -> Array:
    """W_x x + b for all time steps at once: [..., D] -> [..., G*H]."""
    return xs @ weights["input"] + weights["bias"]


def step(cell: Cell, weights: Weights, carry: Carry, projected: Array) -> tuple[Carry, Array]:
    """One time step: (carry, [..., G*H]) -> (carry, h)."""
    carry = cell.update(weights, carry, projected, carry[0] @ weights["state"])
    return carry, carry[0]


# ------------------------------------------------------------------------------- the cells


def _gated(gates: int):
    return lambda d, h: {"input": (d, gates * h), "state": (h, gates * h), "bias": (gates * h,)}


def _rnn(weights: Weights, carry: Carry, projected: Array, recurrent: Array) -> Carry:
    """h = tanh(W_h h' + W_x x + b). Elman 1990."""
    return (jnp.tanh(projected + recurrent),)


def _lstm(weights: Weights, carry: Carry, projected: Array, recurrent: Array) -> Carry:
    """f, i, o = sigmoid(.); c~ = tanh(.); c = f c' + i c~; h = o tanh(c).

    Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. Gates lie in the order f, i, o, c~.
    """
    _, c = carry
    f, i, o, candidate = jnp.split(projected + recurrent, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(candidate)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru_shapes(d: int, h: int) -> dict[str, tuple[int, ...]]:
    return {"input": (d, 3 * h), "state": (h, 2 * h), "candidate": (h, h), "bias": (3 * h,)}


def _gru(weights: Weights, carry: Carry, projected: Array, recurrent: Array) -> Carry:
    """u, r = sigmoid(.); h~ = tanh(W (r h') + W_x x + b); h = u h' + (1 - u) h~. Cho et al. 2014.

    The reset gate acts before the product, which therefore has to wait for it.
    """
    (h,) = carry
    width = h.shape[-1]
    u, r = jnp.split(jax.nn.sigmoid(projected[..., : 2 * width] + recurrent), 2, axis=-1)
    candidate = jnp.tanh(projected[..., 2 * width :] + (r * h) @ weights["candidate"])
    return (u * h + (1 - u) * candidate,)


CELLS = {
    "rnn": Cell(1, _gated(1), _rnn),
    "lstm": Cell(2, _gated(4), _lstm),
    "gru": Cell(1, _gru_shapes, _gru),
}
