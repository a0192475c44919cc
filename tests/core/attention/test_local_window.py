"""Local attention against the formulas of Luong et al. 2015, one position at a time."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from s2sjax.core import attention
from s2sjax.core.attention import local_window

ROWS, TIME, MEMORY, WIDTH, RADIUS = 3, 4, 6, 5, 2
LENGTHS = np.array([6, 3, 0])
MASK = np.arange(MEMORY) < LENGTHS[:, None]
BAR = 1e-5

look = jax.jit(local_window.window_weights, static_argnums=(0, 1))
every_window = pytest.mark.parametrize("name", local_window.WINDOWS)


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def weights_of(name: str) -> dict:
    return {
        key: draw(seed, *shape) for seed, (key, shape) in enumerate(local_window.WINDOWS[name].shapes(WIDTH).items())
    }


STATES = draw(10, ROWS, TIME, WIDTH)
TIMES = np.broadcast_to(np.arange(TIME), (ROWS, TIME))


def factor(name: str, weights: dict, state: np.ndarray, t: int, length: int, s: int) -> float:
    """The paper's window, D the radius: 0 outside of [p - D, p + D]."""
    if name == "monotonic":
        return float(t - RADIUS <= s <= t + RADIUS)
    p = length / (1 + np.exp(-(weights["point"] @ np.tanh(weights["pointer"].T @ state))))
    inside = p - RADIUS <= s <= p + RADIUS
    return inside * np.exp(-((s - p) ** 2) / (2 * (RADIUS / 2) ** 2))


def test_the_worked_example():
    seen = look(local_window.WINDOWS["monotonic"], 1, {}, np.zeros((1, WIDTH)), np.array([3]), np.ones((1, 6), bool))
    np.testing.assert_array_equal(seen, [[0, 0, 1, 1, 1, 0]])


@every_window
def test_a_window_is_its_formula(name):
    """For all states of a sentence at once and for one at a time."""
    weights = weights_of(name)
    everything = np.asarray(look(local_window.WINDOWS[name], RADIUS, weights, STATES, TIMES, MASK))
    for row, length in enumerate(LENGTHS):
        for t in range(TIME):
            expected = [factor(name, weights, STATES[row, t], t, length, s) for s in range(MEMORY)]
            np.testing.assert_allclose(everything[row, t], expected, atol=BAR)
    one = look(local_window.WINDOWS[name], RADIUS, weights, STATES[:, 2], TIMES[:, 2], MASK)
    np.testing.assert_allclose(one, everything[:, 2], atol=BAR)


def test_a_predicted_window_follows_the_sentence_and_not_its_padding():
    """And it holds a real position, wherever the state points."""
    window, weights = local_window.WINDOWS["predictive"], weights_of("predictive")
    longer = np.pad(MASK, ((0, 0), (0, 5)))
    found = np.asarray(look(window, RADIUS, weights, STATES, TIMES, longer))
    np.testing.assert_array_equal(found[..., :MEMORY], look(window, RADIUS, weights, STATES, TIMES, MASK))
    for sharp in (-100, 0, 100):
        extreme = {"pointer": weights["pointer"] * 100, "point": np.full(WIDTH, sharp, np.float32)}
        seen = np.asarray(look(window, 1, extreme, STATES, TIMES, MASK)) * MASK[:, None]
        assert (seen[:2].max(-1) > 0).all()


@every_window
def test_local_attention_is_softmax_within_the_window_times_the_window(name):
    """An empty memory, and a target that has outrun its source, look at nothing: zeros."""
    score, weights, memory = attention.SCORES["dot"], weights_of(name), draw(11, ROWS, MEMORY, WIDTH)
    late = TIMES + 3
    near = look(local_window.WINDOWS[name], RADIUS, weights, STATES, late, MASK)
    attend = jax.jit(partial(attention.attend_all, score, {}))
    contexts, alphas = attend(STATES, memory, memory, MASK, window=near)
    for row, length in enumerate(LENGTHS):
        for t in range(TIME):
            thin = np.array([factor(name, weights, STATES[row, t], t + 3, length, s) for s in range(length)])
            raised = np.exp(memory[row, :length] @ STATES[row, t]) * (thin > 0)
            expected = raised / max(raised.sum(), 1e-30) * thin
            np.testing.assert_allclose(alphas[row, t, :length], expected, atol=BAR)
            np.testing.assert_allclose(contexts[row, t], expected @ memory[row, :length], atol=BAR)
    if name == "monotonic":
        assert (np.asarray(alphas)[1, 2:] == 0).all()  # times 5 and 6, three words
        np.testing.assert_allclose(np.asarray(alphas)[0].sum(-1), 1, atol=BAR)


def test_the_gradient_of_a_predicted_window():
    """In float64 against finite differences, to the states and to the weights that point."""
    with jax.enable_x64(True):
        memory = np.float64(draw(11, ROWS, MEMORY, WIDTH))

        @jax.jit
        def context(weights, states):
            near = local_window.window_weights(
                local_window.WINDOWS["predictive"], RADIUS, weights, states, TIMES[:, 0], MASK
            )
            return attention.attend_batch(attention.SCORES["dot"], {}, states, memory, memory, MASK, window=near)[0]

        arguments = jax.tree.map(jnp.float64, (weights_of("predictive"), STATES[:, 0]))
        check_grads(context, arguments, order=1, modes=["rev"], rtol=1e-6, atol=1e-9, eps=1e-5)
