"""Losses against their formulas in numpy: sums over real tokens, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core import losses
from s2sjax.core.backend import device

ROWS, TIME, VOCABULARY = 4, 5, 7

cross_entropy = jax.jit(losses.cross_entropy, static_argnums=3)
log_likelihood = jax.jit(losses.log_likelihood)

every_smoothing = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])


def example(seed: int = 0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(ROWS, TIME, VOCABULARY)).astype(np.float32) * 3
    mask = np.arange(TIME) < np.array([5, 3, 1, 0])[:, None]
    return logits, rng.integers(0, VOCABULARY, (ROWS, TIME)), mask


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@every_smoothing
def test_cross_entropy_is_its_formula(smoothing):
    """-sum_v q_v log p_v, q = (1 - smoothing) one_hot + smoothing / V."""
    logits, labels, mask = example()
    q = (1 - smoothing) * np.eye(VOCABULARY)[labels] + smoothing / VOCABULARY
    total, weight = cross_entropy(logits, labels, mask, smoothing)
    np.testing.assert_allclose(total, -(q * log_softmax(logits)).sum(-1)[mask].sum(), rtol=1e-6)
    assert weight == mask.sum() == 9


@pytest.mark.parametrize("together", [False, True], ids=["as on a CPU", "as on a GPU"])
@every_smoothing
def test_the_gradient_of_a_logit_is_p_minus_q(monkeypatch, smoothing, together):
    """And a loss of one pass is that of several: with one word impossible, and with logits that overflow exp."""
    logits, labels, mask = example()
    logits[:, 1, (labels[:, 1] + 1) % VOCABULARY] = -200
    logits[:, 2] += 1000
    q = (1 - smoothing) * np.eye(VOCABULARY)[labels] + smoothing / VOCABULARY
    top = logits.max(-1, keepdims=True)
    log_p = logits - top - np.log(np.exp((logits - top).astype(np.float64)).sum(-1, keepdims=True))
    monkeypatch.setattr(device, "reduces_together", lambda: together)
    find = jax.jit(jax.value_and_grad(lambda logits: losses.cross_entropy(logits, labels, mask, smoothing)[0]))
    total, gradient = find(logits)
    np.testing.assert_allclose(total, -(q * log_p).sum(-1)[mask].sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, (np.exp(log_p) - q) * mask[..., None], atol=1e-4)


@every_smoothing
def test_padding_never_counts(smoothing):
    """Neither its logits nor its labels, even one that no vocabulary holds; and its gradient is zero."""
    logits, labels, mask = example()
    other = np.where(mask[..., None], logits, 50), np.where(mask, labels, -1)
    np.testing.assert_array_equal(
        cross_entropy(logits, labels, mask, smoothing), cross_entropy(*other, mask, smoothing)
    )
    np.testing.assert_array_equal(log_likelihood(logits, labels, mask), log_likelihood(*other, mask))
    gradient = np.asarray(jax.jit(jax.grad(lambda x: losses.cross_entropy(x, labels, mask, smoothing)[0]))(logits))
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).all()


@every_smoothing
def test_nothing_but_padding_weighs_nothing(smoothing):
    logits, labels, mask = example()
    np.testing.assert_array_equal(cross_entropy(logits, labels, np.zeros_like(mask), smoothing), (0, 0))


@every_smoothing
def test_the_parts_of_a_batch_add_up_to_it(smoothing):
    """Halves of unequal weight, as micro-batches and devices are: 8 tokens and 1."""
    arrays = example()
    first, second = [x[:2] for x in arrays], [x[2:] for x in arrays]
    parts = np.add(cross_entropy(*first, smoothing), cross_entropy(*second, smoothing))
    np.testing.assert_allclose(parts, cross_entropy(*arrays, smoothing), rtol=1e-6)


def test_log_likelihood_is_the_sum_of_each_sentence():
    logits, labels, mask = example()
    by_token = np.take_along_axis(log_softmax(logits), labels[..., None], -1)[..., 0]
    found = log_likelihood(logits, labels, mask)
    np.testing.assert_allclose(found, (by_token * mask).sum(1), rtol=1e-6)
    np.testing.assert_allclose(-np.sum(found), cross_entropy(logits, labels, mask, 0.0)[0], rtol=1e-6)


def test_large_logits_are_finite():
    """A shift of all logits changes nothing, and certainty costs nothing."""
    logits, labels, mask = example()
    sure = jnp.where(jnp.arange(VOCABULARY)[None, None] == labels[..., None], 1e30, -1e30)
    assert cross_entropy(sure, labels, mask, 0.0)[0] == 0
    np.testing.assert_allclose(
        cross_entropy(logits + 1e3, labels, mask, 0.0)[0], cross_entropy(logits, labels, mask, 0.0)[0], rtol=1e-4
    )
