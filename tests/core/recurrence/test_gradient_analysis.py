"""What a cell remembers and what its gradient sees, against the cell itself."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax.core import recurrence
from s2sjax.core.recurrence import cells, gradient_analysis

TIME, INPUTS, WIDTH = 5, 2, 4
BLENDING = [name for name, cell in cells.CELLS.items() if cell.blend is not None]
FORGETTING = [name for name, cell in cells.CELLS.items() if "forget" in cell.gates and cell.carries == 2]


def example(name: str, seed: int = 0, time: int = TIME):
    """weights, xs [T, D], and a carry that is not zero."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    cell = cells.CELLS[name]
    weights = {key: draw(*shape) for key, shape in cell.shapes(INPUTS, WIDTH).items()}
    return weights, draw(time, INPUTS), tuple(draw(WIDTH) for _ in range(cell.carries))


@partial(jax.jit, static_argnums=0)
def states(name: str, weights, xs, carry):
    """h_1 ... h_T [T, H]."""
    everywhere = np.ones((1, len(xs)), bool)
    carry = tuple(part[None] for part in carry)
    return recurrence.run(cells.CELLS[name], weights, xs[None], everywhere, carry)[0][0]


# --------------------------------------------------------------------------- sums of candidates


@zoo.each_cell(BLENDING)
def test_a_gru_is_a_weighted_sum_of_its_candidates(name):
    weights, xs, (h,) = example(name)
    shares, candidates = jax.jit(partial(gradient_analysis.unroll_blend, cells.CELLS[name]))(weights, xs, h)
    np.testing.assert_allclose(np.einsum("tsh,sh->th", shares, candidates), states(name, weights, xs, (h,)), atol=1e-5)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-6)
    assert np.all(np.asarray(shares) >= 0)
    future = np.arange(1 + TIME) > 1 + np.arange(TIME)[:, None]
    assert np.all(np.asarray(shares)[future] == 0)
    np.testing.assert_array_equal(candidates[0], h)


def test_half_open_gates_halve_the_past_at_every_step():
    """u = 1/2 throughout: h_2 = 1/4 h_0 + 1/4 h~_1 + 1/2 h~_2."""
    weights = {"input": np.array([[0.0, 1.0]]), "bias": np.zeros(2)}  # u = sigmoid(0), h~ = x
    shares, candidates = gradient_analysis.unroll_blend(
        cells.CELLS["mingru"], weights, np.array([[4.0], [6.0]]), np.array([8.0])
    )
    np.testing.assert_allclose(shares[..., 0], [[1 / 2, 1 / 2, 0], [1 / 4, 1 / 4, 1 / 2]])
    np.testing.assert_allclose(candidates[..., 0], [8, 4, 6])


# --------------------------------------------------------------------------------- forget gates


def held_step(name: str, weights, projected, h, c):
    """One step of an LSTM whose gates are held: neither h nor what a peephole sees carries a gradient."""
    h, seen = jax.lax.stop_gradient((h, c))
    new_h, _ = cells.CELLS[name].update(weights, (h, seen), projected, h)
    if name == "lstm_peephole":  # an LSTM whose bias is what the peepholes of f and i see
        forget, write, _ = np.split(weights["peephole"], 3)
        name, projected = "lstm", projected + jnp.concatenate([forget * seen, write * seen, 0 * seen, 0 * seen])
    _, new_c = cells.CELLS[name].update(weights, (h, c), projected, h)
    return new_h, new_c


@zoo.each_cell(FORGETTING)
def test_the_gradient_along_an_lstms_cell_is_the_product_of_its_forget_gates(name):
    """dc_T / dc_t by autodiff, gates held: a diagonal matrix, f_T ... f_{t+1}."""
    weights, xs, carry = example(name)

    def last_cell(nudges):
        """c_T, where nudges [T + 1, H] are added to c_0 ... c_T."""

        def body(carry, inputs):
            projected, nudge = inputs
            h, c = held_step(name, weights, projected, *carry)
            return (h, c + nudge), None

        h, c = carry
        (_, c), _ = jax.lax.scan(body, (h, c + nudges[0]), (cells.project(weights, xs), nudges[1:]))
        return c

    jacobian = jax.jit(jax.jacrev(last_cell))(np.zeros((1 + TIME, WIDTH), np.float32))  # [H, 1 + T, H]
    products = jax.jit(partial(gradient_analysis.forget_products, cells.CELLS[name]))(weights, xs, carry)
    for t in range(1 + TIME):
        np.testing.assert_allclose(jacobian[:, t], np.diag(products[t]), atol=1e-6)
    np.testing.assert_array_equal(products[-1], 1)
    assert products[0].max() > 1e-3


