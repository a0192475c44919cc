"""Hidden Markov models equal brute-force enumeration, by scan and by associative scan."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core.chains import hmm

K, V, T = 3, 4, 5
IMPOSSIBLE = 3  # a symbol that no state emits


def random_model(seed: int = 0) -> hmm.Model:
    """State 2 never follows state 0, and no state emits the last symbol."""
    rng = np.random.default_rng(seed)
    initial, transition, emission = rng.dirichlet(np.ones(K)), rng.dirichlet(np.ones(K), K), rng.random((K, V))
    transition[0, 2], emission[:, IMPOSSIBLE] = 0, 0
    parts = [p / p.sum(-1, keepdims=True) for p in (initial, transition, emission)]
    with np.errstate(divide="ignore"):
        return hmm.Model(*(jnp.array(np.log(p), jnp.float32) for p in parts))


SYMBOLS = np.array([[0, 1, 2, 0, 1], [2, 2, 1, 0, 0], [1, 0, 2, 1, 0], [0, IMPOSSIBLE, 1, 2, 0], [1, 2, 0, 0, 0]])
LENGTHS = np.array([5, 5, 3, 4, 1])
MASK = np.arange(T) < LENGTHS[:, None]


def enumerate_paths(model: hmm.Model, symbols) -> dict[tuple[int, ...], float]:
    """p(x, y) of every path x."""
    initial, transition, emission = (np.exp(np.asarray(part, np.float64)) for part in model)
    found = {}
    for path in itertools.product(range(K), repeat=len(symbols)):
        p = initial[path[0]] * np.prod([transition[i, j] for i, j in itertools.pairwise(path)])
        found[path] = p * np.prod([emission[x, y] for x, y in zip(path, symbols)])
    return found


@partial(jax.jit, static_argnames="parallel")
def everything(model, symbols, mask, parallel):
    def one(y, real):
        arguments = (model.initial, model.transition, model.observe(y), real, parallel)
        return hmm.filter(*arguments), hmm.smooth(*arguments), hmm.viterbi(*arguments)

    return jax.vmap(one)(symbols, mask)


@pytest.fixture(scope="module")
def computed():
    model = random_model()
    return model, {parallel: jax.device_get(everything(model, SYMBOLS, MASK, parallel)) for parallel in (False, True)}


@pytest.mark.parametrize("parallel", [False, True])
def test_classical_matched_case_hidden_markov_model_equals_enumeration(computed, parallel):
    """Filter, smoother, expected transitions, likelihood and Viterbi path, of sequences of several lengths."""
    model, found = computed
    filtered, smoothed, best = found[parallel]
    for n, length in enumerate(LENGTHS):
        paths = enumerate_paths(model, SYMBOLS[n, :length])
        total = sum(paths.values())
        if total == 0:
            continue
        np.testing.assert_allclose(filtered.log_likelihood[n], np.log(total), rtol=1e-5)
        np.testing.assert_allclose(smoothed.log_likelihood[n], np.log(total), rtol=1e-5)
        states, steps = np.zeros((length, K)), np.zeros((K, K))
        for path, p in paths.items():
            np.add.at(states, (np.arange(length), path), p / total)
            np.add.at(steps, (path[:-1], path[1:]), p / total)
        np.testing.assert_allclose(smoothed.states[n, :length], states, atol=1e-5)
        np.testing.assert_allclose(smoothed.transitions[n], steps, atol=1e-5)
        for t in range(length):
            so_far = enumerate_paths(model, SYMBOLS[n, : t + 1])
            now = [sum(p for path, p in so_far.items() if path[-1] == k) for k in range(K)]
            np.testing.assert_allclose(np.exp(filtered.states[n, t]), np.array(now) / sum(now), atol=1e-5)
        top = max(paths, key=paths.__getitem__)
        assert tuple(best.states[n, :length]) == top
        np.testing.assert_allclose(best.log_prob[n], np.log(paths[top]), rtol=1e-5)


def test_scan_and_associative_scan_agree(computed):
    _, found = computed
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found[False], found[True])


@pytest.mark.parametrize("parallel", [False, True])
def test_padding_has_no_states_and_an_impossible_observation_no_nan(computed, parallel):
    filtered, smoothed, best = computed[1][parallel]
    assert (smoothed.states[~MASK] == 0).all() and (best.states[~MASK] == -1).all()
    impossible = 3
    assert filtered.log_likelihood[impossible] == smoothed.log_likelihood[impossible] == -np.inf
    assert best.log_prob[impossible] == -np.inf
    assert (smoothed.states[impossible] == 0).all() and (smoothed.transitions[impossible] == 0).all()
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(computed[1][parallel]))


def test_a_tie_takes_the_first_state_both_ways():
    even = hmm.Model(jnp.zeros(K), jnp.zeros((K, K)), jnp.zeros((K, V)))
    for parallel in (False, True):
        _, _, best = everything(even, SYMBOLS, MASK, parallel)
        assert best.states[0].tolist() == [0] * T


def test_em_raises_the_likelihood_and_its_counts_are_those_of_enumeration():
    """The impossible sequence is left out: its likelihood is zero under every model that EM can reach."""
    model, real = random_model(), [0, 1, 2, 4]
    symbols, mask = SYMBOLS[real], MASK[real]
    em_step = jax.jit(hmm.em_step)
    one_step = jax.device_get(em_step(model, symbols, mask)[0])
    visits, starts = np.zeros((K, V)), np.zeros(K)
    for row, length in zip(symbols, LENGTHS[real]):
        paths = enumerate_paths(model, row[:length])
        for path, p in paths.items():
            starts[path[0]] += p / sum(paths.values())
            np.add.at(visits, (path, row[:length]), p / sum(paths.values()))
    np.testing.assert_allclose(np.exp(one_step.initial), starts / starts.sum(), atol=1e-5)
    np.testing.assert_allclose(np.exp(one_step.emission), visits / visits.sum(1, keepdims=True), atol=1e-5)
    log_likelihoods = []
    for _ in range(20):
        model, log_likelihood = em_step(model, symbols, mask)
        log_likelihoods.append(log_likelihood)
    assert (np.diff(log_likelihoods) >= -1e-5).all() and log_likelihoods[-1] > log_likelihoods[0] + 1


@pytest.mark.slow
def test_em_recovers_a_known_model():
    r"""Two dice, as in Durbin et al. 1998: one fair, one that shows six half of the time.

            0.95        0.9
           /---\   0.05  /---\
           |fair| <----> |loaded|
                   0.1
    """
    truth = hmm.Model(
        jnp.log(jnp.array([0.7, 0.3])),
        jnp.log(jnp.array([[0.95, 0.05], [0.1, 0.9]])),
        jnp.log(jnp.array([[1 / 6] * 6, [0.1] * 5 + [0.5]])),
    )
    rng = np.random.default_rng(0)
    initial, transition, emission = (np.exp(np.asarray(part, np.float64)) for part in truth)
    rolls = np.zeros((100, 200), np.int32)
    for row in rolls:
        state = rng.choice(2, p=initial / initial.sum())
        for t in range(len(row)):
            row[t] = rng.choice(6, p=emission[state] / emission[state].sum())
            state = rng.choice(2, p=transition[state] / transition[state].sum())
    start = hmm.Model(
        jnp.log(jnp.array([0.5, 0.5])),
        jnp.log(jnp.array([[0.8, 0.2], [0.2, 0.8]])),
        jnp.log(jnp.array([[1 / 6] * 6, [0.15] * 5 + [0.25]])),
    )
    found, log_likelihoods = jax.jit(partial(hmm.em, steps=60))(start, rolls)
    assert (np.diff(log_likelihoods) >= -0.05).all()  # float32: the sum is -34,000
    _, of_truth = hmm.em_step(truth, rolls)
    assert log_likelihoods[-1] > of_truth  # as of every maximum: the rolls are explained better than by what made them
    # About 13,000 rolls of the fair die and 7,000 of the other: a share of a half has a standard error of 0.006 there,
    # and more where the die must be guessed.
    np.testing.assert_allclose(np.exp(found.transition), np.exp(truth.transition), atol=0.02)
    np.testing.assert_allclose(np.exp(found.emission), np.exp(truth.emission), atol=0.025)


def test_the_posteriors_of_a_long_sequence_are_probabilities():
    """log p(y) is about -20,000 there, of which float32 keeps three digits behind the point."""
    model = random_model()
    symbols = np.random.default_rng(1).integers(0, IMPOSSIBLE, 20_000)
    found = jax.jit(lambda y: hmm.smooth(model.initial, model.transition, model.observe(y)))(symbols)
    np.testing.assert_allclose(found.states.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(found.transitions.sum(), len(symbols) - 1, rtol=1e-4)
