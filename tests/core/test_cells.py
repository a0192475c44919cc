"""Each cell against its weight counts, its equation, and two libraries' own cells with copied weights."""

from functools import partial

import flax.linen as nn
import jax
import numpy as np
import pytest

from s2sjax.core import cells

ROWS, TIME, INPUTS, WIDTH = 3, 6, 4, 5
BAR = 1e-5

every_cell = pytest.mark.parametrize("name", cells.CELLS)


def weights_of(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = cells.CELLS[name].shapes(INPUTS, WIDTH)
    return {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}


def inputs_of(name: str, seed: int = 1) -> tuple[np.ndarray, cells.Carry]:
    """xs [B, T, D] and a carry that is not zero."""
    rng = np.random.default_rng(seed)
    carry = tuple(rng.normal(size=(ROWS, WIDTH)).astype(np.float32) for _ in range(cells.CELLS[name].carries))
    return rng.normal(size=(ROWS, TIME, INPUTS)).astype(np.float32), carry


@partial(jax.jit, static_argnames="name")
def unrolled(name: str, weights, xs, carry):
    """Every output [B, T, H] and the last carry, by the two halves of a cell."""
    projected = cells.project(weights, xs.swapaxes(0, 1))
    carry, ys = jax.lax.scan(partial(cells.step, cells.CELLS[name], weights), carry, projected)
    return ys.swapaxes(0, 1), carry


@pytest.mark.parametrize(
    "name, inputs, width, count",
    [
        ("rnn", 1, 2, 8),
        ("lstm", 1, 100, 40_800),
        ("lstm", 100, 100, 80_400),
        ("lstm", 128, 128, 131_584),
        ("lstm", 74, 256, 338_944),
        ("lstm", 78, 256, 343_040),
        ("gru", 100, 100, 60_300),
    ],
)
def test_weight_counts(name, inputs, width, count):
    """G (D + H + 1) H weights, with G = 1, 4 and 3 gates."""
    assert sum(int(np.prod(shape)) for shape in cells.CELLS[name].shapes(inputs, width).values()) == count


@every_cell
def test_a_carry_starts_at_zero_and_its_first_member_is_the_output(name):
    cell = cells.CELLS[name]
    carry = cells.start(cell, WIDTH, (ROWS,), np.float32)
    assert [part.shape for part in carry] == [(ROWS, WIDTH)] * cell.carries
    assert all((part == 0).all() for part in carry)
    weights, (xs, _) = weights_of(name), inputs_of(name)
    ys, last = unrolled(name, weights, xs, carry)
    np.testing.assert_array_equal(ys[:, -1], last[0])


# -------------------------------------------------------------------------- the equations, in numpy


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rnn_step(w, x, h):
    return (np.tanh(h @ w["state"] + x @ w["input"] + w["bias"]),)


def lstm_step(w, x, h, c):
    f, i, o, candidate = np.split(h @ w["state"] + x @ w["input"] + w["bias"], 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
    return sigmoid(o) * np.tanh(c), c


def gru_step(w, x, h):
    (xu, xr, xh), (bu, br, bh), (hu, hr) = (
        np.split(w["input"], 3, 1),
        np.split(w["bias"], 3),
        np.split(w["state"], 2, 1),
    )
    u, r = sigmoid(h @ hu + x @ xu + bu), sigmoid(h @ hr + x @ xr + br)
    candidate = np.tanh((r * h) @ w["candidate"] + x @ xh + bh)
    return (u * h + (1 - u) * candidate,)


@every_cell
def test_a_cell_is_its_equation(name):
    step = {"rnn": rnn_step, "lstm": lstm_step, "gru": gru_step}[name]
    weights, (xs, carry) = weights_of(name), inputs_of(name)
    ys, last = unrolled(name, weights, xs, carry)
    for t in range(TIME):
        carry = step(weights, xs[:, t], *carry)
        np.testing.assert_allclose(ys[:, t], carry[0], atol=BAR)
    jax.tree.map(partial(np.testing.assert_allclose, atol=BAR), last, carry)


# --------------------------------------------------------------------------------- Flax's own cells


def in_flax(cell: nn.RNNCellBase, params, xs, carry):
    return jax.jit(partial(nn.RNN(cell, return_carry=True).apply, {"params": {"cell": params}}))(
        xs, initial_carry=carry
    )


def test_rnn_equals_flax():
    w, (xs, carry) = weights_of("rnn"), inputs_of("rnn")
    params = {"i": {"kernel": w["input"], "bias": w["bias"]}, "h": {"kernel": w["state"]}}
    last, ys = in_flax(nn.SimpleCell(WIDTH), params, xs, carry[0])
    ours, (h,) = unrolled("rnn", w, xs, carry)
    np.testing.assert_allclose(ours, ys, atol=BAR)
    np.testing.assert_allclose(h, last, atol=BAR)


def test_lstm_equals_flax():
    """Flax calls our candidate g, and keeps (c, h)."""
    w, (xs, (h, c)) = weights_of("lstm"), inputs_of("lstm")
    params = {}
    for gate, kernel, recurrent, bias in zip(
        "fiog", *(np.split(w[key], 4, axis=-1) for key in ("input", "state", "bias"))
    ):
        params |= {f"i{gate}": {"kernel": kernel}, f"h{gate}": {"kernel": recurrent, "bias": bias}}
    last, ys = in_flax(nn.OptimizedLSTMCell(WIDTH), params, xs, (c, h))
    ours, carry = unrolled("lstm", w, xs, (h, c))
    np.testing.assert_allclose(ours, ys, atol=BAR)
    jax.tree.map(partial(np.testing.assert_allclose, atol=BAR), carry, last[::-1])


def test_gru_equals_flax_where_the_conventions_meet():
    """Flax resets after the product, r (W h'), we before it, W (r h'): the same where W is diagonal, not elsewhere."""
    w, (xs, carry) = weights_of("gru"), inputs_of("gru")
    diagonal = w | {"candidate": np.diag(np.diag(w["candidate"]))}

    def flax(w):
        (iz, ir, i_n), (bz, br, bn) = np.split(w["input"], 3, axis=1), np.split(w["bias"], 3)
        hz, hr = np.split(w["state"], 2, axis=1)
        params = {
            name: {"kernel": kernel, "bias": bias}
            for name, kernel, bias in zip(("iz", "ir", "in"), (iz, ir, i_n), (bz, br, bn))
        }
        params |= {
            "hz": {"kernel": hz},
            "hr": {"kernel": hr},
            "hn": {"kernel": w["candidate"], "bias": np.zeros(WIDTH)},
        }
        return in_flax(nn.GRUCell(WIDTH), params, xs, carry[0])[1]

    np.testing.assert_allclose(unrolled("gru", diagonal, xs, carry)[0], flax(diagonal), atol=BAR)
    assert np.abs(unrolled("gru", w, xs, carry)[0] - flax(w)).max() > 0.1


# ------------------------------------------------------------------------------------ gradient flow


def test_the_gradient_along_an_lstm_cell_is_the_product_of_its_forget_gates():
    """dc_T / dc_0 = f_T ... f_1, where the path through h is cut."""
    weights, (xs, carry) = weights_of("lstm"), inputs_of("lstm")
    xs, carry = xs[0], tuple(part[0] for part in carry)  # one sentence

    def last_cell(c):
        def body(carry, projected):
            h, c = jax.lax.stop_gradient(carry[0]), carry[1]
            recurrent = h @ weights["state"]
            forget = jax.nn.sigmoid((projected + recurrent)[:WIDTH])
            return cells.CELLS["lstm"].update(weights, (h, c), projected, recurrent), forget

        (_, c), forgets = jax.lax.scan(body, (carry[0], c), cells.project(weights, xs))
        return c, forgets

    jacobian, forgets = jax.jit(jax.jacrev(last_cell, has_aux=True))(carry[1])
    np.testing.assert_allclose(jacobian, np.diag(np.prod(forgets, axis=0)), atol=1e-7)
    assert np.diag(jacobian).max() > 1e-3