# -------------------------------------------------------------------------------- gradient flow

norms = jax.jit(gradient_analysis.gradient_norms, static_argnums=0)


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru", "minlstm"])
def test_gradient_norms_are_those_of_autodiff(name):
    """|dh_T / dh_t|: the rest of the sentence, differentiated by the state it starts from."""
    weights, xs, carry = example(name)
    found = norms(cells.CELLS[name], weights, xs, carry)
    last = lambda h: states(name, weights, xs, (h, *carry[1:]))[-1]
    np.testing.assert_allclose(found[TIME], np.linalg.norm(jax.jacrev(last)(carry[0]), ord=2), rtol=1e-4)
    assert found.shape == (1 + TIME,)
    assert found[0] == 1
    one_step = norms(cells.CELLS[name], weights, xs[-1:], state_before_the_last(name, weights, xs, carry))
    np.testing.assert_allclose(found[:2], one_step, rtol=1e-4)


def state_before_the_last(name: str, weights, xs, carry):
    for projected in cells.project(weights, xs[:-1]):
        carry, _ = cells.step(cells.CELLS[name], weights, carry, projected)
    return carry


def test_the_gradient_of_a_plain_rnn_stays_below_its_bound():
    for seed in range(5):
        weights, xs, carry = example("rnn", seed)
        weights["state"] /= 2
        bound = gradient_analysis.gradient_bound(weights["state"], TIME)
        assert np.all(norms(cells.CELLS["rnn"], weights, xs, carry) <= bound * (1 + 1e-5))
    np.testing.assert_allclose(gradient_analysis.gradient_bound(np.diag([3.0, 2.0]), 2, gamma=0.5), [1, 1.5, 2.25])


@pytest.mark.parametrize("scale, fate", [(0.5, "vanishes"), (1.0, "stays"), (1.5, "explodes")])
def test_the_gradient_of_a_nearly_linear_rnn_is_its_bound(scale, fate):
    """Small states see the straight part of tanh: the gradient is lambda_1^(T - t), and all turns on lambda_1 = 1."""
    steps = 20
    weights, xs, carry = example("rnn", time=steps)
    rotation, _ = np.linalg.qr(weights["state"])
    weights = {"input": 1e-6 * weights["input"], "state": scale * rotation, "bias": 0 * weights["bias"]}
    found = norms(cells.CELLS["rnn"], weights, xs, (1e-6 * carry[0],))
    np.testing.assert_allclose(found, gradient_analysis.gradient_bound(weights["state"], steps), rtol=1e-3)
    assert {"vanishes": found[-1] < 1e-5, "stays": abs(found[-1] - 1) < 1e-3, "explodes": found[-1] > 1e3}[fate]


def test_an_open_forget_gate_keeps_the_gradient_that_a_plain_rnn_loses():
    """|W_h| = 1/4 in both: from ten steps to forty the RNN loses (1/4)^30, and an LSTM that forgets little, little."""
    steps = 40
    plain, xs, carry = example("rnn", time=steps)
    gated, _, both = example("lstm", time=steps)
    plain["state"] /= 4 * np.linalg.norm(plain["state"], ord=2)
    gated["state"] /= 4 * np.linalg.norm(gated["state"], ord=2)
    gated["input"][:, :WIDTH] = 0
    gated["bias"][:WIDTH] = 6
    fading = lambda norms: norms[40] / norms[10]
    assert fading(norms(cells.CELLS["rnn"], plain, xs, carry)) < 0.25**30 * (1 + 1e-3)
    assert fading(norms(cells.CELLS["lstm"], gated, xs, both)) > 0.1
