"""Dense decoders: each token is read off the state of its own position, whatever was written before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.core import search
from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.models.families import dense

both = pytest.mark.parametrize("name", ["lstm-dense", "dense-dense"])
build = zoo.build


def test_a_position_beyond_the_end_has_the_state_beyond():
    """The source is a b c and one of padding; then one that is empty."""
    states = np.array([[[1.0], [2], [3], [99]], [[99], [99], [99], [99]]])
    mask = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], bool)
    position = np.array([[1, 2, 3, 9], [0, 1, 2, 3]])
    read = dense.matched(states, mask, np.array([-1.0]), position)[..., 0]
    np.testing.assert_array_equal(read, [[2, 3, -1, -1], [-1, -1, -1, -1]])


@pytest.mark.slow
@both
def test_all_tokens_at_once_are_what_greedy_search_writes_one_by_one(name):
    """Instant decoding: one call, whatever target it is given, holds every decision of the search."""
    model = build(name)
    source, target = zoo.batch(np.random.default_rng(1), rows=6)
    at_once = model.logits(source, target)
    np.testing.assert_array_equal(at_once, model.logits(source, np.roll(target, 1, axis=0)))
    choices = at_once[..., EOS:].argmax(-1) + EOS  # <pad> and <sos>, which come first, are never written
    memory, limit = model.encode(model.params, source), target.shape[1]
    step = lambda state, token: model.step(model.params, memory, state, token)
    found = search.greedy(step, model.init_state(model.params, memory, limit), jnp.full(len(source), limit), limit)
    tokens = np.asarray(found.tokens[:, 0, :-1])  # the last is <eos>, by the limit
    assert np.unique(tokens).size > 1
    np.testing.assert_array_equal(tokens, np.where(tokens == PAD, PAD, choices[:, :-1]))


@both
def test_attention_is_the_position_itself(name):
    model = build(name)
    source = np.array([[4, 5, 2, 0, 0], [4, 4, 4, 4, 2], [4, 4, 4, 4, 2]])
    memory = model.encode(model.params, source)
    state, looked = model.init_state(model.params, memory, 4), []
    for _ in range(4):
        state, _, attention = model.step(model.params, memory, state, np.full(3, 4))
        looked.append(np.asarray(attention))
    np.testing.assert_array_equal(np.stack(looked, 1)[0], [*np.eye(5)[:3], np.zeros(5)])
    np.testing.assert_array_equal(np.stack(looked, 1)[1], np.eye(5)[:4])


def test_the_window_is_all_that_a_token_of_dense_dense_sees():
    """With a window of three, changing word 4 of seven changes only the logits at 3, 4 and 5."""
    model = build("dense-dense")
    source = np.array([[4, 5, 6, 4, 5, 6, 2]])
    changed = np.where(np.arange(7) == 4, 6, source)
    logits = jax.jit(model.module.apply)
    moved = np.abs(logits(model.params, source, source) - logits(model.params, changed, source)).max((0, 2)) > 0
    np.testing.assert_array_equal(moved, np.isin(np.arange(7), [3, 4, 5]))


def count(model: config.ModelConfig, source: int, target: int) -> int:
    module = models.build(model, source, target)
    shapes = jax.eval_shape(module.init, jax.random.key(0), np.ones((1, 3), int), np.ones((1, 3), int))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_their_weights():
    source, target, E, H = 30, 40, 6, 8
    recurrent = 2 * 4 * (E + H // 2 + 1) * H // 2  # an LSTM each way
    window = (3 * E + 1) * H
    written = H + (H + 1) * H + (H + 1) * target  # beyond, hidden, output; no word of the target is read
    assert count(zoo.MODELS["lstm-dense"], source, target) == source * E + recurrent + written
    assert count(zoo.MODELS["dense-dense"], source, target) == source * E + window + written
