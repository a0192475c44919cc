"""Translation word for word, as in the 1950s: each word is looked up in a dictionary, and the order stays.

dictionary = Dictionary.learn([("das Haus", "the house"), ("das Buch", "the book")])
dictionary.translate(["das Buch"])              ["the book"]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from s2sjax import align
from s2sjax.align.bitext import Sentence
from s2sjax.statistical import fertility


class Dictionary(NamedTuple):
    """The best translation of each word. A word that is not in it is copied."""

    entries: Mapping[str, str]
    silent: frozenset[str] = frozenset()
    """words that are left out: no translation is their most probable fertility"""

    @classmethod
    def learn(
        cls, pairs: Iterable[tuple[Sentence, Sentence]], model: str = "ibm1", iterations: int = 5, silent: bool = False
    ) -> Dictionary:
        """Learns t(y | x) by an alignment model (s2sjax.align) and keeps the y with the highest probability.

        silent: leave out the words that are mostly linked to no target word.
        """
        pairs = list(pairs)
        fitted = align.fit(pairs, model, iterations, agree=False)
        words = frozenset[str]()
        if silent:
            table = fertility.count((source for source, _ in pairs), fitted.links("forward"))
            words = frozenset(word for word in table if fertility.best(table, word) == 0)
        return cls(best_translations(fitted), words)

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Translates each line."""
        return [
            " ".join(self.entries.get(word, word) for word in line.split() if word not in self.silent)
            for line in lines
        ]  # fmt: skip


def best_translations(fitted: align.Aligned) -> dict[str, str]:
    """The target word y with the highest t(y | x) of each source word x."""
    forward = fitted.forward
    sources, targets = forward.text.pairs  # type: ignore[union-attr]
    order = np.lexsort((targets, -forward.table.pair, sources))  # type: ignore[union-attr]
    found, first = np.unique(sources[order], return_index=True)
    source_types, target_types = forward.text.sources.types, forward.text.targets.types  # type: ignore[union-attr]
    return {source_types[x]: target_types[y] for x, y in zip(found.tolist(), targets[order][first].tolist())}
