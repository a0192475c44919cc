"""Examples with a label: a text or frames, from TSV files, from memory, or from any corpus of text pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.config.in_memory import text_row
from s2sjax.data.corpora import frame_reader, readers
from s2sjax.data.corpora.text_files import read_tsv
from s2sjax.data.examples import Example, Split, in_share, split_of
from s2sjax.errors import UserError
from s2sjax.tasks.classification.settings import LabelledFrames, LabelledText


class Labelled(NamedTuple):
    """An example with a label."""

    source: str | np.ndarray
    """a text, or frames float64 [S, F]"""
    label: str
    """label, or empty if it is unknown"""
    where: str = ""
    """file and line, for error messages"""


def load(corpus: config.Corpus, split: Split) -> list[Labelled]:
    """Loads all examples of a split. Raises a UserError if there are none, or if one cannot be used."""
    if isinstance(corpus, LabelledText):
        examples = list(_texts(corpus, split))
    elif isinstance(corpus, LabelledFrames):
        examples = list(_frames(corpus, split))
    elif isinstance(corpus, config.Tabular):
        examples = list(_rows_of(corpus, split))
    else:
        known = type(corpus) in readers.READERS
        found: Iterable[Any] = readers.stream(corpus, split) if known else corpus.examples(split)
        examples = [_labelled(one, f"{split} example {number}") for number, one in enumerate(found, start=1)]
    require(len(examples) > 0, f"the corpus has no {split} examples: {_remedy(corpus, split)}")
    for example in examples:
        require(example.label != "", f"{example.where}: the label is empty: write one, or remove the line")
        require(len(_key(example)) > 0, f"{example.where}: the text is empty: write one, or remove the line")
    _check_features(examples)
    return examples


def parse_frames(fields: Sequence[str], where: str) -> np.ndarray:
    """Parses frames: ["1 2", "3 4"] -> [[1, 2], [3, 4]]. Raises unless all are finite numbers and equally many."""
    frames: list[list[float]] = []
    for number, field in enumerate(fields, start=1):
        try:
            frames.append([float(value) for value in field.split()])
        except ValueError as error:
            raise UserError(f"{where}, frame {number}: {error}: write numbers, separated by blanks") from None
        require(len(frames[-1]) > 0, f"{where}, frame {number} is empty: write numbers, separated by blanks")
        require(
            len(frames[-1]) == len(frames[0]),
            f"{where}, frame {number} has {len(frames[-1])} numbers, frame 1 has {len(frames[0])}: write equally many",
        )
        finite = bool(np.isfinite(frames[-1]).all())
        require(finite, f"{where}, frame {number} has a number that is not finite: correct it")
    return np.array(frames)


def _texts(corpus: LabelledText, split: Split) -> Iterator[Labelled]:
    text, label = corpus.columns.index("text"), corpus.columns.index("label")
    for where, fields in _rows(corpus, split, corpus.columns):
        example = Labelled(fields[text].strip(), fields[label].strip(), where)
        if _belongs(corpus, split, _key(example)):
            yield example


def _frames(corpus: LabelledFrames, split: Split) -> Iterator[Labelled]:
    for where, (label, *fields) in _rows(corpus, split, ("label", "first frame"), more="one field for each frame"):
        if _belongs(corpus, split, "\t".join(fields)):
            yield Labelled(parse_frames(fields, where), label.strip(), where)


def _rows_of(corpus: config.Tabular, split: Split) -> Iterator[Labelled]:
    """Rows of a table: texts, or lists of frames, which are numbers or lists of numbers."""
    frame_reader.require_target(corpus)
    for row in frame_reader.rows(corpus, split):
        frames, targets = frame_reader.array(row.source), row.targets
        source = row.source if frames is None else ""
        text, label, *_ = text_row(row.where, corpus.columns, (source, *targets))
        if frames is not None:
            require(frames.ndim <= 2, f"{row.where} has numbers of {frames.ndim} dimensions: give a list of frames")
            finite = bool(np.isfinite(frames).all())
            require(finite, f"{row.where} has a number that is not finite: correct it, or remove the row")
            yield Labelled(frames.reshape(len(frames), -1).astype(np.float64), label.strip(), row.where)
        else:
            yield Labelled(text.strip(), label.strip(), row.where)


def _rows(corpus: Any, split: Split, columns: Sequence[str], more: str = "") -> Iterator[Any]:
    name = getattr(corpus, split) or corpus.train
    return read_tsv(config.as_path(corpus.folder) / name, columns, "data.corpus.folder", corpus.origin, more)


def _belongs(corpus: Any, split: Split, key: str) -> bool:
    """Whether a row of the file for `split` belongs to it. The train file may also contain the other splits."""
    if getattr(corpus, split) and split != "train":
        return True
    seeded = f"{corpus.split_seed}\t{key}" if corpus.split_seed else key
    share = getattr(corpus, "train_percent", 100.0) if split == "train" else 100.0
    return split_of(seeded, corpus.dev_percent, corpus.test_percent) == split and in_share(key, share)


def _key(example: Labelled) -> Any:
    """The key that decides the split: a text in lower case with single blanks."""
    return " ".join(example.source.casefold().split()) if isinstance(example.source, str) else example.source


def _labelled(example: Any, where: str) -> Labelled:
    if isinstance(example, Example):
        return Labelled(example.source.strip(), example.targets[0].strip(), where)
    if not isinstance(example, Labelled):
        raise UserError(f"{where} is {example!r:.80}: yield Labelled(source, label)")
    return example if example.where else example._replace(where=where)


def _check_features(examples: Sequence[Labelled]) -> None:
    first = examples[0].source
    for source, _, where in examples:
        require(isinstance(source, str) == isinstance(first, str), f"{where}: texts and frames are mixed: use one kind")
        if not isinstance(source, str) and not isinstance(first, str):
            require(
                source.ndim == 2 and source.shape[1:] == first.shape[1:],
                f"{where} has frames of {source.shape[-1]} numbers, {examples[0].where} of {first.shape[-1]}: "
                "write equally many",
            )


def _remedy(corpus: Any, split: Split) -> str:
    percent = hasattr(corpus, f"{split}_percent") and not getattr(corpus, split)
    if split == "train" and getattr(corpus, "train_percent", 100) < 100:
        return "raise data.corpus.train_percent"
    if split == "train":
        return "lower data.corpus.dev_percent and test_percent" if percent else "give some"
    return f"raise data.corpus.{split}_percent" if percent else f"give some, or unset data.corpus.{split}"
