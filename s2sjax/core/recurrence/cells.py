"""Recurrent cells as pairs of pure functions.

Letters: D input width, H state width, G gates, GH = G * H. Leading axes (batch, time) are free: `[..., D]`.

A cell has two halves. `project` computes everything that depends only on the input, for all time steps at once, as
one large product. `step` computes what depends on the carry, and runs inside the scan.

    projected = W_x x + b                        project   [..., GH]
    carry     = update(carry', projected, h')    step: the products W_h h' depend on the carry

A carry is a tuple of arrays `[..., H]` whose first element is the cell's output h.

Cells of the form h = u h' + (1 - u) h~ define `blend`, which returns u and h~. If these do not depend on h', the
recurrence is linear and runs in parallel over time: see `recurrence.run`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from s2sjax.core.backend.matmul import product
from s2sjax.core.nn.normalization import norm_by_gate
from s2sjax.core.tables import Table

Gates = Float[Array, "... GH"]
State = Float[Array, "... H"]
Carry = tuple[State, ...]
Weights = Mapping[str, Any]
"""arrays, or what stands for a matrix in `x @ matrix`, such as a `Quantised`"""
Update = Callable[[Weights, Carry, Gates, State], Carry]
Blend = Callable[[Weights, Gates, State], tuple[State, State]]


class Cell(NamedTuple):
    """A recurrent cell, as listed in `CELLS`."""

    gates: tuple[str, ...]  # names of the G blocks of `projected`, in order
    carries: int  # arrays in the carry
    shapes: Callable[[int, int], dict[str, tuple[int, ...]]]  # (D, H) -> shape of each weight
    update: Update  # weights, carry', projected, h' as the products see it -> carry
    blend: Blend | None = None  # weights, projected, h' -> u, h~, where h = u h' + (1 - u) h~
    parallel: bool = False  # `blend` does not depend on h'


class Noise(NamedTuple):
    """The noise of a step. Both masks are sampled in training; evaluation uses only the expectation of zoneout."""

    keep: State | None = None  # factor of h' before the products: variational dropout
    zone: Float[Array, "carries ... H"] | None = None  # fraction of each carry that stays unchanged: zoneout


NO_NOISE = Noise()


def start(cell: Cell, width: int, batch: tuple[int, ...], dtype) -> Carry:
    """The carry before the first step: zeros [*batch, width]."""
    return (jnp.zeros((*batch, width), dtype),) * cell.carries


def project(weights: Weights, xs: Float[Array, "... D"]) -> Gates:
    """W_x x + b for all time steps at once. A normed cell adds its b after the norm."""
    projected = product(xs, weights["input"])
    return projected + lax.broadcast_to_rank(weights["bias"], projected.ndim) if "bias" in weights else projected


def step(cell: Cell, weights: Weights, carry: Carry, projected: Gates, noise: Noise = NO_NOISE) -> tuple[Carry, State]:
    """One time step -> carry, h.

    Variational dropout (Gal and Ghahramani 2016) drops units of h' before the products, the same ones at every step.
    Zoneout (Krueger et al. 2017) keeps units of the carry unchanged: carry = z carry' + (1 - z) new.
    """
    seen = carry[0] if noise.keep is None else carry[0] * noise.keep
    new = cell.update(weights, carry, projected, seen)
    new = tuple(now.astype(old.dtype) for now, old in zip(new, carry))  # a normed cell computes in float32
    if noise.zone is not None:
        new = tuple(z * old + (1 - z) * now for z, old, now in zip(noise.zone, carry, new))
    return new, new[0]


def contributions(weights: Weights, projected: Gates, h: State) -> tuple[Gates, Gates]:
    """The contributions of the input and of the last state to the gates, W_x x + b and W_h h'.

    In a normed cell each goes through its layer norm, gate by gate: LN(W_x x) + b and LN(W_h h') (Ba et al. 2016).
    """
    recurrent = h @ weights["state"]
    if "shift" not in weights:
        return projected, recurrent
    norm = partial(norm_by_gate, width=h.shape[-1])
    return norm(projected, weights["input_scale"], weights["shift"]), norm(recurrent, weights["state_scale"])


def preactivations(weights: Weights, projected: Gates, h: State) -> Gates:
    """W_h h' + W_x x + b, the inputs of the gates' nonlinearities."""
    from_input, from_state = contributions(weights, projected, h)
    return from_input + from_state


# ------------------------------------------------------------------------- h or c through gates


def _gated(gates: int):
    return lambda d, h: {"input": (d, gates * h), "state": (h, gates * h), "bias": (gates * h,)}


def _with_vectors(shapes, **vectors: int):
    """Adds vectors to the weights of a cell: `_with_vectors(shapes, peephole=3)` adds one of length 3 H."""
    return lambda d, h: shapes(d, h) | {name: (blocks * h,) for name, blocks in vectors.items()}


def _rnn(weights: Weights, carry: Carry, projected: Gates, h: State) -> Carry:
    """h = tanh(W_h h' + W_x x + b). Elman 1990."""
    return (jnp.tanh(preactivations(weights, projected, h)),)


def _lstm(weights: Weights, carry: Carry, projected: Gates, h: State) -> Carry:
    """f, i, o = sigmoid(.); c~ = tanh(.); c = f c' + i c~; h = o tanh(c).

    Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. A normed cell reads out tanh(LN(c)).
    """
    _, c = carry
    f, i, o, candidate = jnp.split(preactivations(weights, projected, h), 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(candidate)
    read = c
    if "cell_scale" in weights:
        read = norm_by_gate(c, weights["cell_scale"], weights["cell_shift"], width=c.shape[-1])
    return jax.nn.sigmoid(o) * jnp.tanh(read), c


def _lstm_peephole(weights: Weights, carry: Carry, projected: Gates, h: State) -> Carry:
    """An LSTM whose gates see the cell: f, i = sigmoid(. + p c'); o = sigmoid(. + p c). Gers et al. 2002."""
    _, c = carry
    f, i, o, candidate = jnp.split(preactivations(weights, projected, h), 4, axis=-1)
    see_f, see_i, see_o = jnp.split(lax.broadcast_to_rank(weights["peephole"], c.ndim), 3, axis=-1)
    c = jax.nn.sigmoid(f + see_f * c) * c + jax.nn.sigmoid(i + see_i * c) * jnp.tanh(candidate)
    return jax.nn.sigmoid(o + see_o * c) * jnp.tanh(c), c


def _lstm_coupled(weights: Weights, carry: Carry, projected: Gates, h: State) -> Carry:
    """An LSTM with i = 1 - f, called CIFG by Greff et al. 2017."""
    _, c = carry
    f, o, candidate = jnp.split(preactivations(weights, projected, h), 3, axis=-1)
    keep = jax.nn.sigmoid(f)
    c = keep * c + (1 - keep) * jnp.tanh(candidate)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


# --------------------------------------------------------------------------- h = u h' + (1 - u) h~


def _blended(gates: tuple[str, ...], shapes, blend: Blend, parallel: bool = False) -> Cell:
    """A cell whose new state is u h' + (1 - u) h~."""

    def update(weights: Weights, carry: Carry, projected: Gates, h: State) -> Carry:
        u, candidate = blend(weights, projected, h)
        return (u * carry[0] + (1 - u) * candidate,)

    return Cell(gates, 1, shapes, update, blend, parallel)


def _gru_shapes(d: int, h: int) -> dict[str, tuple[int, ...]]:
    return {"input": (d, 3 * h), "state": (h, 2 * h), "candidate": (h, h), "bias": (3 * h,)}


def _gru(weights: Weights, projected: Gates, h: State) -> tuple[State, State]:
    """u, r = sigmoid(.); h~ = tanh(W (r h') + W_x x + b). Cho et al. 2014.

    The reset gate acts before the product, so the product cannot start before the gate is known.
    """
    width = h.shape[-1]
    u, r = jnp.split(jax.nn.sigmoid(projected[..., : 2 * width] + h @ weights["state"]), 2, axis=-1)
    return u, jnp.tanh(projected[..., 2 * width :] + (r * h) @ weights["candidate"])


def _gru_after(weights: Weights, projected: Gates, h: State) -> tuple[State, State]:
    """u, r = sigmoid(.); h~ = tanh(r (W h' + b_h) + W_x x + b): the reset gate acts after the product.

    One product per step instead of two, and the convention of cuDNN, PyTorch and Keras (`reset_after`).
    """
    x_sides, h_sides = (jnp.split(side, 3, axis=-1) for side in contributions(weights, projected, h))
    u, r = (jax.nn.sigmoid(x + h) for x, h in zip(x_sides[:2], h_sides[:2]))
    return u, jnp.tanh(r * (h_sides[2] + lax.broadcast_to_rank(weights["state_bias"], h.ndim)) + x_sides[2])


def _mingru(weights: Weights, projected: Gates, h: State) -> tuple[State, State]:
    """u = sigmoid(W_u x + b); h~ = W x + b. Feng et al. 2024; their z is our 1 - u."""
    u, candidate = jnp.split(projected, 2, axis=-1)
    return jax.nn.sigmoid(u), candidate


def _minlstm(weights: Weights, projected: Gates, h: State) -> tuple[State, State]:
    """f, i = sigmoid(.); u = f / (f + i); h~ = W x + b. Feng et al. 2024.

    f / (f + i) = sigmoid(log f - log i), which is finite even if both gates are closed.
    """
    f, i, candidate = jnp.split(projected, 3, axis=-1)
    return jax.nn.sigmoid(jax.nn.log_sigmoid(f) - jax.nn.log_sigmoid(i)), candidate


def _from_inputs(gates: int):
    return lambda d, h: {"input": (d, gates * h), "bias": (gates * h,)}


# ------------------------------------------------------------------------------- the table


def _normed(shapes, **vectors: int):
    """Adds layer norms to the weights of a cell: scales, and the bias after the norm as `shift`."""

    def normed(d: int, h: int) -> dict[str, tuple[int, ...]]:
        plain = shapes(d, h)
        bias = plain.pop("bias")
        return plain | {"shift": bias, "input_scale": bias, "state_scale": bias}

    return _with_vectors(normed, **vectors)


_LSTM = ("forget", "input", "output", "candidate")
_GRU = ("update", "reset", "candidate")

CELLS = Table({
    "rnn": Cell(("candidate",), 1, _gated(1), _rnn),
    "lstm": Cell(_LSTM, 2, _gated(4), _lstm),
    "gru": _blended(_GRU, _gru_shapes, _gru),
    "lstm_peephole": Cell(_LSTM, 2, _with_vectors(_gated(4), peephole=3), _lstm_peephole),
    "lstm_coupled": Cell(("forget", "output", "candidate"), 2, _gated(3), _lstm_coupled),
    "gru_after": _blended(_GRU, _with_vectors(_gated(3), state_bias=1), _gru_after),
    "rnn_norm": Cell(("candidate",), 1, _normed(_gated(1)), _rnn),
    "lstm_norm": Cell(_LSTM, 2, _normed(_gated(4), cell_scale=1, cell_shift=1), _lstm),
    "gru_norm": _blended(_GRU, _normed(_gated(3), state_bias=1), _gru_after),
    "mingru": _blended(("update", "candidate"), _from_inputs(2), _mingru, parallel=True),
    "minlstm": _blended(("forget", "input", "candidate"), _from_inputs(3), _minlstm, parallel=True),
})  # fmt: skip
