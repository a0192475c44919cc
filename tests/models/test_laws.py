"""The laws of the contract, for every model of the zoo."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from jax.test_util import check_grads

from s2sjax.core import losses, search
from s2sjax.core.tokens import EOS, PAD, SOS

BAR = 1e-5
every_model = zoo.each(zoo.MODELS)
every_family = zoo.each(zoo.FAMILIES)  # where a search costs much to compile and sees no more than a step


@cache
def build(name: str) -> zoo.Pure:
    """Models are built and compiled once a process: that is what takes the time."""
    return zoo.Pure(name, sharp=1.5)


@pytest.fixture
def model(name):
    return build(name)


def largest_difference(left, right):
    return max(float(np.abs(a - b).max()) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right)))


@every_model
def test_step_by_step_equals_teacher_forced(name, model):
    source, target = zoo.batch(np.random.default_rng(1))
    real = (target != PAD)[..., None]
    forced = np.where(real, model.logits(source, target), 0)
    stepped = np.where(real, zoo.step_by_step(model, source, target), 0)
    assert forced.dtype == np.float32
    assert np.abs(forced).max() > 0.1
    assert largest_difference(forced, stepped) < BAR


@every_model
def test_every_leaf_of_memory_and_state_has_the_batch_in_front(name, model):
    source, _ = zoo.batch(np.random.default_rng(2))
    memory = model.encode(model.params, source)
    state = model.start(model.params, memory, 4)
    state, logits, attention = model.step(model.params, memory, state, np.full(3, SOS))
    assert {leaf.shape[0] for leaf in jax.tree.leaves((memory, state))} == {3}
    assert logits.shape == (3, zoo.VOCABULARY)
    assert (attention is not None) == model.module.attends
    if attention is not None:
        assert attention.shape == source.shape
        assert np.all(np.asarray(attention)[source == PAD] == 0)
        total = np.asarray(attention.sum(1))
        if getattr(zoo.MODELS[name], "window", None) == "predictive":  # its Gaussian thins the weights, as published
            assert ((total > 0.01) & (total < 1)).all()
        else:
            np.testing.assert_allclose(total, 1, atol=1e-6)


@every_model
def test_padding_is_invisible(name, model):
    """Longer padding, another order, an empty row, other neighbours: no sentence's logits or gradient change."""
    source, target = zoo.batch(np.random.default_rng(3))
    order = [2, 0, 1]
    longer = [np.pad(side[order], ((0, 1), (0, 3))) for side in (source, target)]
    strangers = [np.concatenate([side[1:2], other]) for side, other in zip(longer, zoo.batch(
        np.random.default_rng(4), source=source.shape[1] + 3, target=target.shape[1] + 3))]  # fmt: skip

    real = (target != PAD)[..., None]
    logits = model.logits(source, target) * real
    padded = model.logits(*longer)[:3, : target.shape[1]] * real[order]
    assert largest_difference(logits[order], padded) < BAR
    beside_strangers = model.logits(*strangers)[0, : target.shape[1]] * real[0]
    assert largest_difference(logits[0], beside_strangers) < BAR
    # At the sharp weights the gradient is ill-conditioned: half a unit in the last place of each weight changes that of
    # transformer-pre-learned by 1e-4, so that no two orders of summation agree to 1e-5. At the plain weights it is
    # 5e-7, and the bar is lower: gradients are smaller there too.
    plain = [model.gradient(*both, scale=1 / 1.5) for both in ((source, target), longer)]
    assert largest_difference(plain[0], jax.tree.map(np.zeros_like, plain[0])) > 0.01
    assert largest_difference(*plain) < BAR / 5


@every_model
def test_empty_rows_are_finite(name, model):
    source, target = zoo.batch(np.random.default_rng(4))
    source[0], target[1] = PAD, PAD
    assert np.isfinite(model.logits(source, target)).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model.gradient(source, target)))
    nothing = model.gradient(np.zeros_like(source), np.zeros_like(target))
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(nothing))


@partial(jax.jit, static_argnums=(0, 3), static_argnames=("width", "nbest", "penalty", "alpha"))
def decode(module, params, source, limit, **options):
    """Beam search, or greedy where no width is given."""
    apply = partial(module.apply, params)
    memory = apply(source, method="encode")
    state = apply(memory, limit, method="start")
    limits = jnp.full(len(source), limit)
    search_with = search.beam_search if options else search.greedy
    return search_with(module.beams(params["params"], memory), state, limits, limit, **options)


