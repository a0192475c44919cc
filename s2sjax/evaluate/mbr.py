"""Minimum Bayes risk: of many samples, the one that is most like all the others (Kumar and Byrne 2004).

    expected utility of y  =  1/n sum over the n samples s of utility(y, s)

A sample drawn often counts often, itself included, so likely outputs are favoured as they should be.
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
    """1 - edit distance / length of the longer, in characters."""
    return Levenshtein.normalized_similarity(output, reference)


def expected_utilities(samples: Sequence[str], utility: Utility) -> list[float]:
    """Of each sample, from 0 to 1: see above.

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
    """(index, expected utility) of each different sample, the best first, the one drawn first of equals."""
    utilities = expected_utilities(samples, utility)
    first = {sample: index for index, sample in reversed(list(enumerate(samples)))}
    return sorted(((index, utilities[index]) for index in first.values()), key=lambda pair: (-pair[1], pair[0]))
