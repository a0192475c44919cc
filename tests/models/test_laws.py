"""The laws of the contract, s2sjax/testing/model_laws.py, for every model of the zoo; and those of formulas."""

import dataclasses
import itertools
import operator
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
from s2sjax.testing import model_laws

# Laws that compile programs of their own, or every operation by itself.
SEARCHES = (model_laws.decoding_is_independent, model_laws.search_reports_the_score_of_teacher_forcing)
COSTLY = (
    *SEARCHES,
    model_laws.noise_is_only_in_training,
    model_laws.jit_changes_nothing,
    model_laws.gradients_reach_every_parameter,
    model_laws.beams_equal_steps,
)
law_name = operator.attrgetter("__name__")
every_model = zoo.each(zoo.MODELS, rare=zoo.COMBINATIONS)
SEARCHED = {*zoo.KINDS, "rnnsearch", "dense-dense"}  # a search costs much to compile
every_family = zoo.each(zoo.FAMILIES, quick=("luong",), rare=set(zoo.FAMILIES) - SEARCHED)
every_search = zoo.each(zoo.MODELS, quick=("luong",), rare=set(zoo.MODELS) - SEARCHED)
# What depends on formulas, which the tests of the core check one by one, more than on how a model joins them.
GATING = {*zoo.KINDS, "rnnsearch", "gnmt", "cnn-rnn-gated-max"}
every_formula = zoo.each(zoo.MODELS, quick=("luong",), rare=set(zoo.MODELS) - GATING)


def options(model) -> set:
    """The settings of a model that choose code: names, switches, and vectors without an embedding."""
    values = [(field.name, getattr(model, field.name)) for field in dataclasses.fields(model)]
    inside = [options(value) for _, value in values if dataclasses.is_dataclass(value)]
    chosen = {(name, value) for name, value in values if isinstance(value, str | bool)}
    return chosen.union(*inside) | ({"one-hot"} if ("embedding_size", 0) in values else set())


def test_every_option_is_in_a_model_that_every_change_is_tested_with():
    tested = set().union(*(options(model) for name, model in zoo.MODELS.items() if name not in zoo.COMBINATIONS))
    for name in zoo.COMBINATIONS:
        assert options(zoo.MODELS[name]) <= tested, name


@pytest.fixture
def model(name):
    return zoo.build(name)


@every_model
@pytest.mark.parametrize("law", [law for law in model_laws.LAWS if law not in COSTLY], ids=law_name)
def test_a_law_holds(law, name, model):
    law(model)


@every_search
@pytest.mark.parametrize("law", SEARCHES, ids=law_name)
def test_a_law_of_search_holds(law, name, model):
    law(model)


@zoo.each(zoo.MODELS, quick=("luong",), rare=set(zoo.MODELS) - set(zoo.QUICK))
@pytest.mark.parametrize("law", [law for law in COSTLY if law not in SEARCHES], ids=law_name)
def test_a_costly_law_holds(law, name, model):
    law(model)


@every_model
def test_attention_is_a_distribution_over_the_source(name, model):
    """But for a predictive window, whose Gaussian thins the weights, as published."""
    attention = model.step_by_step(*zoo.batch(np.random.default_rng(2)))[1][0]
    if attention is not None and getattr(zoo.MODELS[name], "window", None) != "predictive":
        np.testing.assert_allclose(attention.sum(1), 1, atol=1e-6)


WITH_HEADS = [name for name, of in zoo.MODELS.items() if models.build(of, 9, 9).has_attention_heads]


@zoo.each(WITH_HEADS, quick=(), rare=set(WITH_HEADS) - set(zoo.KINDS))
def test_every_layer_and_head_has_attention_of_its_own(name, model):
    batch = zoo.batch(np.random.default_rng(12))
    heads = np.asarray(model.module.apply(model.params, *batch, method="attention_heads"))
    decoder = config.encoder_and_decoder(zoo.MODELS[name])[1]
    assert heads.shape[2] == (decoder.heads or 1)
    assert heads.shape[1] > 1 and np.abs(heads[:, 0] - heads[:, 1]).max() > 1e-3


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
        check_grads(loss, (params,), order=1, modes=["rev"], rtol=1e-6, atol=1e-9, eps=2e-7)


@every_formula
def test_bfloat16_computes_near_float32_and_returns_float32_logits(name, model):
    half = models.build(zoo.MODELS[name], zoo.VOCABULARY, zoo.VOCABULARY, "bfloat16")
    source, target = zoo.batch(np.random.default_rng(10))
    logits = jax.jit(half.apply)(model.params, source, target)
    assert logits.dtype == jnp.float32
    real = (target != PAD)[..., None]
    exact = model.logits(source, target)
    relative = lambda found: np.linalg.norm((found - exact) * real) / np.linalg.norm(exact * real)
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(leaf.dtype), model.params)
    of_weights = relative(jax.jit(model.module.apply)(rounded, source, target))
    # Eight bits of mantissa, a dozen products deep; or a model that is as sensitive to its weights.
    assert 0 < relative(logits) < max(0.05, 2 * of_weights)


OF_STRUCTURE = (
    model_laws.shapes_follow_the_contract,
    model_laws.steps_equal_teacher_forcing,
    model_laws.empty_rows_are_finite,
    model_laws.rows_are_independent,
    model_laws.padding_is_invisible,
    *SEARCHES,
)
build_optimized = cache(partial(zoo.Pure, sharp=zoo.SHARPNESS, options=zoo.AS_USERS_COMPILE))


@zoo.each(sorted(zoo.FAMILIES), quick=(), rare=set(zoo.FAMILIES) - {"transformer-post"})
@pytest.mark.parametrize("law", OF_STRUCTURE, ids=law_name)
def test_the_laws_hold_with_the_optimisations_of_xla(law, name):
    """Compiles as users do. Other tests turn optimisations off to save time."""
    with zoo.optimized():
        law(build_optimized(name))
