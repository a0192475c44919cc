"""Minimum error rate training: weights that maximize BLEU on n-best lists (Och 2003).

Along a direction d, the score of each translation is a line: (w + g d) . f = w . f + g (d . f). Which translation of a
sentence is best changes only where its upper envelope has corners, so BLEU is constant between the corners of all
sentences, and the best g is found exactly. The search goes along each weight and some random directions until nothing
improves; nothing in it depends on chance, since the seed is fixed.

Letters: N translations of a sentence, K features, 10 counts of BLEU (statistics).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from s2sjax.statistical.phrases import Words

ORDER = 4
DIRECTIONS, RESTARTS = 8, 3
"""number of random directions of a round, and of random first weights"""


class NBest(NamedTuple):
    """The translations of a sentence."""

    features: np.ndarray  # [N, K]
    statistics: np.ndarray  # [N, 10]


def statistics(words: Words, reference: Words) -> np.ndarray:
    """The counts of BLEU: matches and n-grams of each order, length, length of the reference."""
    row = []
    for n in range(1, ORDER + 1):
        ours, theirs = (Counter(zip(*(text[i:] for i in range(n)))) for text in (words, reference))
        row += [(ours & theirs).total(), ours.total()]
    return np.array([*row, len(words), len(reference)], float)


def bleu(totals: np.ndarray) -> np.ndarray:
    """BLEU, without smoothing, of summed statistics [..., 10]."""
    matches, ngrams = totals[..., 0 : 2 * ORDER : 2], totals[..., 1 : 2 * ORDER : 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.exp(np.log(matches / ngrams).mean(-1))
        brevity = np.minimum(1, np.exp(1 - totals[..., -1] / totals[..., -2]))
        return np.nan_to_num(100 * precision * brevity)


def score(lists: Sequence[NBest], weights: np.ndarray) -> float:
    """BLEU of the translations with the highest scores."""
    return float(bleu(sum(one.statistics[(one.features @ weights).argmax()] for one in lists)))  # type: ignore[arg-type]


def maximize(lists: Sequence[NBest], weights: np.ndarray, seed: int = 0) -> tuple[np.ndarray, float]:
    """The best weights found, from these and from random ones, and their BLEU; never below that of `weights`."""
    rng = np.random.default_rng(seed)
    starts = [weights, *(weights + rng.normal(size=len(weights)) * np.abs(weights).mean() for _ in range(RESTARTS))]
    found = [_climb(lists, start, rng) for start in starts]
    best, value = max(found, key=lambda each: each[1])
    return best / np.abs(best).sum(), value


def _climb(lists: Sequence[NBest], weights: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    value = score(lists, weights)
    while True:
        before = value
        for direction in (*np.eye(len(weights)), *rng.normal(size=(DIRECTIONS, len(weights)))):
            moved = weights + line_search(lists, weights, direction) * direction
            there = score(lists, moved)
            if there > value:
                weights, value = moved, there
        if value < before + 0.01:
            return weights, value


def line_search(lists: Sequence[NBest], weights: np.ndarray, direction: np.ndarray) -> float:
    """The g with the best BLEU of the weights w + g d, in the middle of its interval."""
    total = np.zeros(2 * ORDER + 2)
    places, changes = [], []
    for one in lists:
        where, lines = envelope(one.features @ direction, one.features @ weights)
        total += one.statistics[lines[0]]
        places.append(where)
        changes.append(np.diff(one.statistics[lines], axis=0))
    corners = np.concatenate(places)
    if not len(corners):
        return 0.0
    order = corners.argsort(kind="stable")
    corners = corners[order]
    values = bleu(np.concatenate([total[None], total + np.concatenate(changes)[order].cumsum(0)]))
    edges = np.concatenate([[corners[0] - 1], corners, [corners[-1] + 1]])
    middles = (edges[1:] + edges[:-1]) / 2
    real = np.diff(edges) > 1e-9
    best = values[real].max()
    good = middles[real][values[real] == best]
    return float(good[np.abs(good).argmin()])


def envelope(slopes: np.ndarray, heights: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The upper envelope of the lines height + g slope: the corners g, and the highest line before and after each."""
    here = int(np.lexsort((heights, -slopes))[-1])  # the smallest slope, then the greatest height
    corners: list[float] = []
    order = [here]
    while True:
        steeper = np.flatnonzero(slopes > slopes[here])
        if not len(steeper):
            return np.array(corners), order
        crossings = (heights[here] - heights[steeper]) / (slopes[steeper] - slopes[here])
        first = crossings.min()
        tied = steeper[crossings == first]
        here = int(tied[slopes[tied].argmax()])
        corners.append(float(first))
        order.append(here)
