"""Fertility: how many target words a source word becomes (Brown et al. 1993).

    n(phi | x) = how often x is linked to phi target words / how often x occurs

German "zum" often becomes the two words "to the"; an English "do" may become none.

    table = count(pairs, aligned.links("forward"))
    table["zum"]                 {0: 0.1, 1: 0.3, 2: 0.6}
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from s2sjax.align import Link
from s2sjax.align.bitext import Sentence

Fertilities = Mapping[str, Mapping[int, float]]


def count(sources: Iterable[Sentence], links: Iterable[Iterable[Link]]) -> dict[str, dict[int, float]]:
    """n(phi | x) of each source word, from the links (source word, target word) of each sentence pair."""
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for source, found in zip(sources, links, strict=True):
        words = source.split() if isinstance(source, str) else source
        linked = Counter(i for i, _ in found)
        for i, word in enumerate(words):
            counts[word][linked[i]] += 1
    return {word: {phi: n / seen.total() for phi, n in sorted(seen.items())} for word, seen in counts.items()}


def best(table: Fertilities, word: str) -> int:
    """The most probable fertility of a word, the smallest of several; 1 if it is unknown."""
    row = table.get(word, {1: 1.0})
    return max(row, key=lambda phi: (row[phi], -phi))


def mean(table: Fertilities, word: str) -> float:
    """The expected fertility of a word; 1 if it is unknown."""
    return sum(phi * p for phi, p in table.get(word, {1: 1.0}).items())


def show(table: Fertilities, words: Sequence[str], most: int = 3) -> str:
    """The fertilities of some words as a text table; the last column is the mean."""
    width = max((len(word) for word in words), default=0)
    heads = "".join(f"{phi:>7}" for phi in range(most + 1))
    rows = [f"{'':{width}}{heads}   mean"]
    for word in words:
        row = table.get(word, {})
        cells = "".join(f"{row.get(phi, 0.0):7.2f}" for phi in range(most + 1))
        rows.append(f"{word:{width}}{cells}{mean(table, word):7.2f}")
    return "\n".join(rows)
