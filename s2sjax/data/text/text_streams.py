"""A long text as batches of parallel streams, one segment per step.

    text 0 1 2 3 4 5 6 7 8 9 10, 2 rows, 3 steps:
    stream 0      0 1 2 | 3 4 5      each stream is a part of the text
    stream 1      6 7 8 | 9 10 _     step t has segment t of each, so that a state can be carried over

Each token is predicted once per epoch, from the token before it; the first token is predicted from <eos>.

Letters: B streams (rows of a batch), T tokens of a segment, S segments of a stream, N = S * B rows of the data set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.data import text
from s2sjax.data.assets import sha256
from s2sjax.data.batching.batch_plan import Plan, _Epoch
from s2sjax.data.batching.columns import Batch, Bucket
from s2sjax.data.corpora import readers, text_files
from s2sjax.data.examples import Split


def read_split(data: Any, split: Split) -> tuple[list[str], str]:
    """Reads the lines of a split of `PlainText` or `Paragraphs`, and returns them with the name of the text."""
    path, unit = getattr(data, split), getattr(data, "unit", "words")
    if data.corpus is None:
        return read_lines(path, f"data.{split}", data.origin, unit), path
    lines = [with_blanks(source, unit) for source in readers.sources(data.corpus, split)]
    name = f"the {split} text of {type(data.corpus).__name__}"
    require(len(lines) > 0, f"{name} is empty: give some, or change data.corpus.{split}")
    return lines, name


def read_lines(path: str, setting: str, origin: str = "", unit: str = "words") -> list[str]:
    """Reads the lines of a text file, see `with_blanks`. `setting` is the field that names the file."""
    require(bool(path), f"{setting} is empty: name a text file with one sentence a line")
    text_files.require_file(path, "text, one sentence a line", setting, origin)
    return [with_blanks(line, unit) for line in text_files.lines(path, setting)]


def with_blanks(line: str, unit: str) -> str:
    """A line with single blanks between words; as it is, if the tokenizer of a pretrained model reads it."""
    return line if unit == "pretrained" else " ".join(line.split())


def vocabulary(data: config.PlainText, lines: Iterable[str]) -> text.AnyVocabulary:
    """Builds the vocabulary of a text, the most frequent tokens first. Text is not normalized; <unk> in it is <unk>."""
    return text.build(config.Text(data.unit, normalize="none", min_count=data.min_count, size=data.size), lines)


def encode(vocabulary: text.AnyVocabulary, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes lines: the ids of all lines with their <eos>, int32 [total], and the line offsets, int64 [lines + 1]."""
    ids = [np.array([*vocabulary.encode(line), EOS], np.int32) for line in lines]
    return np.concatenate(ids), np.concatenate([[0], np.cumsum([len(line) for line in ids])])


def fingerprint(lines: Iterable[str]) -> str:
    return sha256(line.encode() + b"\n" for line in lines)


class Segments(NamedTuple):
    """The segments of all streams as rows of a data set: row s * B + b is segment s of stream b."""

    ids: np.ndarray  # int32 [total]
    rows: int
    steps: int
    seed: int | None = None
    """seed of the position at which each epoch begins; None: the start of the text"""

    @property
    def segments(self) -> int:
        """The number of segments of a stream."""
        return -(-self._length // self.steps)

    @property
    def _length(self) -> int:
        """The number of tokens of a stream; the last stream may have fewer."""
        return -(-len(self.ids) // self.rows)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.segments * self.rows,)

    @property
    def lengths(self) -> np.ndarray:
        """The lengths [N, 1]: all are `steps`, including padding."""
        return np.full((self.segments * self.rows, 1), self.steps)

    def begin(self, epoch: int) -> int:
        """The position at which the first stream begins in an epoch."""
        if self.seed is None:
            return 0
        drawn = np.random.Philox(np.random.SeedSequence([self.seed % 2**64, epoch, 1])).random_raw()
        return int(drawn % len(self.ids))

    def batch(self, rows: np.ndarray, bucket: Bucket, epoch: int = 0) -> Batch:
        """inputs and targets int32 [B, T], padded with <pad>; `start` bool [B]: whether a segment starts a stream."""
        segment, stream = rows // self.rows, rows % self.rows
        within = segment[:, None] * self.steps + np.arange(bucket[0])  # [B, T] positions in the stream
        place = stream[:, None] * self._length + within
        real = (rows >= 0)[:, None] & (within < self._length) & (place < len(self.ids))
        place, total = place + self.begin(epoch), len(self.ids)
        before = np.where(place == 0, np.int32(EOS), self.ids[(place - 1) % total])
        return {
            "inputs": np.where(real, before, np.int32(PAD)),
            "targets": np.where(real, self.ids[place % total], np.int32(PAD)),
            "start": (segment == 0) | (rows < 0),
            "example": np.where(rows < 0, -1, rows).astype(np.int32),
        }


class InOrder(Plan):
    """A plan without shuffling: each batch holds the rows that follow those of the previous batch."""

    def _make_epoch(self, number: int) -> _Epoch:
        table = np.arange(self.steps_per_epoch * self.rows[0]).reshape(-1, self.rows[0])
        table.flags.writeable = False
        steps = np.arange(self.steps_per_epoch)
        return _Epoch([table], np.stack([np.zeros_like(steps), steps], axis=1))
