"""Phrase pairs of aligned sentences, and their probabilities (Koehn, Och and Marcu 2003).

A phrase pair is a block of the alignment that no link leaves: all links of its source words are to its target words,
and the other way round, and there is at least one. Words without links at its edges may belong to it or not.

             i   do   not  see  him
    ich      x                              (ich, i), (sehe, see), (ihn, him), (sehe ihn, see him)
    sehe                    x               (nicht, not), (nicht, do not): "do" has no link
    ihn                          x          (ihn nicht, not see him) is none: "see" is linked to "sehe"
    nicht              x                    (sehe ihn nicht, not see him), (sehe ihn nicht, do not see him) ...

Each pair has four features, logarithms of

    p(x | y), p(y | x)         relative frequencies
    lex(x | y), lex(y | x)     lexical weights: prod_j mean_{i linked to j} w(y_j | x_i), which is reliable even for
                               pairs seen once; w are relative frequencies of linked words
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from s2sjax.align import Link
from s2sjax.errors import UserError

Words = tuple[str, ...]
NULL = ""
"""partner of words without links"""


class Block(NamedTuple):
    """Source words begin to end, and target words first to last; the ends are not included."""

    begin: int
    end: int
    first: int
    last: int


class Phrase(NamedTuple):
    """A translation of a source phrase."""

    words: Words
    features: tuple[float, float, float, float]
    """logarithms of p(x | y), lex(x | y), p(y | x), lex(y | x)"""


def extract(links: Collection[Link], source_length: int, target_length: int, longest: int = 7) -> Iterator[Block]:
    """Yields the phrase pairs of a sentence pair with at most `longest` words on each side."""
    of_source: list[list[int]] = [[] for _ in range(source_length)]
    of_target: list[list[int]] = [[] for _ in range(target_length)]
    for i, j in links:
        of_source[i].append(j)
        of_target[j].append(i)
    for begin in range(source_length):
        low, high = target_length, -1
        for end in range(begin + 1, min(begin + longest, source_length) + 1):
            low, high = min([low, *of_source[end - 1]]), max([high, *of_source[end - 1]])
            if high < 0:
                continue
            if high - low >= longest:
                break
            inside = [i for j in range(low, high + 1) for i in of_target[j]]
            if min(inside) < begin:
                break
            if max(inside) >= end:
                continue
            first = low
            while True:
                last = high + 1
                while last - first <= longest:
                    yield Block(begin, end, first, last)
                    if last == target_length or of_target[last]:
                        break
                    last += 1
                first -= 1
                if first < 0 or of_target[first] or high + 1 - first > longest:
                    break


class WordTable(NamedTuple):
    """Relative frequencies of linked words. A word without links is linked to NULL."""

    links: Counter[tuple[str, str]]
    sources: Counter[str]
    targets: Counter[str]

    @classmethod
    def learn(cls, sources: Sequence[Words], targets: Sequence[Words], links: Sequence[Collection[Link]]) -> WordTable:
        counts: Counter[tuple[str, str]] = Counter()
        for xs, ys, found in zip(sources, targets, links):
            rows, columns = {i for i, _ in found}, {j for _, j in found}
            counts.update((xs[i], ys[j]) for i, j in found)
            counts.update((x, NULL) for i, x in enumerate(xs) if i not in rows)
            counts.update((NULL, y) for j, y in enumerate(ys) if j not in columns)
        of_source, of_target = Counter[str](), Counter[str]()
        for (x, y), count in counts.items():
            of_source[x] += count
            of_target[y] += count
        return cls(counts, of_source, of_target)

    def weight(self, given: Words, words: Words, links: Collection[Link], reverse: bool = False) -> float:
        """log lex(words | given). links: (given, words); reverse: `words` are of the source."""
        partners: list[list[str]] = [[] for _ in words]
        for i, j in links:
            partners[j].append(given[i])
        total = 0.0
        for word, linked in zip(words, partners):
            linked = linked or [NULL]
            if reverse:
                mean = sum(self.links[word, other] / self.targets[other] for other in linked) / len(linked)
            else:
                mean = sum(self.links[other, word] / self.sources[other] for other in linked) / len(linked)
            total += math.log(mean)
        return total


class PhraseTable:
    """The phrase pairs of a text. Features are computed when a phrase is looked up.

    table.lookup(("das", "haus"))       its translations, the most frequent first
    """

    def __init__(
        self, sources: Sequence[Words], targets: Sequence[Words], links: Sequence[Collection[Link]], longest: int = 7,
        most: int = 30,
    ):  # fmt: skip
        """most: maximum number of translations of a phrase, the most frequent ones."""
        if longest < 1:
            raise UserError(f"longest is {longest}: a phrase has at least 1 word")
        if not len(sources) == len(targets) == len(links):
            sizes = f"{len(sources):,} sources, {len(targets):,} targets and {len(links):,} sets of links"
            raise UserError(f"there are {sizes}: give one of each for a sentence pair")
        self.longest, self.most = longest, most
        self.words = WordTable.learn(sources, targets, links)
        self._sources, self._targets, self._links = sources, targets, links
        self._cache: dict[Words, list[Phrase]] = {}
        number: dict[Words, int] = {}  # of source phrases
        targets_number: dict[Words, int] = {}
        columns = [array("q") for _ in range(5)]  # source phrase, target phrase, sentence, begin, first
        for sentence, (xs, ys, found) in enumerate(zip(sources, targets, links)):
            for block in extract(found, len(xs), len(ys), longest):
                x = number.setdefault(xs[block.begin : block.end], len(number))
                y = targets_number.setdefault(ys[block.first : block.last], len(targets_number))
                for column, value in zip(columns, (x, y, sentence, block.begin, block.first)):
                    column.append(value)
        table = np.array(columns, np.int64)  # [5, N]
        table = table[:, np.lexsort((table[1], table[0]))]
        self._number, self._phrases = number, list(targets_number)
        self._target_ids = table[1]
        self._places = table[2:].T.astype(np.int32)  # [N, 3]
        self._starts = np.searchsorted(table[0], np.arange(len(number) + 1))
        self._target_counts = np.bincount(table[1], minlength=len(targets_number))

    def __len__(self) -> int:
        """The number of source phrases."""
        return len(self._number)

    def lookup(self, source: Words) -> list[Phrase]:
        """The translations of a source phrase, the most frequent first."""
        if source not in self._cache:
            self._cache[source] = self._lookup(source)
        return self._cache[source]

    def _lookup(self, source: Words) -> list[Phrase]:
        if source not in self._number:
            return []
        begin, end = self._starts[self._number[source] :][:2]
        ids, starts, counts = np.unique(self._target_ids[begin:end], return_index=True, return_counts=True)
        found = []
        for place in np.argsort(-counts, kind="stable")[: self.most].tolist():
            words, count = self._phrases[ids[place]], int(counts[place])
            rows = self._places[begin + starts[place] :][:count]
            alignments = {self._inner(source, words, *row) for row in rows.tolist()}
            backward = max(self.words.weight(words, source, _swapped(inner), reverse=True) for inner in alignments)
            forward = max(self.words.weight(source, words, inner) for inner in alignments)
            inverse = math.log(count / self._target_counts[ids[place]])
            direct = math.log(count / (end - begin))
            found.append(Phrase(words, (inverse, backward, direct, forward)))
        return found

    def _inner(self, source: Words, target: Words, sentence: int, begin: int, first: int) -> frozenset[Link]:
        """The links inside a phrase pair, counted from its first words."""
        inside = ((i - begin, j - first) for i, j in self._links[sentence])
        return frozenset((i, j) for i, j in inside if 0 <= i < len(source) and 0 <= j < len(target))


def _swapped(links: Collection[Link]) -> list[Link]:
    return [(j, i) for i, j in links]
