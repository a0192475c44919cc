"""Each cell against its weight counts, its equation, and two libraries' own cells with copied weights."""

import typing
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from jax.test_util import check_grads

from s2sjax import layers
from s2sjax.config.models.recurrent_settings import CellName
from s2sjax.core.recurrence import cells

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


def test_a_configuration_can_name_every_cell():
    (choices,) = typing.get_args(CellName)[1:]
    assert choices.table is cells.CELLS


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
        ("lstm_peephole", 100, 100, 80_400 + 3 * 100),
        ("lstm_coupled", 100, 100, 80_400 * 3 // 4),
        ("gru_after", 100, 100, 60_300 + 100),
        ("rnn_norm", 1, 2, 8 + 2 * 2),
        ("lstm_norm", 100, 100, 80_400 + 2 * 400 + 2 * 100),
        ("gru_norm", 100, 100, 60_300 + 100 + 2 * 300),
        ("mingru", 100, 100, 2 * 101 * 100),
        ("minlstm", 100, 100, 3 * 101 * 100),
    ],
)
def test_weight_counts(name, inputs, width, count):
    """G (D + H + 1) H weights, and what a variant adds; without W_h, G (D + 1) H."""
    weights = jax.eval_shape(layers.cell_weights(name, inputs, width, np.float32).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(weights)) == count


@every_cell
def test_a_gate_is_a_block_of_the_projection(name):
    """A decoder that adds a context to the projection needs to know how wide it is."""
    cell = cells.CELLS[name]
    assert cell.shapes(INPUTS, WIDTH)["input"] == (INPUTS, len(cell.gates) * WIDTH)
    assert not cell.parallel or cell.blend is not None


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


def lstm_peephole_step(w, x, h, c):
    f, i, o, candidate = np.split(h @ w["state"] + x @ w["input"] + w["bias"], 4, axis=-1)
    see_f, see_i, see_o = np.split(w["peephole"], 3)
    c = sigmoid(f + see_f * c) * c + sigmoid(i + see_i * c) * np.tanh(candidate)
    return sigmoid(o + see_o * c) * np.tanh(c), c


def lstm_coupled_step(w, x, h, c):
    f, o, candidate = np.split(h @ w["state"] + x @ w["input"] + w["bias"], 3, axis=-1)
    c = sigmoid(f) * c + (1 - sigmoid(f)) * np.tanh(candidate)
    return sigmoid(o) * np.tanh(c), c


def gru_after_step(w, x, h):
    (xu, xr, xn), (hu, hr, hn) = np.split(x @ w["input"] + w["bias"], 3, 1), np.split(h @ w["state"], 3, 1)
    u, r = sigmoid(xu + hu), sigmoid(xr + hr)
    return (u * h + (1 - u) * np.tanh(xn + r * (hn + w["state_bias"])),)


