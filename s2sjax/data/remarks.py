"""What is odd about training text but no error: how often it occurs, and where first.

train.tsv: 12 of 3,000 lines have a blank source, the first is line 7
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from s2sjax import config
from s2sjax.config.paths import relative_path
from s2sjax.data import Example

BLANK_SOURCE = "{} a blank source, the first is {}"
BLANK_TARGET = "{} a blank target, the first is {}: it teaches the model to write nothing"
MORE_COLUMNS = "{} more than two columns, the first is {}: each further column is one more target"


class Remarks:
    """Counts while the examples of a corpus are read."""

    def __init__(self, corpus: config.Corpus):
        self._parts: tuple[config.Corpus, ...] = (corpus,)
        self._tags: tuple[str, ...] = ()
        if isinstance(corpus, config.Mixture):
            self._parts, self._tags = corpus.corpora, corpus.tags
        self._sizes = [0] * len(self._parts)
        self._found: dict[tuple[int, str], tuple[int, int]] = {}  # of a part: how often, and the first place

    def watch(self, examples: Iterable[Example]) -> Iterator[Example]:
        """The examples, counted as they pass."""
        for example in examples:
            part = example.corpus if len(self._parts) > 1 else 0
            self._sizes[part] += 1
            source = example.source.removeprefix(f"{self._tags[part]} ") if self._tags else example.source
            if not source.strip():
                self._count(part, BLANK_SOURCE)
            if not all(map(str.strip, example.targets)):
                self._count(part, BLANK_TARGET)
            if len(example.targets) > 1 and len(_files(self._parts[part])) == 1:
                self._count(part, MORE_COLUMNS)
            yield example

    def _count(self, part: int, what: str) -> None:
        count, first = self._found.get((part, what), (0, self._sizes[part]))
        self._found[part, what] = (count + 1, first)

    def lines(self) -> list[str]:
        """One for each kind of remark on each corpus."""
        told = []
        for (part, what), (count, first) in sorted(self._found.items()):
            files, total = _files(self._parts[part]), self._sizes[part]
            where, noun = (
                (" and ".join(map(relative_path, files)), "line")
                if files
                else (type(self._parts[part]).__name__, "example")
            )
            many = f"{count:,} of {total:,} {noun}{'s' if total > 1 else ''} {'have' if count > 1 else 'has'}"
            told.append(f"{where}: " + what.format(many, f"{noun} {first:,}"))
        return told


def remarks(corpus: config.Corpus, examples: Iterable[Example]) -> list[str]:
    found = Remarks(corpus)
    deque(found.watch(examples), maxlen=0)
    return found.lines()


def _files(corpus: config.Corpus) -> tuple[str, ...]:
    """Whose line n is example n."""
    return corpus.train if isinstance(corpus, config.TextFiles) and not corpus.dev_percent else ()
