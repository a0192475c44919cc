"""Warnings about input lines, collected over all calls of a command and reported once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from s2sjax.core.special_tokens import UNK
from s2sjax.data.text.vocabulary import AnyVocabulary

SHOWN = 5
"""maximum number of line numbers and of unknown pieces in a warning"""


class Notes:
    """Collects lines that were cut, and lines with characters or words that are not in the vocabulary.

    3 of 40 lines contain characters the model has never seen, such as 'é' and '✓': lines 6, 9 and 12
    1 of 40 lines is longer than 256 tokens (search.max_source) and was cut: line 7
    """

    def __init__(self) -> None:
        self.lines = 0
        self.cut: list[int] = []  # line numbers, from 1
        self.unknown: list[int] = []
        self.limit = ""
        self._pieces: dict[str, None] = {}  # a dict of None is an ordered set
        self._nouns: dict[str, None] = {}

    def add_cut(self, numbers: Iterable[int], limit: str) -> None:
        """Adds lines that are longer than `limit`, such as "256 tokens (search.max_source)"."""
        self.cut = sorted({*self.cut, *numbers})  # a source and its target may both be too long
        self.limit = limit

    def add_unknown(self, number: int, texts: Sequence[tuple[AnyVocabulary, str, Sequence[int]]]) -> None:
        """Adds a line if one of its (vocabulary, text, ids of the text) contains an unknown token."""
        found = [(vocabulary, text) for vocabulary, text, ids in texts if UNK in ids]
        if not found:
            return
        self.unknown.append(number)
        for vocabulary, text in found:
            self._nouns["words" if vocabulary.unit == "words" else "characters"] = None
            if len(self._pieces) < SHOWN:
                self._pieces |= dict.fromkeys(vocabulary.unknown(text))

    def report(self) -> list[str]:
        """Returns one warning of each kind that occurred."""
        told = []
        if self.unknown:
            pieces = _listed([f"{piece[:20]!r}" for piece in list(self._pieces)[:SHOWN]])
            verb = "contain" if len(self.unknown) > 1 else "contains"
            told.append(
                f"{self._count(self.unknown)} {verb} {' or '.join(self._nouns)} the model has never seen, "
                f"such as {pieces}: {_lines(self.unknown)}"
            )
        if self.cut:
            verb, ended = ("are", "were cut") if len(self.cut) > 1 else ("is", "was cut")
            told.append(f"{self._count(self.cut)} {verb} longer than {self.limit} and {ended}: {_lines(self.cut)}")
        return told

    def _count(self, numbers: Sequence[int]) -> str:
        return f"{len(numbers):,} of {self.lines:,} line{'s' if self.lines > 1 else ''}"


def _lines(numbers: Sequence[int]) -> str:
    """[3, 7] -> "lines 3 and 7"; names only the first few of many."""
    shown = [f"{number}" for number in numbers[:SHOWN]]
    if len(numbers) > SHOWN:
        shown.append(f"{len(numbers) - SHOWN:,} more")
    return f"line{'s' if len(numbers) > 1 else ''} {_listed(shown)}"


def _listed(items: Sequence[str]) -> str:
    """["a", "b", "c"] -> "a, b and c" """
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))
