"""Training losses: scheduled sampling and the softmax over some words, for every model of the zoo."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax import config, models
from s2sjax.core import losses, search
from s2sjax.core.losses import sampled_softmax, scheduled_sampling
from s2sjax.core.special_tokens import PAD
from s2sjax.models import objectives
from s2sjax.models.encoder_decoder import capability

BAR = 1e-5
# Always tested: one that goes step by step under its own output layer, one of two passes under a tied one.
QUICK = ("luong", "transformer-post")
every_model = zoo.each(zoo.FAMILIES, quick=("luong",), rare=set(zoo.FAMILIES) - set(zoo.KINDS))
# What costs most to compile: .ci/run takes one that goes step by step more, and one of convolutions.
some_models = zoo.each(zoo.FAMILIES, quick=("luong",), rare=set(zoo.FAMILIES) - set(zoo.KINDS))
KEY = jax.random.key(3)
SOURCE, TARGET = zoo.batch(np.random.default_rng(1))
FALLING = config.ScheduledSampling("linear", k=10, feed="argmax")  # step 0 reads the truth alone, step 10 itself alone
PROPOSAL = sampled_softmax.log_uniform(zoo.VOCABULARY)
ALL_WORDS = jnp.arange(zoo.VOCABULARY)[None]


def without_dropout(name: str):
    return models.build(zoo.without_dropout(zoo.MODELS[name]), zoo.VOCABULARY, zoo.VOCABULARY)


def compile_gradient(loss):
    """(gradient, loss) of the mean over real tokens, as a function of (params, batch, key, step)."""

    def mean(params, *arguments):
        total, weight = loss(params, *arguments)["loss"]
        return total / weight, total / weight

    return jax.jit(jax.grad(mean, has_aux=True))


@cache
def _scheduled(name: str):
    return compile_gradient(partial(objectives.scheduled_loss, without_dropout(name), 0.0, FALLING))


def scheduled_at(name: str, step: int, target=TARGET, key=KEY):
    batch = {"source": SOURCE, "target": target}
    return _scheduled(name)(zoo.build(name).params["params"], batch, key, jnp.int32(step))


def forced(name: str):
    """(gradient, loss) of teacher forcing, as all other tests know it."""
    total, weight = losses.cross_entropy(zoo.build(name).logits(SOURCE, TARGET), TARGET, TARGET != PAD)
    return zoo.build(name).gradient(SOURCE, TARGET)["params"], total / weight


def assert_close(found, expected):
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 0.1
    jax.tree.map(partial(np.testing.assert_allclose, atol=BAR), found, expected)


# -------------------------------------------------------------------------- scheduled sampling


@every_model
def test_reading_the_truth_alone_is_teacher_forcing(name):
    assert_close(scheduled_at(name, 0), forced(name))


@partial(jax.jit, static_argnums=0)
def greedy(module, params, source):
    apply = partial(module.apply, params)
    memory = apply(source, method="encode")
    step = lambda state, token: apply(memory, state, token, method="step")
    length = TARGET.shape[1]
    return search.greedy(step, apply(memory, 9, method="init_state"), jnp.full(len(source), 9), 9).tokens[:, 0, :length]


@every_model
def test_reading_itself_alone_is_greedy_search_fed_back(name):
    """A parallel model reads the outputs of its first pass instead, which read the truth."""
    model = zoo.build(name)
    if capability(model.module.decoder_type, "parallel"):
        target = TARGET
        own = np.asarray(scheduled_sampling.own_output(jnp.asarray(model.logits(SOURCE, target)), None))
    else:
        own = np.asarray(greedy(model.module, model.params, SOURCE))
        target = np.where(own == PAD, PAD, 5)  # as long as what is written
    assert np.any(own[:, :-1] != target[:, :-1])
    total, weight = losses.cross_entropy(model.logits(SOURCE, own), target, target != PAD)
    assert scheduled_at(name, 10, target)[1] == pytest.approx(float(total / weight), abs=BAR)


@pytest.mark.parametrize("name", QUICK)
def test_the_step_decides_and_the_same_step_gives_the_same_mixture(name):
    mixture = scheduled_at(name, 7)
    jax.tree.map(np.testing.assert_array_equal, mixture, scheduled_at(name, 7))
    others = [scheduled_at(name, step)[1] for step in (0, 10)]
    others += [scheduled_at(name, 7, key=jax.random.key(seed))[1] for seed in range(9)]
    assert len({float(loss) for loss in [mixture[1], *others]}) > 3
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(mixture))


# ------------------------------------------------------ dropout, and the softmax over some words


def several_losses(name: str, params, key):
    """Those of several objectives, from one program: teacher forced, scheduled, a part's, all words', samples'."""
    quiet, noisy = without_dropout(name), zoo.build(name).module
    batch = {"source": SOURCE, "target": TARGET, "part": np.ones(len(SOURCE), np.int32)}
    fed = (0.0, config.ScheduledSampling("constant", k=1.0), params, batch, key, jnp.int32(0))
    part = jnp.array([[0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 5, 6]])
    return {
        "forced": objectives.loss(noisy, 0.0, params, batch, key),
        "scheduled": objectives.scheduled_loss(noisy, *fed),
        "part": objectives.subset_loss(quiet, part, params, batch, key),
        "all words": objectives.subset_loss(quiet, jnp.tile(ALL_WORDS, (2, 1)), params, batch, key),
        "samples": objectives.sampled_loss(quiet, PROPOSAL, 20_000, params, batch, key),
    }


