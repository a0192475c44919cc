"""Minimum Bayes risk decoding: chooses the sample with the highest expected utility (Kumar and Byrne 2004).

    expected utility of y  =  1/n sum over the n samples s of utility(y, s)

A sample that was drawn several times counts several times, so likely outputs are favoured.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

from rapidfuzz.distance import Levenshtein

Utility = Literal["chrf", "edit"]


@cache
def _chrf() -> Callable[[str, str], float]:
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return lambda output, reference: metric.sentence_score(output, [reference]).score / 100


def _edit(output: str, reference: str) -> float:
    """1 - edit distance / length of the longer text, in characters."""
    return Levenshtein.normalized_similarity(output, reference)


def expected_utilities(samples: Sequence[str], utility: Utility) -> list[float]:
    """The expected utility of each sample, from 0 to 1.

    >>> [round(u, 2) for u in expected_utilities(["abcd", "abce", "xyz"], "edit")]
    [0.58, 0.58, 0.33]
    """
    measure = _edit if utility == "edit" else _chrf()
    counts = Counter(samples)
    known = {
        output: sum(times * measure(output, other) for other, times in counts.items()) / len(samples)
        for output in counts
    }
    return [known[sample] for sample in samples]


def order(samples: Sequence[str], utility: Utility) -> list[tuple[int, float]]:
    """Returns (index, expected utility) of each distinct sample, best first; ties keep the order of the samples."""
    utilities = expected_utilities(samples, utility)
    first = {sample: index for index, sample in reversed(list(enumerate(samples)))}
    return sorted(((index, utilities[index]) for index in first.values()), key=lambda pair: (-pair[1], pair[0]))
