"""The conditional random field against enumeration of all sequences, for every length and with padding."""

from itertools import pairwise, product

import jax
import numpy as np
import pytest

from s2sjax.core.chains import crf

S, K = 4, 3
RNG = np.random.default_rng(0)
WEIGHTS = {name: RNG.normal(size=shape) for name, shape in {"transition": (K, K), "start": K, "end": K}.items()}
EMISSIONS = RNG.normal(size=(S + 1, S, K))  # a sentence of each length, its padding too
MASK = np.arange(S) < np.arange(S + 1)[:, None]


def by_hand(emissions, tags) -> float:
    if not tags:
        return 0.0
    moved = sum(WEIGHTS["transition"][a, b] for a, b in pairwise(tags))
    return WEIGHTS["start"][tags[0]] + WEIGHTS["end"][tags[-1]] + moved + sum(e[y] for e, y in zip(emissions, tags))


@pytest.fixture(scope="module")
def everything():
    """log Z, its gradient for the emissions, the best tags and their score, of each length."""

    def one(emissions, mask):
        total, gradient = jax.value_and_grad(lambda e: crf.log_partition(WEIGHTS, e, mask))(emissions)
        return total, gradient, *crf.viterbi(WEIGHTS, emissions, mask)

    with jax.enable_x64(True):
        return jax.device_get(jax.jit(jax.vmap(one))(EMISSIONS, MASK))


@pytest.mark.parametrize("n", range(S + 1))
def test_partition_and_viterbi_equal_enumeration(n, everything):
    total, gradient, tags, best = (part[n] for part in everything)
    scores = {y: by_hand(EMISSIONS[n], y) for y in product(range(K), repeat=n)}
    np.testing.assert_allclose(total, np.log(sum(map(np.exp, scores.values()))), atol=1e-12)
    assert tuple(tags) == max(scores, key=scores.__getitem__) + (0,) * (S - n)
    np.testing.assert_allclose(best, max(scores.values()), atol=1e-12)
    # The gradient of log Z is the probability of each tag at each position: none in padding.
    marginal = np.zeros((S, K))
    for y, each in scores.items():
        for t, tag in enumerate(y):
            marginal[t, tag] += np.exp(each - total)
    np.testing.assert_allclose(gradient, marginal, atol=1e-12)


def test_the_probabilities_of_all_sequences_sum_to_one():
    sequences = np.array(list(product(range(K), repeat=S)))
    with jax.enable_x64(True):
        of = jax.vmap(crf.log_likelihood, in_axes=(None, None, 0, None))
        log_p = jax.device_get(jax.jit(of)(WEIGHTS, EMISSIONS[S], sequences, MASK[S]))
    expected = [by_hand(EMISSIONS[S], tuple(y)) for y in sequences]
    np.testing.assert_allclose(log_p - log_p[0], np.array(expected) - expected[0], atol=1e-12)
    np.testing.assert_allclose(np.exp(log_p).sum(), 1, atol=1e-12)