@some_models
def test_dropout_acts_and_parts_and_samples_are_what_they_claim(name):
    model = zoo.build(name)
    program = jax.jit(partial(several_losses, name))
    found = [program(model.params["params"], jax.random.key(seed)) for seed in range(2)]
    one, other = ({which: float(pairs["loss"][0]) for which, pairs in each.items()} for each in found)

    assert one["scheduled"] != other["scheduled"]  # each step has its own masks
    if capability(model.module.decoder_type, "parallel"):  # both passes have those of teacher forcing
        assert one["scheduled"] == pytest.approx(one["forced"], abs=BAR)

    logits, real = jnp.asarray(model.logits(SOURCE, TARGET)), TARGET != PAD
    full = losses.cross_entropy(logits, TARGET, real)[0]
    without_unknown = losses.cross_entropy(logits.at[..., 3].set(-jnp.inf), TARGET, real)[0]
    assert one["all words"] == other["all words"] == pytest.approx(float(full), abs=BAR)
    assert one["part"] == pytest.approx(float(without_unknown), abs=BAR) and abs(full - without_unknown) > 0.01
    assert one["samples"] != other["samples"]
    assert one["samples"] == pytest.approx(float(full), rel=0.02)


@some_models
def test_r_drop_is_the_cross_entropy_and_what_two_predictions_differ_by(name):
    """Computes R-Drop by its definition, from the logits of two copies of each row; it is 0 without dropout."""
    noisy, params = zoo.build(name).module, zoo.build(name).params["params"]
    batch, strength, smoothing = {"source": SOURCE, "target": TARGET}, 3.0, 0.1
    key = jax.random.key(5)

    @jax.jit
    def program(params, key):
        copies = np.repeat(SOURCE, 2, axis=0), np.repeat(TARGET, 2, axis=0)
        logits = noisy.apply({"params": params}, *copies, True, rngs={"dropout": key})
        found = objectives.r_drop_loss(noisy, smoothing, strength, params, batch, key)
        quiet = objectives.r_drop_loss(without_dropout(name), smoothing, strength, params, batch, key)
        return logits, found, quiet, objectives.loss(without_dropout(name), smoothing, params, batch, key)

    logits, found, quiet, forced_loss = program(params, key)
    logits, real = np.asarray(logits, np.float64), TARGET != PAD
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    q = (1 - smoothing) * np.eye(logits.shape[-1])[np.repeat(TARGET, 2, axis=0)] + smoothing / logits.shape[-1]
    each = -(q * log_p).sum(-1)
    one, other = log_p[0::2], log_p[1::2]
    divergence = (np.exp(one) * (one - other) + np.exp(other) * (other - one)).sum(-1)
    expected = (each[0::2] + each[1::2]) / 2 + strength / 4 * divergence
    assert (divergence[real] > 0).any()
    np.testing.assert_allclose(found["loss"], (expected[real].sum(), real.sum()), rtol=1e-5)
    np.testing.assert_allclose(found["cross_entropy"][0], ((each[0::2] + each[1::2]) / 2)[real].sum(), rtol=1e-5)
    for same in quiet.values():
        np.testing.assert_allclose(same, forced_loss["loss"], rtol=1e-5)


@zoo.each(zoo.FAMILIES, quick=(), rare=set(zoo.FAMILIES) - set(QUICK))
def test_the_gradients_over_all_words_and_over_many_samples_are_those_of_the_softmax(name):
    module, params = without_dropout(name), zoo.build(name).params["params"]
    batch = {"source": SOURCE, "target": TARGET, "part": np.zeros(len(SOURCE), np.int32)}
    over = lambda loss: compile_gradient(loss)(params, batch, KEY)
    assert_close(over(partial(objectives.subset_loss, module, ALL_WORDS)), forced(name))
    gradient, _ = over(partial(objectives.sampled_loss, module, PROPOSAL, 20_000))
    norm = lambda tree: np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(tree)))
    full = forced(name)[0]
    assert norm(jax.tree.map(jnp.subtract, gradient, full)) < 0.05 * norm(full)


def test_the_configuration_chooses_the_loss():
    module, words = without_dropout("luong"), ALL_WORDS
    choose = lambda **options: objectives.choose(module, config.Train(**options), PROPOSAL, words).func
    assert choose() is objectives.loss
    assert choose(scheduled_sampling=FALLING) is objectives.scheduled_loss
    assert choose(r_drop=5.0) is objectives.r_drop_loss
    assert choose(softmax=config.Softmax(samples=3)) is objectives.sampled_loss
    assert choose(softmax=config.Softmax(subset=3)) is objectives.subset_loss
