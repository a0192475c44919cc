"""What a cell remembers and what its gradient sees, against the cell itself."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core import cells, explain, recurrence

TIME, INPUTS, WIDTH = 7, 2, 4
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


@pytest.mark.parametrize("name", BLENDING)
def test_a_gru_is_a_weighted_sum_of_its_candidates(name):
    weights, xs, (h,) = example(name)
    shares, candidates = jax.jit(partial(explain.unroll_blend, cells.CELLS[name]))(weights, xs, h)
    np.testing.assert_allclose(
        np.einsum("tsh,sh->th", shares, candidates), states(name, weights, xs, (h,)), atol=1e-5
    )
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-6)
    assert np.all(np.asarray(shares) >= 0)
    future = np.arange(1 + TIME) > 1 + np.arange(TIME)[:, None]
    assert np.all(np.asarray(shares)[future] == 0)
    np.testing.assert_array_equal(candidates[0], h)


def test_half_open_gates_halve_the_past_at_every_step():
    """u = 1/2 throughout: h_2 = 1/4 h_0 + 1/4 h~_1 + 1/2 h~_2."""
    weights = {"input": np.array([[0.0, 1.0]]), "bias": np.zeros(2)}  # u = sigmoid(0), h~ = x
    shares, candidates = explain.unroll_blend(cells.CELLS["mingru"], weights, np.array([[4.0], [6.0]]), np.array([8.0]))
    np.testing.assert_allclose(shares[..., 0], [[1 / 2, 1 / 2, 0], [1 / 4, 1 / 4, 1 / 2]])
    np.testing.assert_allclose(candidates[..., 0], [8, 4, 6])


# --------------------------------------------------------------------------------- forget gates


@pytest.mark.parametrize("name", FORGETTING)
def test_the_gradient_along_an_lstms_cell_is_the_product_of_its_forget_gates(name):
    """dc_T / dc_t where the gates are held: the states, and what the peepholes see, are cut out of the gradient."""
    weights, xs, carry = example(name)
    cell = cells.CELLS[name]
    projected = cells.project(weights, xs)

    def last_cell(nudges):
        """c_T, where nudges [T + 1, H] are added to c_0 ... c_T."""
        h, c = carry
        c = c + nudges[0]
        for t in range(TIME):
            held = jax.lax.stop_gradient(c)
            gates = cell.update(weights, (h, held), projected[t], h)[1]  # c_{t+1}, without a gradient
            # c enters c_{t+1} = f c + (i c~) by f c alone: f is the difference that a unit of it makes, gates held.
            blind = {key: value for key, value in weights.items() if key != "peephole"}
            bias = 0
            if "peephole" in weights:
                f, i, _ = np.split(weights["peephole"], 3)
                bias = jnp.concatenate([f * held, i * held, 0 * held, 0 * held])
            plain = cells.CELLS["lstm"] if name == "lstm_peephole" else cell
            moved = plain.update(blind, (h, c), projected[t] + bias, jax.lax.stop_gradient(h))[1]
            np.testing.assert_allclose(jax.lax.stop_gradient(moved), gates, atol=1e-6) if False else None
            h = jax.lax.stop_gradient(cell.update(weights, (h, held), projected[t], h)[0])
            c = moved + nudges[t + 1]
        return c

    jacobian = jax.jit(jax.jacrev(last_cell))(np.zeros((TIME + 1, WIDTH), np.float32))  # [H, T + 1, H]
    products = jax.jit(partial(explain.forget_products, cell))(weights, xs, carry)
    for t in range(TIME + 1):
        np.testing.assert_allclose(jacobian[:, t], np.diag(products[t]), atol=1e-6)
    np.testing.assert_array_equal(products[-1], 1)
    assert products[0].max() > 1e-3
