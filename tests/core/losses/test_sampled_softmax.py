"""Sampled softmax: the estimate of Z is unbiased, exactly; the gradient approaches the full one as more are drawn."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from s2sjax.core import losses
from s2sjax.core.losses import sampled_softmax

SIZE = 6


def test_a_proposal_owns_every_number_once():
    q = sampled_softmax.proposal([1, 3])
    assert q.bounds.tolist() == [2**30] and np.exp(q.log_q).tolist() == [0.25, 0.75]
    rare = sampled_softmax.proposal([1e12, 1e-12, 1e-12])  # however rare, a word can be drawn
    assert rare.bounds.tolist() == [2**32 - 2, 2**32 - 1]
    assert np.exp(rare.log_q[1:]) == pytest.approx(2.0**-32)


def test_words_are_drawn_as_often_as_the_proposal_says():
    q = sampled_softmax.log_uniform(SIZE)
    expected = np.log((np.arange(SIZE) + 2) / (np.arange(SIZE) + 1)) / np.log(SIZE + 1)
    np.testing.assert_allclose(np.exp(q.log_q), expected, rtol=1e-6)
    words = np.asarray(sampled_softmax.draw(q, jax.random.key(0), 60_000))
    zoo.check_shares(np.bincount(words, minlength=SIZE), expected)


@pytest.mark.parametrize("count", [1, 3])
def test_the_mean_of_z_over_all_draws_is_z(count):
    """Every draw of `count` of six words, times its probability: no sampling error is left, only rounding."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        logits = jnp.asarray(rng.normal(size=SIZE) * 2)
        q = sampled_softmax.proposal(rng.uniform(0.1, 1, SIZE))
        log_q = jnp.log(jnp.diff(jnp.array([0, *q.bounds.tolist(), 2**32])) / 2.0**32)  # q itself, in float64
        draws = jnp.array(list(itertools.product(range(SIZE), repeat=count)))
        probability = jnp.exp(log_q[draws].sum(1))
        assert probability.sum() == pytest.approx(1, abs=1e-12)
        labels = jnp.arange(SIZE)
        of_draw = lambda words: sampled_softmax.log_normaliser(
            logits, jnp.tile(logits[words], (SIZE, 1)), words, log_q[words], labels
        )
        z = np.exp(jax.jit(jax.vmap(of_draw))(draws))  # [draws, labels]
        assert z.std(0).min() > 0.1
        np.testing.assert_allclose(probability @ z, np.full(SIZE, np.exp(logits).sum()), rtol=1e-12)


@pytest.mark.slow
def test_the_expected_gradient_approaches_the_full_one_as_samples_grow():
    rng = np.random.default_rng(1)
    weights = jnp.asarray(rng.normal(size=(SIZE, 3)), jnp.float32)
    hidden = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)
    labels, mask = jnp.array([0, 3, 5, 2]), jnp.array([True, True, True, False])
    q = sampled_softmax.log_uniform(SIZE)

    def estimate(weights, key, count):
        words = sampled_softmax.draw(q, key, count)
        true, others = jnp.sum(hidden * weights[labels], -1), hidden @ weights[words].T
        return sampled_softmax.cross_entropy(true, others, words, jnp.asarray(q.log_q)[words], labels, mask)[0]

    full = jax.grad(lambda w: losses.cross_entropy(hidden @ w.T, labels, mask)[0])(weights)
    errors = []
    for count in (1, 16, 256):
        of_key = lambda key, count=count: jax.grad(estimate)(weights, key, count)
        mean = jax.jit(jax.vmap(of_key))(jax.random.split(jax.random.key(2), 1000)).mean(0)
        errors.append(float(jnp.linalg.norm(mean - full) / jnp.linalg.norm(full)))
    assert errors[0] > 0.2 and errors[1] < errors[0] / 4 and errors[2] < 0.01


def test_padding_counts_nothing_and_a_hit_of_the_label_counts_nothing():
    true, others = jnp.array([1.0, 2.0]), jnp.array([[3.0, 0.5], [9.0, 9.0]])
    words, log_q = jnp.array([4, 5]), jnp.log(jnp.array([0.5, 0.25]))
    total, weight = sampled_softmax.cross_entropy(
        true, others, words, log_q, jnp.array([4, 0]), jnp.array([True, False])
    )
    z = np.exp(1.0) + np.exp(0.5) / (2 * 0.25)  # the word 4 is the label itself
    assert weight == 1 and total == pytest.approx(np.log(z) - 1, rel=1e-6)
