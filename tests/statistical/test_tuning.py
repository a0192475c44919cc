"""Exact line search, and BLEU as sacreBLEU has it."""

import numpy as np
import pytest

from s2sjax.evaluate import metrics
from s2sjax.statistical import tuning
from s2sjax.statistical.tuning import NBest


def lists(seed, sentences=12, translations=9, features=4):
    rng = np.random.default_rng(seed)
    words = lambda: tuple(map(str, rng.integers(0, 4, rng.integers(5, 10))))
    found = []
    for _ in range(sentences):
        reference = words()
        counts = [tuning.statistics(words(), reference) for _ in range(translations)]
        found.append(NBest(rng.normal(size=(translations, features)), np.array(counts)))
    return found, rng.normal(size=features), rng.normal(size=features)


def test_bleu_is_that_of_sacrebleu():
    hypotheses = ["a b c d e f", "a b c d x", "the cat sat on the mat", ""]
    references = ["a b c d e f g", "a b c d", "the cat is on the mat today", "a"]
    total = sum(tuning.statistics(tuple(h.split()), tuple(r.split())) for h, r in zip(hypotheses, references))
    expected = metrics.score(["bleu_tokenized"], hypotheses, [(r,) for r in references])["bleu_tokenized"].value
    assert float(tuning.bleu(total)) == pytest.approx(expected, abs=1e-9)
    assert tuning.bleu(tuning.statistics(("a",), ("b",))) == 0 == tuning.bleu(tuning.statistics((), ("b",)))


@pytest.mark.parametrize("seed", range(10))
def test_the_envelope_is_the_highest_line_everywhere(seed):
    rng = np.random.default_rng(seed)
    slopes, heights = rng.integers(-3, 4, 12).astype(float), rng.normal(size=12)
    corners, order = tuning.envelope(slopes, heights)
    assert len(order) == len(corners) + 1 and (np.diff(corners) >= 0).all()
    for g in rng.normal(scale=5, size=200):
        line = order[int(np.searchsorted(corners, g))]
        assert heights[line] + g * slopes[line] == pytest.approx((heights + g * slopes).max())


@pytest.mark.parametrize("seed", range(4))
def test_no_step_along_a_line_is_better_than_the_one_found(seed):
    found, weights, direction = lists(seed)
    g = tuning.line_search(found, weights, direction)
    best = tuning.score(found, weights + g * direction)
    tried = [tuning.score(found, weights + step * direction) for step in np.linspace(-20, 20, 801)]
    assert best >= max(tried) and best >= tuning.score(found, weights)


@pytest.mark.parametrize("seed", range(4))
def test_tuning_never_lowers_bleu_on_its_lists_and_repeats_itself(seed):
    found, weights, _ = lists(seed)
    tuned, value = tuning.maximize(found, weights)
    assert value == tuning.score(found, tuned) > tuning.score(found, weights)
    again, _ = tuning.maximize(found, weights)
    assert (tuned == again).all()


def test_one_translation_leaves_nothing_to_choose():
    found, weights, direction = lists(0, translations=1)
    assert tuning.line_search(found, weights, direction) == 0
    tuned, _ = tuning.maximize(found, weights)
    assert tuned == pytest.approx(weights / np.abs(weights).sum())
