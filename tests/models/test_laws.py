"""The laws of the contract, for every model of the zoo."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from jax.test_util import check_grads

from s2sjax.core import losses, search
from s2sjax.core.tokens import EOS, PAD, SOS

BAR = 1e-5
every_model = pytest.mark.parametrize("name", zoo.MODELS)


@pytest.fixture(scope="module")
def model():
    """Models are built once a process: compiling them is what takes the time."""
    return partial(_build, cache={})


def _build(name, cache):
    if name not in cache:
        cache[name] = zoo.Pure(name, sharp=1.5)
    return cache[name]


def loss_of(model, params, source, target):
    total, weight = losses.cross_entropy(model.module.apply(params, source, target), target, target != PAD)
    return total / jnp.maximum(weight, 1)


def largest_difference(left, right):
    return max(float(np.abs(a - b).max()) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right)))


@every_model
def test_step_by_step_equals_teacher_forced(name, model):
    model = model(name)
    source, target = zoo.batch(np.random.default_rng(1))
    forced = np.where((target != PAD)[..., None], model.logits(model.params, source, target), 0)
    stepped = np.where((target != PAD)[..., None], zoo.step_by_step(model, source, target), 0)
    assert forced.dtype == np.float32
    assert np.abs(forced).max() > 0.1
    assert largest_difference(forced, stepped) < BAR


@every_model
def test_every_leaf_of_memory_and_state_has_the_batch_in_front(name, model):
    model = model(name)
    source, _ = zoo.batch(np.random.default_rng(2))
    memory = model.encode(model.params, source)
    state = model.start(model.params, memory, 4)
    state, logits, attention = model.step(model.params, memory, state, np.full(3, SOS))
    assert {leaf.shape[0] for leaf in jax.tree.leaves((memory, state))} == {3}
    assert logits.shape == (3, zoo.VOCABULARY)
    assert attention.shape == source.shape
    np.testing.assert_allclose(attention.sum(1), 1, atol=1e-6)
    assert np.all(np.asarray(attention)[source == PAD] == 0)


@every_model
def test_padding_is_invisible(name, model):
    """Longer padding, empty rows, and other neighbours in the batch change neither logits nor gradient."""
    model = model(name)
    source, target = zoo.batch(np.random.default_rng(3))
    wide_source, wide_target = (np.pad(side, ((0, 0), (0, 3))) for side in (source, target))
    alone_source, alone_target = source[1:2], target[1:2]

    logits = model.logits(model.params, source, target)
    wide = model.logits(model.params, wide_source, wide_target)[:, : target.shape[1]]
    alone = model.logits(model.params, alone_source, alone_target)
    real = (target != PAD)[..., None]
    assert largest_difference(logits * real, wide * real) < BAR
    assert largest_difference((logits * real)[1:2], alone * real[1:2]) < BAR

    gradient = jax.jit(jax.grad(partial(loss_of, model)))
    one_more_row = [np.pad(side, ((0, 1), (0, 0))) for side in (wide_source, wide_target)]
    assert largest_difference(gradient(model.params, source, target), gradient(model.params, *one_more_row)) < BAR


@every_model
def test_empty_rows_are_finite(name, model):
    model = model(name)
    source, target = zoo.batch(np.random.default_rng(4))
    source[0], target[1] = PAD, PAD
    value_and_gradient = jax.jit(jax.value_and_grad(partial(loss_of, model)))
    value, gradient = value_and_gradient(model.params, source, target)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    _, nothing = value_and_gradient(model.params, np.zeros_like(source), np.zeros_like(target))
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(nothing))


def decode(model, source, limit, **options):
    """Beam search, or greedy where no width is given."""

    @jax.jit
    def run(params, source):
        apply = partial(model.module.apply, params)
        memory = apply(source, method="encode")
        state = apply(memory, limit, method="start")
        step = lambda state, token: apply(memory, state, token, method="step")
        limits = jnp.full(len(source), limit)
        if options:
            return search.beam(step, state, limits, limit, **options)
        return search.greedy(step, state, limits, limit)

    return jax.tree.map(np.asarray, run(model.params, source))


@every_model
def test_decoding_does_not_depend_on_padding_or_neighbours(name, model):
    model = model(name)
    source, _ = zoo.batch(np.random.default_rng(5), rows=4)
    options = dict(width=3, nbest=2, penalty="mean")
    together = decode(model, source, 5, **options)
    padded = decode(model, np.pad(source, ((0, 0), (0, 4))), 5, **options)
    np.testing.assert_array_equal(together.tokens, padded.tokens)
    alone = decode(model, source[3:], 5, **options)
    np.testing.assert_array_equal(together.tokens[3:], alone.tokens)


@every_model
def test_the_score_that_search_reports_is_the_score_of_teacher_forcing(name, model):
    model = model(name)
    source, _ = zoo.batch(np.random.default_rng(6))
    found = decode(model, source, 5, width=3, nbest=3, penalty="gnmt", alpha=0.8)
    for n in range(3):
        tokens = found.tokens[:, n]
        log_p = losses.log_likelihood(model.logits(model.params, source, tokens), tokens, tokens != PAD)
        np.testing.assert_allclose(found.log_probs[:, n], log_p, atol=BAR)
        np.testing.assert_allclose(found.scores[:, n], log_p / ((5 + found.lengths[:, n]) / 6) ** 0.8, atol=BAR)
        np.testing.assert_array_equal(found.lengths[:, n], (tokens != PAD).sum(1))


@every_model
@pytest.mark.parametrize("penalty", ["none", "mean", "gnmt"])
def test_a_wide_beam_equals_exhaustive_search(name, penalty, model):
    """All sentences over {<unk>, a, b, c} of up to two words, scored one by one."""
    model = model(name)
    source, _ = zoo.batch(np.random.default_rng(7), rows=2)
    words = [token for token in range(zoo.VOCABULARY) if token not in (PAD, SOS, EOS)]
    sentences = [(*chosen, EOS) for n in range(3) for chosen in itertools.product(words, repeat=n)]
    tokens = np.array([sentence + (PAD,) * (3 - len(sentence)) for sentence in sentences], np.int32)
    found = decode(model, source, 3, width=len(sentences), nbest=len(sentences), penalty=penalty)
    for row in range(2):
        sources = np.repeat(source[row : row + 1], len(tokens), axis=0)
        log_p = losses.log_likelihood(model.logits(model.params, sources, tokens), tokens, tokens != PAD)
        length = jnp.asarray((tokens != PAD).sum(1))
        scores = np.asarray(log_p / search.length_penalty(penalty, 0.6, length))
        order = np.argsort(-scores, kind="stable")
        np.testing.assert_array_equal(found.tokens[row], tokens[order])


@every_model
def test_beam_one_equals_greedy(name, model):
    model = model(name)
    source, _ = zoo.batch(np.random.default_rng(8), rows=8)
    np.testing.assert_array_equal(decode(model, source, 6, width=1).tokens, decode(model, source, 6).tokens)


@every_model
def test_gradients_match_finite_differences(name):
    """In float64, along random directions, as `check_grads` does: 1e-6 relative."""
    with jax.enable_x64(True):
        model = zoo.Pure(name, dtype="float64")
        source, target = zoo.batch(np.random.default_rng(9))
        loss = jax.jit(lambda params: loss_of(model, params, source, target))
        assert loss(model.params).dtype == jnp.float64
        check_grads(loss, (model.params,), order=1, modes=["rev"], rtol=1e-6, atol=1e-9, eps=1e-5)


@every_model
def test_bfloat16_computes_near_float32_and_returns_float32_logits(name, model):
    full = model(name)
    half = zoo.models.build(zoo.MODELS[name], zoo.VOCABULARY, zoo.VOCABULARY, "bfloat16")
    source, target = zoo.batch(np.random.default_rng(10))
    logits = jax.jit(half.apply)(full.params, source, target)
    assert logits.dtype == jnp.float32
    real = (target != PAD)[..., None]
    exact = full.logits(full.params, source, target)
    error = np.linalg.norm((logits - exact) * real) / np.linalg.norm(exact * real)
    assert 0 < error < 0.05  # eight bits of mantissa, a dozen products deep
