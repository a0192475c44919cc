"""The laws of the contract, for every model of the zoo."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from jax.test_util import check_grads

from s2sjax import config, models
from s2sjax.core import losses
from s2sjax.core.special_tokens import EOS, PAD, SOS

BAR = 1e-5
every_model = zoo.each(zoo.MODELS)
every_family = zoo.each(zoo.FAMILIES, quick=("luong",))  # a search costs much to compile
every_search = zoo.each(zoo.MODELS, quick=("luong",), rare=set(zoo.MODELS) - set(zoo.FAMILIES))
# What depends on formulas, which the tests of the core check one by one, more than on how a model joins them.
GATING = {*zoo.FAMILIES, "cnn-rnn-gated-max"}
every_formula = zoo.each(zoo.MODELS, quick=("luong",), rare=set(zoo.MODELS) - GATING)


@pytest.fixture
def model(name):
    return zoo.build(name)


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
    state = model.start(model.params, memory, 5)
    state, logits, attention = model.step(model.params, memory, state, np.full(4, SOS))
    assert {leaf.shape[0] for leaf in jax.tree.leaves((memory, state))} == {4}
    assert logits.shape == (4, zoo.VOCABULARY)
    assert (attention is not None) == model.module.attends
    if attention is not None:
        assert attention.shape == source.shape
        assert np.all(np.asarray(attention)[source == PAD] == 0)
        total = np.asarray(attention.sum(1))
        if getattr(zoo.MODELS[name], "window", None) == "predictive":  # its Gaussian thins the weights, as published
            assert ((total > 0.01) & (total < 1)).all()
        else:
            np.testing.assert_allclose(total, 1, atol=1e-6)


WITH_HEADS = [name for name, of in zoo.MODELS.items() if models.build(of, 9, 9).has_attention_heads]


@zoo.each(WITH_HEADS, quick=(), rare=set(WITH_HEADS) - set(zoo.KINDS))
def test_the_attention_of_a_step_is_the_mean_of_its_layers_and_heads(name, model):
    source, target = zoo.batch(np.random.default_rng(12))
    heads = np.asarray(model.module.apply(model.params, source, target, method="attention_heads"))
    memory, previous = model.encode(model.params, source), np.full(4, SOS)
    state = model.start(model.params, memory, target.shape[1])
    for t in range(target.shape[1]):
        state, _, attention = model.step(model.params, memory, state, previous)
        real = target[:, t] != PAD
        assert largest_difference(heads[real, :, :, t].mean((1, 2)), np.asarray(attention)[real]) < BAR
        previous = target[:, t]
    decoder = config.encoder_and_decoder(zoo.MODELS[name])[1]
    assert heads.shape[2] == (decoder.heads or 1)
    assert heads.shape[1] > 1 and np.abs(heads[:, 0] - heads[:, 1]).max() > 1e-3


@every_model
def test_padding_is_invisible(name, model):
    """Longer padding, another order, an empty row, other neighbours: no sentence's logits or gradient change."""
    source, target = zoo.batch(np.random.default_rng(3))
    order = [2, 0, 3, 1]
    longer = [np.pad(side[order], ((0, 1), (0, 3))) for side in (source, target)]
    strangers = [np.concatenate([side[1:2], other]) for side, other in zip(longer, zoo.batch(
        np.random.default_rng(4), source=source.shape[1] + 3, target=target.shape[1] + 3))]  # fmt: skip

    real = (target != PAD)[..., None]
    logits = model.logits(source, target) * real
    padded = model.logits(*longer)[:4, : target.shape[1]] * real[order]
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


SENTENCES = zoo.batch(np.random.default_rng(5))[0]
BEAM = dict(width=3, nbest=3, penalty="gnmt", alpha=0.8)


@every_search
def test_decoding_does_not_depend_on_padding_or_neighbours(name, model):
    together = model.decode(SENTENCES, 5, **BEAM)
    others = zoo.batch(np.random.default_rng(6), rows=2, source=9)[0]
    moved = np.concatenate([others, np.pad(SENTENCES[[3, 1]], ((0, 0), (0, 4)))])
    elsewhere = model.decode(moved, 5, **BEAM)
    np.testing.assert_array_equal(together.tokens[3], elsewhere.tokens[2])
    np.testing.assert_array_equal(together.tokens[1], elsewhere.tokens[3])