FOUR_SENTENCES = zoo.batch(np.random.default_rng(5), rows=4)[0]
BEAM = dict(width=3, nbest=3, penalty="gnmt", alpha=0.8)


@every_model
def test_decoding_does_not_depend_on_padding_or_neighbours(name, model):
    together = decode(model.module, model.params, FOUR_SENTENCES, 5, **BEAM)
    others = zoo.batch(np.random.default_rng(6), rows=2, source=9)[0]
    moved = np.concatenate([others, np.pad(FOUR_SENTENCES[[3, 1]], ((0, 0), (0, 4)))])
    elsewhere = decode(model.module, model.params, moved, 5, **BEAM)
    np.testing.assert_array_equal(together.tokens[3], elsewhere.tokens[2])
    np.testing.assert_array_equal(together.tokens[1], elsewhere.tokens[3])


@every_model
def test_the_score_that_search_reports_is_the_score_of_teacher_forcing(name, model):
    found = jax.tree.map(np.asarray, decode(model.module, model.params, FOUR_SENTENCES, 5, **BEAM))
    tokens = found.tokens.reshape(12, -1)
    logits = model.logits(FOUR_SENTENCES.repeat(3, axis=0), tokens)
    log_p = losses.log_likelihood(logits, tokens, tokens != PAD).reshape(4, 3)
    np.testing.assert_allclose(found.log_probs, log_p, atol=BAR)
    np.testing.assert_allclose(found.scores, log_p / ((5 + found.lengths) / 6) ** 0.8, atol=BAR)
    np.testing.assert_array_equal(found.lengths, (found.tokens != PAD).sum(-1))


@every_family
def test_a_wide_beam_equals_exhaustive_search(name, model):
    """All sentences over {<unk>, a, b, c} of up to two words, scored one by one; tests/core/test_search.py has more."""
    source = zoo.batch(np.random.default_rng(7), rows=1)[0]
    words = [token for token in range(zoo.VOCABULARY) if token not in (PAD, SOS, EOS)]
    sentences = [(*chosen, EOS) for n in range(3) for chosen in itertools.product(words, repeat=n)]
    tokens = np.array([sentence + (PAD,) * (3 - len(sentence)) for sentence in sentences], np.int32)
    count = len(sentences)
    found = decode(model.module, model.params, source, 3, width=count, nbest=count, penalty="mean")
    logits = model.logits(source.repeat(count, axis=0), tokens)
    scores = losses.log_likelihood(logits, tokens, tokens != PAD) / (tokens != PAD).sum(1)
    np.testing.assert_array_equal(found.tokens[0], tokens[np.argsort(-scores, stable=True)])


@every_family
def test_beam_one_equals_greedy(name, model):
    source, _ = zoo.batch(np.random.default_rng(8), rows=8)
    beam = decode(model.module, model.params, source, 6, width=1)
    np.testing.assert_array_equal(beam.tokens, decode(model.module, model.params, source, 6).tokens)


@every_model
def test_gradients_match_finite_differences(name):
    """In float64, along random directions, as `check_grads` does: 1e-6 relative."""
    with jax.enable_x64(True):
        model = zoo.Pure(name, dtype="float64")
        source, target = zoo.batch(np.random.default_rng(9))
        loss = jax.jit(lambda params: model.loss(params, source, target)[0])
        assert loss(model.params).dtype == jnp.float64
        check_grads(loss, (model.params,), order=1, modes=["rev"], rtol=1e-6, atol=1e-9, eps=1e-5)


@every_model
def test_bfloat16_computes_near_float32_and_returns_float32_logits(name, model):
    half = zoo.models.build(zoo.MODELS[name], zoo.VOCABULARY, zoo.VOCABULARY, "bfloat16")
    source, target = zoo.batch(np.random.default_rng(10))
    logits = jax.jit(half.apply)(model.params, source, target)
    assert logits.dtype == jnp.float32
    real = (target != PAD)[..., None]
    exact = model.logits(source, target)
    error = np.linalg.norm((logits - exact) * real) / np.linalg.norm(exact * real)
    assert 0 < error < 0.05  # eight bits of mantissa, a dozen products deep
