"""Is one system better than another?

On the same examples: paired bootstrap resampling (Koehn 2004). B resamples of N examples are drawn with replacement.
Both systems are scored on each resample b, which gives the differences d_b. With d the difference on the original
examples,

    p = (1 + #{b : |d_b - mean(d_b)| >= |d|}) / (1 + B)

is the probability of a difference this large by chance alone. BLEU, chrF and TER are tested by sacreBLEU, with its own
formula. The margin of a score is half the width of the interval that contains 95% of its resamples.

Over several trainings of each: a permutation test (Fisher 1935). If the seed made the whole difference, d is as likely
with the two scores of a seed exchanged; p is the share of all exchanges that give a difference as large as that found:

    p = #{s in {-1, 1}^n : |sum_i s_i d_i| >= |sum_i d_i|} / 2^n

Without common seeds, all ways to divide the scores into two groups take the place of the exchanges.

Letters: N examples, B resamples, n seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from s2sjax.evaluate.metrics.corpus_metrics import References, Terms, reference_streams, sacrebleu_metric

SEED = 12345  # sacreBLEU's
AT_ONCE = 2_000_000
"""maximum number of drawn examples in memory"""
MOST = 100_000
"""maximum number of exchanges of a permutation test: if there are more, this number is drawn"""


class Difference(NamedTuple):
    """Two scores, each with the margin of its 95% interval, and the p-value of their difference."""

    first: float
    first_margin: float
    second: float
    second_margin: float
    p: float

    @property
    def value(self) -> float:
        return self.second - self.first


def bootstrap(first: Terms, second: Terms, resamples: int = 1000) -> Difference:
    """Tests a metric that is a ratio of sums, from the (numerator, denominator) of each example of two systems."""
    terms = np.concatenate([np.asarray(first, np.float64), np.asarray(second, np.float64)], axis=1)  # [N, 4]
    terms[np.isnan(terms)] = np.inf  # an output that is NaN is infinitely wrong
    real = _ratios(terms.sum(0))
    if np.array_equal(terms[:, :2], terms[:, 2:]):
        real = real[:1].repeat(2)
    rng, N = np.random.default_rng(SEED), len(terms)
    chunk = max(1, AT_ONCE // N)
    sums = [
        np.stack([column[draw].sum(1) for column in terms.T], axis=1)
        for begin in range(0, resamples, chunk)
        for draw in [rng.integers(N, size=(min(chunk, resamples - begin), N))]
    ]
    scores = _ratios(np.concatenate(sums))  # [B, 2]
    return Difference(real[0], _margin(scores[:, 0]), real[1], _margin(scores[:, 1]), _p_value(scores, real))


def _ratios(sums: np.ndarray) -> np.ndarray:
    """Divides numerators by denominators: [..., 4] -> [..., 2]."""
    return sums[..., [0, 2]] / np.maximum(sums[..., [1, 3]], 1)


def _p_value(scores: np.ndarray, real: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        drawn, found = scores[:, 1] - scores[:, 0], abs(real[1] - real[0])
        if not np.isfinite(drawn).all():
            return float("nan")
        return float((1 + np.sum(np.abs(drawn - drawn.mean()) >= found)) / (1 + len(drawn)))


def _margin(scores: np.ndarray) -> float:
    """Half the width of the interval without the lowest and the highest 1/40 of the scores, as in sacreBLEU."""
    ordered, cut = np.sort(scores), len(scores) // 40
    with np.errstate(invalid="ignore"):
        return float((ordered[len(ordered) - 1 - cut] - ordered[cut]) / 2)


def sacrebleu_bootstrap(
    name: str, first: Sequence[str], second: Sequence[str], references: References, resamples: int = 1000
) -> Difference:
    """Tests BLEU, chrF or TER with sacreBLEU's paired bootstrap."""
    from sacrebleu.significance import PairedTest

    systems: Any = [("first", list(first)), ("second", list(second))]
    metrics = {name: sacrebleu_metric(name)}
    test = PairedTest(systems, metrics, reference_streams(references), test_type="bs", n_samples=resamples)
    found: Any = test()[1]
    one, other = next(results for label, results in found.items() if label != "System")
    same = one.score == other.score  # sacreBLEU gives identical systems a small p-value
    return Difference(one.score, one.ci, other.score, other.ci, 1.0 if same else other.p_value)


def paired_permutation(first: Sequence[float], second: Sequence[float]) -> float:
    """The p-value of two systems from their scores with the same seeds, two-sided; exact up to 16 seeds.

    >>> paired_permutation([3, 5, 4], [1, 2, 2])  # of 8 exchanges, none and all
    0.25
    """
    both = _scores(first, second)
    d, n = both[: len(first)] - both[len(first) :], len(first)
    if 2**n <= MOST:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)  # [2^n, n]; the first exchanges nothing
    else:
        signs = np.random.default_rng(SEED).choice([-1, 1], size=(MOST, n))
        signs[0] = 1
    return _share(signs @ d, both)


def permutation(first: Sequence[float], second: Sequence[float]) -> float:
    """The p-value of two systems from their scores with different seeds, two-sided; exact if there are few.

    >>> permutation([3, 4], [1, 2])  # of 6 divisions, 2 separate high and low
    0.3333333333333333
    """
    both = _scores(first, second)
    many, size = len(both), len(first)
    if math.comb(many, size) <= MOST:
        groups = np.array(list(combinations(range(many), size)))  # the first is the one found
    else:
        groups = np.random.default_rng(SEED).permuted(np.tile(np.arange(many), (MOST, 1)), axis=1)[:, :size]
        groups[0] = np.arange(size)
    # The difference between the means of a group and of the rest grows with the sum of the group.
    return _share((both - both.mean())[groups].sum(1), both)


def _scores(first: Sequence[float], second: Sequence[float]) -> np.ndarray:
    """The scores of both systems; NaN if any is not finite."""
    both = np.array([*first, *second], np.float64)
    return both if np.isfinite(both).all() else np.full_like(both, np.nan)


def _share(sums: np.ndarray, scores: np.ndarray) -> float:
    """The share of sums as far from 0 as the first. Sums that differ by the rounding of scores are equal."""
    if np.isnan(sums[0]):
        return float("nan")
    return float(np.mean(np.abs(sums) >= np.abs(sums[0]) - 1e-12 * np.abs(scores).sum()))


def line_scores(name: str, hypotheses: Sequence[str], references: References) -> np.ndarray:
    """sacreBLEU's score of each single line: [N]."""
    metric: Any = sacrebleu_metric(name)
    if hasattr(metric, "effective_order"):
        metric.effective_order = True  # a line shorter than four words has no 4-grams
    return np.array([metric.sentence_score(line, list(known)).score for line, known in zip(hypotheses, references)])