@every_model
def test_the_score_that_search_reports_is_the_score_of_teacher_forcing(name, model):
    found = model.decode(SENTENCES, 5, **BEAM)
    for place in range(3):
        tokens = found.tokens[:, place]
        log_p = losses.log_likelihood(model.logits(SENTENCES, tokens), tokens, tokens != PAD)
        np.testing.assert_allclose(found.log_probs[:, place], log_p, atol=BAR)
        np.testing.assert_allclose(found.scores[:, place], log_p / ((5 + found.lengths[:, place]) / 6) ** 0.8, atol=BAR)
    np.testing.assert_array_equal(found.lengths, (found.tokens != PAD).sum(-1))


@every_family
def test_a_wide_beam_equals_exhaustive_search(name, model):
    """All sentences over {<unk>, a, b, c} of up to two words, scored one by one.

    tests/core/search/test_search_options.py does so for every penalty and stop rule.
    """
    source = zoo.batch(np.random.default_rng(7), rows=1)[0]
    words = [token for token in range(zoo.VOCABULARY) if token not in (PAD, SOS, EOS)]
    sentences = [(*chosen, EOS) for n in range(3) for chosen in itertools.product(words, repeat=n)]
    tokens = np.array([sentence + (PAD,) * (3 - len(sentence)) for sentence in sentences], np.int32)
    count = len(sentences)
    found = model.decode(source, 3, width=count, nbest=count, penalty="mean")
    logits = model.forward(source.repeat(count, axis=0), tokens)
    scores = losses.log_likelihood(logits, tokens, tokens != PAD) / (tokens != PAD).sum(1)
    np.testing.assert_array_equal(found.tokens[0], tokens[np.argsort(-scores, stable=True)])


@every_family
def test_beam_one_equals_greedy(name, model):
    source, _ = zoo.batch(np.random.default_rng(8), rows=8)
    beam = model.decode(source, 6, width=1)
    np.testing.assert_array_equal(beam.tokens, model.decode(source, 6).tokens)


@every_formula
def test_gradients_match_finite_differences(name):
    """Compares gradients with finite differences along random directions in float64, to 1e-6 relative."""
    with jax.enable_x64(True):
        model = zoo.Pure(name, dtype="float64")
        params = jax.tree.map(lambda leaf: leaf.astype(np.float64), model.params)
        source, target = zoo.batch(np.random.default_rng(9))
        loss = jax.jit(lambda params: model.loss(params, source, target)[0])
        assert loss(params).dtype == jnp.float64
        check_grads(loss, (params,), order=1, modes=["rev"], rtol=1e-6, atol=1e-9, eps=2e-6)


@every_formula
def test_bfloat16_computes_near_float32_and_returns_float32_logits(name, model):
    half = zoo.models.build(zoo.MODELS[name], zoo.VOCABULARY, zoo.VOCABULARY, "bfloat16")
    source, target = zoo.batch(np.random.default_rng(10))
    logits = jax.jit(half.apply)(model.params, source, target)
    assert logits.dtype == jnp.float32
    real = (target != PAD)[..., None]
    exact = model.logits(source, target)
    error = np.linalg.norm((logits - exact) * real) / np.linalg.norm(exact * real)
    assert 0 < error < 0.05  # eight bits of mantissa, a dozen products deep


OF_STRUCTURE = (
    test_step_by_step_equals_teacher_forced,
    test_every_leaf_of_memory_and_state_has_the_batch_in_front,
    test_padding_is_invisible,
    test_empty_rows_are_finite,
    test_decoding_does_not_depend_on_padding_or_neighbours,
    test_the_score_that_search_reports_is_the_score_of_teacher_forcing,
)
build_optimized = cache(partial(zoo.Pure, sharp=1.5, options=zoo.AS_USERS_COMPILE))


@zoo.each(sorted(zoo.FAMILIES), quick=(), rare=set(zoo.FAMILIES) - set(zoo.KINDS))
@pytest.mark.parametrize("law", OF_STRUCTURE, ids=lambda law: law.__name__.removeprefix("test_"))
def test_the_laws_hold_with_the_optimisations_of_xla(law, name):
    """Compiles as users do. Other tests turn optimisations off to save time."""
    with zoo.optimized():
        law(name, build_optimized(name))
