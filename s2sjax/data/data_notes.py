"""Notes on suspicious data: how often a problem occurs, and where first. The data is used anyway.

train.tsv: 12 of 3,000 lines have a blank source, the first is line 7
3 of 500 dev sentences are also in train, 1 of them with another case, blanks or Unicode form
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from s2sjax import config
from s2sjax.data.corpora import readers
from s2sjax.data.examples import Example
from s2sjax.files import relative_path

BLANK_SOURCE = "{} a blank source, the first is {}"
BLANK_TARGET = "{} a blank target, the first is {}: it teaches the model to write nothing"
MORE_COLUMNS = "{} more than two columns, the first is {}: each further column is one more target"


class Notes:
    """Counts the suspicious examples of a corpus while they are read."""

    def __init__(self, corpus: config.Corpus):
        self._parts = readers.parts(corpus)
        self._tags = corpus.tags if isinstance(corpus, config.Mixture) else ()
        self._sizes = [0] * len(self._parts)
        self._found: dict[tuple[int, str], tuple[int, int]] = {}  # (part, kind) -> (count, first example)

    def watch(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yields the examples, and counts the suspicious ones."""
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

    def add(self, after: Notes) -> None:
        """Adds the counts of the examples that come after these."""
        for (part, what), (count, first) in after._found.items():
            before, where = self._found.get((part, what), (0, self._sizes[part] + first))
            self._found[part, what] = (before + count, where)
        self._sizes = [size + more for size, more in zip(self._sizes, after._sizes)]

    def _count(self, part: int, what: str) -> None:
        count, first = self._found.get((part, what), (0, self._sizes[part]))
        self._found[part, what] = (count + 1, first)

    def lines(self) -> list[str]:
        """One line for each kind of note on each corpus."""
        notes = []
        for (part, what), (count, first) in sorted(self._found.items()):
            files, total = _files(self._parts[part]), self._sizes[part]
            where = " and ".join(map(relative_path, files)) or type(self._parts[part]).__name__
            noun = "line" if files else "example"
            many = f"{count:,} of {total:,} {noun}{'s' if total > 1 else ''} {'have' if count > 1 else 'has'}"
            notes.append(f"{where}: " + what.format(many, f"{noun} {first:,}"))
        return notes


def notes(corpus: config.Corpus, examples: Iterable[Example]) -> list[str]:
    """The lines of the notes on the examples of a corpus."""
    found = Notes(corpus)
    deque(found.watch(examples), maxlen=0)
    return found.lines()


def _files(corpus: config.Corpus) -> tuple[str, ...]:
    """The files whose line n is example n, if any."""
    return corpus.train if isinstance(corpus, config.TextFiles) and not corpus.dev_percent else ()


# ----------------------------------------------------------------------- examples in two splits


class Sides(NamedTuple):
    """The source of an example and its correct targets, as text, or as the bytes of other data."""

    source: str | bytes
    targets: tuple[str | bytes, ...] = ()
    """targets; empty for a text without targets"""


AnySides = Sides | Example


class _Keys(NamedTuple):
    source: bytes
    normal: frozenset[bytes]
    exact: frozenset[bytes]
    hash: int
    """a short hash of the source: fast to compare, but subject to collisions"""

    @property
    def all(self) -> frozenset[bytes]:
        return self.normal | self.exact | {self.source}


class Overlaps:
    """Counts the examples of dev and test that also occur in train, and those of test that also occur in dev.

    Only the hashes of dev and test stay in memory while the training examples pass. Two examples are the same if their
    sources and one target are equal, exactly or up to case, blanks and Unicode form. Blank sources are ignored.
    """

    def __init__(self, held_out: Mapping[str, Iterable[AnySides]], noun: str = "example"):
        self._noun = noun
        self._keys = {split: list(filter(None, map(_keys, sides))) for split, sides in held_out.items()}
        self._hashes = {keys.hash for each in self._keys.values() for keys in each}
        self.in_train: set[bytes] = set()
        """keys of the training examples that may also be in dev or test"""
        self._found: dict[str, set[bytes]] = {"train": self.in_train}
        if "dev" in self._keys:
            self._found["dev"] = set().union(*(keys.all for keys in self._keys["dev"]))

    def watch(self, sides: Iterable[Any]) -> Iterator[Any]:
        """Yields the training examples, and compares them with dev and test."""
        for side in sides:
            if hash(_normal(side.source)) in self._hashes and (keys := _keys(side)) is not None:
                self.in_train |= keys.all
            yield side

    def lines(self) -> list[str]:
        """One line for each pair of splits that share examples."""
        pairs = [("dev", "train"), ("test", "train"), ("test", "dev")]
        known = [(split, other) for split, other in pairs if split in self._keys and other in self._found]
        return [line for split, other in known if (line := self._line(split, other))]

    def _line(self, split: str, other: str) -> str:
        found, total = self._found[other], len(self._keys[split])
        exact = sum(not found.isdisjoint(keys.exact) for keys in self._keys[split])
        same = sum(not found.isdisjoint(keys.normal) for keys in self._keys[split])
        source = sum(keys.source in found for keys in self._keys[split])
        parts = []
        if same:
            verb = "is" if same == 1 else "are"
            parts.append(f"{same:,} of {total:,} {split} {self._noun}s {verb} also in {other}")
            if same > exact:
                parts.append(f"{same - exact:,} of them with another case, blanks or Unicode form")
        if source > same:
            what = f"{source - same:,} more" if same else f"{source:,} of {total:,} {split} {self._noun}s"
            verb = "has" if source - same == 1 else "have"
            parts.append(f"{what} {verb} a source of {other} with another target")
        return ", ".join(parts)


def overlaps(train: Iterable[AnySides], held_out: Mapping[str, Iterable[AnySides]], noun: str) -> list[str]:
    found = Overlaps(held_out, noun)
    deque(found.watch(train), maxlen=0)
    return found.lines()


def _keys(side: AnySides) -> _Keys | None:
    """The keys of an example; None if its source is blank."""
    source = _normal(side.source)
    if not source:
        return None
    targets = side.targets or ("",)
    normal = frozenset(_digest(b"normal", source, _normal(target)) for target in targets)
    exact = frozenset(_digest(b"exact", _bytes(side.source), _bytes(target)) for target in targets)
    return _Keys(_digest(source), normal, exact, hash(source))


def _bytes(side: str | bytes) -> bytes:
    return side.encode(errors="surrogatepass") if isinstance(side, str) else side


def _normal(side: str | bytes) -> bytes:
    """Normalizes a text to NFKC, lower case and single blanks."""
    if isinstance(side, str):
        side = " ".join(unicodedata.normalize("NFKC", side).casefold().split())
    return _bytes(side)


def _digest(*parts: bytes) -> bytes:
    with_lengths = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hashlib.blake2b(with_lengths, digest_size=16).digest()