def normal(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def normed_sides(w, x, h):
    """Blocks [B, H] of the two sides, one a gate."""
    blocks = lambda side: np.concatenate([normal(block) for block in np.split(side, side.shape[-1] // WIDTH, 1)], 1)
    return blocks(x @ w["input"]) * w["input_scale"] + w["shift"], blocks(h @ w["state"]) * w["state_scale"]


def rnn_norm_step(w, x, h):
    return (np.tanh(sum(normed_sides(w, x, h))),)


def lstm_norm_step(w, x, h, c):
    f, i, o, candidate = np.split(sum(normed_sides(w, x, h)), 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
    return sigmoid(o) * np.tanh(normal(c) * w["cell_scale"] + w["cell_shift"]), c


def gru_norm_step(w, x, h):
    (xu, xr, xn), (hu, hr, hn) = (np.split(side, 3, axis=1) for side in normed_sides(w, x, h))
    u, r = sigmoid(xu + hu), sigmoid(xr + hr)
    return (u * h + (1 - u) * np.tanh(xn + r * (hn + w["state_bias"])),)


def mingru_step(w, x, h):
    u, candidate = np.split(x @ w["input"] + w["bias"], 2, axis=1)
    return (sigmoid(u) * h + (1 - sigmoid(u)) * candidate,)


def minlstm_step(w, x, h):
    f, i, candidate = np.split(x @ w["input"] + w["bias"], 3, axis=1)
    f, i = sigmoid(f), sigmoid(i)
    return (f / (f + i) * h + i / (f + i) * candidate,)


@every_cell
def test_a_cell_is_its_equation(name):
    step = globals()[f"{name}_step"]
    weights, (xs, carry) = weights_of(name), inputs_of(name)
    ys, last = unrolled(name, weights, xs, carry)
    for t in range(TIME):
        carry = step(weights, xs[:, t], *carry)
        np.testing.assert_allclose(ys[:, t], carry[0], atol=BAR)
    jax.tree.map(partial(np.testing.assert_allclose, atol=BAR), last, carry)


@zoo.each_cell()
def test_gradients_match_finite_differences(name):
    """By every weight, input and carry, in float64: 1e-6 relative."""
    with jax.enable_x64(True):
        weights, (xs, carry) = weights_of(name), inputs_of(name)
        # Steep gates make large third derivatives, which finite differences would see.
        arguments = jax.tree.map(lambda leaf: leaf.astype(np.float64) / 2, (weights, xs, carry))
        total = jax.jit(lambda *arguments: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(unrolled(name, *arguments))))
        check_grads(total, arguments, order=1, modes=["rev"], rtol=1e-6, atol=1e-9, eps=1e-5)


# ------------------------------------------------------------------------ how variants are related


def test_without_peepholes_an_lstm_is_left():
    weights, (xs, carry) = weights_of("lstm_peephole"), inputs_of("lstm")
    blind = weights | {"peephole": np.zeros_like(weights["peephole"])}
    plain = unrolled("lstm", {key: weights[key] for key in ("input", "state", "bias")}, xs, carry)
    jax.tree.map(np.testing.assert_array_equal, unrolled("lstm_peephole", blind, xs, carry), plain)
    assert np.abs(unrolled("lstm_peephole", weights, xs, carry)[0] - plain[0]).max() > 0.1


def test_coupled_gates_are_an_lstm_whose_gates_are_tied():
    """i = sigmoid(-a) = 1 - sigmoid(a) = 1 - f, where the input gate's weights are the forget gate's, negated."""
    weights, (xs, carry) = weights_of("lstm_coupled"), inputs_of("lstm_coupled")

    def tied(value):
        f, o, candidate = np.split(value, 3, axis=-1)
        return np.concatenate([f, -f, o, candidate], axis=-1)

    ours, theirs = (
        unrolled("lstm_coupled", weights, xs, carry),
        unrolled("lstm", jax.tree.map(tied, weights), xs, carry),
    )
    jax.tree.map(partial(np.testing.assert_allclose, atol=BAR), ours, theirs)


@pytest.mark.parametrize("name", ["rnn_norm", "lstm_norm", "gru_norm"])
def test_a_normed_cell_does_not_see_the_scale_of_its_matrices(name):
    weights, (xs, carry) = weights_of(name), inputs_of(name)
    larger = weights | {key: 7 * weights[key] for key in ("input", "state")}
    np.testing.assert_allclose(
        unrolled(name, larger, xs, carry)[0], unrolled(name, weights, xs, carry)[0], atol=1e-4
    )  # but for the epsilon under the root


def test_shut_gates_leave_a_minlstm_finite():
    """f and i both underflow, and f / (f + i) is still their ratio: 0.5 where they are equal."""
    weights = {"input": np.zeros((1, 3), np.float32), "bias": np.array([-200, -200, 3], np.float32)}
    blend = cells.CELLS["minlstm"].blend
    u, candidate = blend(weights, cells.project(weights, np.zeros(1, np.float32)), np.zeros(1, np.float32))
    assert (u, candidate) == (0.5, 3)


# ---------------------------------------------------------------------------------------- noise


@every_cell
def test_zoneout_keeps_what_it_is_told(name):
    """A share of one leaves the carry as it was, none is the plain step, half is their mean."""
    weights, (xs, carry) = weights_of(name), inputs_of(name)
    projected, cell = cells.project(weights, xs[:, 0]), cells.CELLS[name]
    moved, _ = cells.step(cell, weights, carry, projected)
    for share in (0.0, 0.5, 1.0):
        zone = np.full((cell.carries, ROWS, WIDTH), share, np.float32)
        mixed, h = cells.step(cell, weights, carry, projected, cells.Noise(zone=zone))
        for old, new, now in zip(carry, moved, mixed):
            np.testing.assert_allclose(now, share * old + (1 - share) * new, atol=1e-6)
        np.testing.assert_array_equal(h, mixed[0])


@every_cell
def test_variational_dropout_hides_units_from_the_products_only(name):
    """Where all are hidden, the matrices of the state are as zeros; what a gate lets through is not hidden."""
    weights, (xs, carry) = weights_of(name), inputs_of(name)
    projected, cell = cells.project(weights, xs[:, 0]), cells.CELLS[name]
    hidden, _ = cells.step(cell, weights, carry, projected, cells.Noise(keep=np.zeros((ROWS, WIDTH), np.float32)))
    without = weights | {key: 0 * weights[key] for key in ("state", "candidate") if key in weights}
    expected, _ = cells.step(cell, without, carry, projected)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), hidden, expected)


# --------------------------------------------------------------------------------- Flax's own cells


def assert_equals_flax(name: str, cell: nn.RNNCellBase, params, to_flax=lambda h: h, from_flax=lambda h: (h,)):
    """Outputs, last carry, and the gradients of all squared outputs by weights, inputs and carry.

    params(weights) are our weights under Flax's names; `to_flax` and `from_flax` turn one carry into the other.
    """

    def ours(weights, xs, carry):
        return unrolled(name, weights, xs, carry)

    def theirs(weights, xs, carry):
        module = nn.RNN(cell, return_carry=True)
        last, ys = module.apply({"params": {"cell": params(weights)}}, xs, initial_carry=to_flax(*carry))
        return ys, from_flax(last)

    def with_gradients(run):
        def loss(*arguments):
            outputs = run(*arguments)
            return jnp.sum(outputs[0] ** 2), outputs

        gradients, outputs = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(weights, xs, carry)
        return outputs, gradients

    weights, (xs, carry) = weights_of(name), inputs_of(name)
    for left, right in zip(*map(jax.tree.leaves, (with_gradients(ours), with_gradients(theirs)))):
        np.testing.assert_allclose(left, right, atol=BAR * max(1, np.abs(right).max()))


def test_rnn_equals_flax():
    params = lambda w: {"i": {"kernel": w["input"], "bias": w["bias"]}, "h": {"kernel": w["state"]}}
    assert_equals_flax("rnn", nn.SimpleCell(WIDTH), params)


def test_lstm_equals_flax():
    """Flax calls our candidate g, and keeps (c, h)."""

    def params(w):
        named = {}
        parts = (jnp.split(w[key], 4, axis=-1) for key in ("input", "state", "bias"))
        for gate, kernel, recurrent, bias in zip("fiog", *parts):
            named |= {f"i{gate}": {"kernel": kernel}, f"h{gate}": {"kernel": recurrent, "bias": bias}}
        return named

    swap = lambda first, second: (second, first)
    assert_equals_flax("lstm", nn.OptimizedLSTMCell(WIDTH), params, swap, lambda carry: swap(*carry))


def test_gru_after_equals_flax():
    """Flax calls our update gate z, and the candidate n."""

    def params(w):
        named = {}
        parts = (jnp.split(w[key], 3, axis=-1) for key in ("input", "bias", "state"))
        for gate, kernel, bias, recurrent in zip("zrn", *parts):
            named |= {f"i{gate}": {"kernel": kernel, "bias": bias}, f"h{gate}": {"kernel": recurrent}}
        named["hn"] |= {"bias": w["state_bias"]}
        return named

    assert_equals_flax("gru_after", nn.GRUCell(WIDTH), params)


def test_both_grus_meet_where_the_candidate_is_diagonal():
    """r (W h') and W (r h') are the same where W is diagonal, and not elsewhere."""
    w, (xs, carry) = weights_of("gru"), inputs_of("gru")
    diagonal = w | {"candidate": np.diag(np.diag(w["candidate"]))}

    def after(w):
        state = np.concatenate([w["state"], w["candidate"]], axis=1)
        weights = {"input": w["input"], "state": state, "bias": w["bias"], "state_bias": np.zeros(WIDTH, np.float32)}
        return unrolled("gru_after", weights, xs, carry)[0]

    np.testing.assert_allclose(unrolled("gru", diagonal, xs, carry)[0], after(diagonal), atol=BAR)
    assert np.abs(unrolled("gru", w, xs, carry)[0] - after(w)).max() > 0.1
