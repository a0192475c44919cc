"""CTC against the enumeration of all alignments."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core.chains import ctc, ngram_language_model
from s2sjax.core.chains.ctc_prefix_search import LanguageModel, prefix_search

T, V, L = 5, 3, 3
nll = jax.jit(ctc.negative_log_likelihood, static_argnums=4)


def random_log_probs(seed, frames=T, symbols=V, sharp=2.0):
    logits = sharp * np.random.default_rng(seed).normal(size=(frames, symbols))
    return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), np.float32)


def sums_by_labels(log_probs, blank=0) -> dict[tuple[int, ...], float]:
    """p(labels), by enumeration of all V^T alignments, in float64."""
    found: dict[tuple[int, ...], float] = {}
    for alignment in product(range(log_probs.shape[1]), repeat=len(log_probs)):
        labels = tuple(ctc.collapse(alignment, blank))
        log_prob = sum(float(log_probs[t, symbol]) for t, symbol in enumerate(alignment))
        found[labels] = found.get(labels, 0.0) + np.exp(log_prob)
    return found


def padded(labels, room=L, fill=0):
    return np.array([*labels, *[fill] * (room - len(labels))], np.int32)


def test_matched_but_unaligned_ctc():
    """Blanks and repeats: the alignment of `Hello`, and the loss of every label sequence as a sum over alignments."""
    assert "".join(ctc.collapse("HHHHHH-eeeelll-lll--oo---", blank="-")) == "Hello"
    assert ctc.collapse([0, 1, 1, 0, 0, 1, 2, 2]) == [1, 1, 2]
    assert ctc.collapse([]) == ctc.collapse([0, 0]) == []
    log_probs = random_log_probs(10, frames=3)
    for labels, prob in sums_by_labels(log_probs).items():
        found = nll(np.pad(log_probs, ((0, T - 3), (0, 0))), 3, padded(labels), len(labels), 0)
        np.testing.assert_allclose(np.exp(-found), prob, rtol=1e-5)


def test_the_loss_is_the_sum_over_all_alignments(blank=V - 1):
    """With another blank."""
    log_probs = random_log_probs(0)
    expected = sums_by_labels(log_probs, blank)
    short = [labels for labels in expected if len(labels) <= L]
    assert () in short and len(short) > 10
    for labels in short:
        found = nll(log_probs, T, padded(labels, fill=blank), len(labels), blank)
        np.testing.assert_allclose(found, -np.log(expected[labels]), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def loss_and_gradient():
    def loss(*arguments):
        found = ctc.ctc_loss(*arguments)
        return found["loss"][0], found

    return jax.jit(jax.grad(loss, has_aux=True))


@pytest.mark.slow
def test_the_gradient_matches_finite_differences():
    labels, frames, count = np.array([[1, 1, 0]], np.int32), np.array([T]), np.array([2])
    with jax.enable_x64(True):
        logits = np.random.default_rng(1).normal(size=(1, T, V))
        loss = jax.jit(lambda x: ctc.ctc_loss(x, frames, labels, count)["loss"][0])
        gradient = np.asarray(jax.jit(jax.grad(loss))(logits))
        for t, v in product(range(T), range(V)):
            step = np.zeros_like(logits)
            step[0, t, v] = 1e-4
            slope = (loss(logits + step) - loss(logits - step)) / 2e-4
            np.testing.assert_allclose(gradient[0, t, v], slope, rtol=1e-6, atol=1e-8)


def test_padding_empty_and_infeasible_rows(loss_and_gradient):
    """Rows: a pair; the same, padded; no labels; neither frames nor labels; two that are not feasible."""
    log_probs, rng = random_log_probs(2), np.random.default_rng(3)
    frames = np.array([3, 3, 3, 0, 2, 0], np.int32)
    labels = np.array([[1, 2, 0], [1, 2, 1], [0, 0, 0], [0, 0, 0], [1, 1, 0], [2, 0, 0]], np.int32)
    count = np.array([2, 2, 0, 0, 2, 1], np.int32)
    logits = np.tile(log_probs, (6, 1, 1))
    logits[1, 3:] = 100 * rng.normal(size=(T - 3, V))  # padding, whatever it holds
    gradient, found = loss_and_gradient(logits, frames, labels, count)
    expected = sums_by_labels(log_probs[:3])
    np.testing.assert_allclose(found["loss"], (-2 * np.log(expected[1, 2]) - np.log(expected[()]), 3), rtol=1e-6)
    assert found["infeasible"] == (2, 5)
    assert ctc.feasible(frames, jnp.asarray(labels), count).tolist() == [True, True, True, True, False, False]
    assert np.isinf(nll(log_probs, 2, labels[4], 2, 0))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[0], gradient[1])
    assert not gradient[3:].any() and not gradient[:, 3:].any() and gradient[2].any()


def test_frames_needed_counts_repeats():
    labels = np.array([[1, 1, 2], [1, 1, 1], [1, 1, 1], [1, 2, 1]])
    assert ctc.frames_needed(labels, np.array([3, 3, 1, 3])).tolist() == [4, 5, 1, 3]


def test_the_loss_is_never_negative():
    """Long, in float32, with models that are sure of every frame."""
    rng = np.random.default_rng(4)
    frames, symbols, room, rows = 400, 4, 20, 16
    for sharp in (1.0, 30.0):
        labels = rng.integers(1, symbols, (rows, room)).astype(np.int32)
        count = rng.integers(0, room + 1, rows).astype(np.int32)
        logits = rng.normal(size=(rows, frames, symbols)).astype(np.float32)
        for row in range(rows):  # an alignment of the labels, of which the model is sure
            states = np.sort(rng.integers(0, 2 * count[row] + 1, frames))
            states = np.maximum(np.minimum(states, np.arange(frames)), 2 * count[row] - frames + 1 + np.arange(frames))
            symbol = np.where(states % 2 == 1, labels[row, np.minimum(states // 2, room - 1)], 0)
            logits[row, np.arange(frames), symbol] += sharp
        log_probs = jax.nn.log_softmax(logits)
        each = many(log_probs, np.full(rows, frames), labels, count)
        assert np.isfinite(each).all() and (np.asarray(each) >= 0).all()
    assert np.min(each) < 1e-3  # near zero, where rounding could make it negative


many = jax.jit(jax.vmap(ctc.negative_log_likelihood))


@pytest.mark.exhaustive
def test_rounding_stays_small_on_many_frames():
    """Float32 against float64 on 1,000 frames: a loss of about 1,000, and gradients up to 1. Optax is off by 1e-3."""
    rng = np.random.default_rng(9)
    logits = rng.normal(size=(2, 1000, 4))
    labels, count, frames = rng.integers(1, 4, (2, 20)).astype(np.int32), np.array([20, 11]), np.array([1000, 900])
    loss = lambda logits: ctc.ctc_loss(logits, frames, labels, count)["loss"][0]
    value, gradient = jax.jit(jax.value_and_grad(loss))(logits.astype(np.float32))
    with jax.enable_x64(True):
        exact, exact_gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(logits))
        np.testing.assert_allclose(value, exact, rtol=1e-6)
        np.testing.assert_allclose(gradient, exact_gradient, atol=5e-5)


@pytest.mark.exhaustive
def test_it_agrees_with_optax():
    optax = pytest.importorskip("optax")
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(3, 12, 4)).astype(np.float32)
    labels = rng.integers(1, 4, (3, 4)).astype(np.int32)
    frames, count = np.array([12, 9, 10]), np.array([4, 2, 0])
    is_padding = lambda room, real: (np.arange(room) >= real[:, None]).astype(np.float32)
    theirs = optax.ctc_loss(logits, is_padding(12, frames), labels, is_padding(4, count))
    np.testing.assert_allclose(many(jax.nn.log_softmax(logits), frames, labels, count), theirs, rtol=1e-5)


@pytest.mark.slow
def test_posteriors_and_the_best_alignment():
    log_probs, labels = random_log_probs(6), (1, 2)
    alignments = [a for a in product(range(V), repeat=4) if tuple(ctc.collapse(a)) == labels]
    weights = np.array([sum(log_probs[t, v] for t, v in enumerate(a)) for a in alignments])
    share = np.exp(weights) / np.exp(weights).sum()
    expected = sum(p * np.eye(V)[list(a)] for p, a in zip(share, alignments))
    found = jax.jit(ctc.posteriors)(log_probs, 4, padded(labels), 2)
    np.testing.assert_allclose(found, np.vstack([expected, np.zeros(V)]), atol=1e-6)

    align = jax.jit(ctc.align)
    states, log_prob = align(log_probs, 4, padded(labels), 2)
    best = alignments[np.argmax(weights)]
    assert [0 if u % 2 == 0 else labels[u // 2] for u in states[:4].tolist()] == list(best)
    assert states[4] == -1 and np.isclose(log_prob, weights.max(), rtol=1e-6)
    assert np.isneginf(align(log_probs, 2, padded((1, 1)), 2)[1])


def test_greedy_reads_the_best_alignment():
    best = [0, 1, 1, 0, 1, 2, 2, 1]
    log_probs = np.log(0.1 + 0.7 * np.eye(V)[best], dtype=np.float32)
    greedy = jax.jit(ctc.greedy)
    labels, count, log_prob = greedy(log_probs, 7)
    assert labels.tolist() == [1, 1, 2, -1, -1, -1, -1, -1] and count == 3
    np.testing.assert_allclose(log_prob, 7 * np.log(0.8), rtol=1e-6)
    assert greedy(log_probs, 0)[1] == 0


# -------------------------------------------------------------------------------- prefix search

BIGRAM = ngram_language_model.estimate([(1, 2), (1, 2, 2), (2,)], V, order=2)


@pytest.mark.parametrize("weight, bonus", [(0.7, 0.9), pytest.param(None, 0.0, marks=pytest.mark.slow)])
def test_a_wide_prefix_beam_equals_enumeration(weight, bonus):
    """Log-probabilities of all label sequences, and their order, with and without a language model."""
    model = None if weight is None else BIGRAM
    search = jax.jit(partial(prefix_search, width=40, room=4, model=model, weight=weight or 0.0, bonus=bonus))
    for seed in range(3):
        log_probs = random_log_probs(seed)
        expected = sums_by_labels(log_probs[:4])
        score = {}
        for labels, prob in expected.items():
            states = np.array([0, *labels])
            language = sum(BIGRAM.log_probs[a, b] for a, b in zip(states, np.array([*labels, 0])))
            score[labels] = np.log(prob) + (weight or 0.0) * language + bonus * len(labels)
        found = search(log_probs, 4)
        real = np.isfinite(found.score)
        assert real.sum() == len(expected)
        names = [tuple(row[:n].tolist()) for row, n in zip(np.asarray(found.labels)[real], found.length[real])]
        assert len(set(names)) == len(names)
        np.testing.assert_allclose(found.log_prob[real], np.log([expected[name] for name in names]), atol=1e-5)
        np.testing.assert_allclose(found.score[real], [score[name] for name in names], atol=1e-5)
        assert names[0] == max(score, key=lambda name: score[name])


def test_prefix_search_finds_what_greedy_misses():
    """Two frames of blank 0.6, a 0.4: the best alignment is empty with 0.36, and `a` has 0.64."""
    log_probs = np.log(np.array([[0.6, 0.4], [0.6, 0.4]], np.float32))
    assert jax.jit(ctc.greedy)(log_probs, 2)[1] == 0
    found = jax.jit(partial(prefix_search, width=2, room=2))(log_probs, 2)
    assert found.labels[0].tolist() == [1, -1]
    np.testing.assert_allclose(np.exp(found.log_prob), [0.64, 0.36], rtol=1e-5)


@pytest.mark.slow
def test_a_narrow_beam_has_no_prefix_twice_and_never_too_much():
    log_probs = random_log_probs(7, frames=8)
    expected = sums_by_labels(log_probs)
    found = jax.jit(partial(prefix_search, width=4, room=8))(log_probs, 8)
    names = [tuple(row[:n].tolist()) for row, n in zip(np.asarray(found.labels), found.length)]
    assert len(set(names)) == 4
    assert all(np.exp(p) <= expected[name] * (1 + 1e-5) for p, name in zip(found.log_prob, names))


@pytest.mark.slow
def test_a_language_model_can_forbid():
    """An automaton for sequences of exactly two labels."""
    forbidden = -np.inf
    model = LanguageModel(
        np.array([[forbidden, 0, 0], [forbidden, 0, 0], [0, forbidden, forbidden]], np.float32),
        np.array([[0, 1, 1], [0, 2, 2], [0, 0, 0]]),
    )
    log_probs = random_log_probs(8)
    expected = sums_by_labels(log_probs)
    found = jax.jit(partial(prefix_search, width=40, room=T, model=model))(log_probs, T)
    best = max((name for name in expected if len(name) == 2), key=lambda name: expected[name])
    assert tuple(found.labels[0][:2].tolist()) == best and found.length[0] == 2
    assert np.isfinite(found.score).sum() == 4


def test_a_weight_of_zero_is_no_language_model():
    """0 times -inf is not a number: a model that does not count forbids nothing."""
    model = LanguageModel(np.full((1, V), -np.inf, np.float32), np.zeros((1, V), int))
    search = partial(prefix_search, random_log_probs(9), T, width=6, room=T, bonus=0.25)
    alone, constant = jax.jit(search)(), jax.jit(partial(search, model=model, weight=0.0))()
    traced = jax.jit(partial(search, model=model))(weight=0.0)
    for one, two, three in zip(alone, constant, traced):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)


def test_an_ngram_model_is_its_equation():
    """Sequences 1 2, 1 2 2, 2: of the four symbols behind a 2, three are ends."""
    assert BIGRAM.log_probs.shape == BIGRAM.following.shape == (3, 3)
    np.testing.assert_allclose(np.exp(BIGRAM.log_probs).sum(1), 1, rtol=1e-6)
    unigram = (np.array([3, 2, 4]) + 3 / 3) / (9 + 3)
    np.testing.assert_allclose(np.exp(BIGRAM.log_probs[2]), (np.array([3, 0, 1]) + 2 * unigram) / (4 + 2), rtol=1e-6)
    np.testing.assert_allclose(np.exp(ngram_language_model.estimate([], V, 2).log_probs), 1 / V, rtol=1e-6)
    trigram = ngram_language_model.estimate([(1, 2)], V, 3)
    assert trigram.following[1, 2] == 1 * V + 2 and trigram.following[5, 1] == 5 * V % 9 + 1
    assert ngram_language_model.size(11, 3) == 1331
