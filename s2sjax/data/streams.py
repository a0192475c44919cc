"""A long text as rows of batches: parallel streams, one segment a step.

    text 0 1 2 3 4 5 6 7 8 9 10, 2 rows, 3 steps:
    stream 0      0 1 2 | 3 4 5      each stream is a part of the text
    stream 1      6 7 8 | 9 10 _     step t has segment t of each: a state that is kept reads on

Each token is predicted once an epoch, from the token before it; the first from <eos>.

Letters: B streams (rows of a batch), T tokens of a segment, S segments of a stream, N = S * B rows of the data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.core.tokens import EOS, PAD
from s2sjax.data import tables, text
from s2sjax.data.batches import Plan, _Epoch
from s2sjax.data.columns import Batch, Bucket
from s2sjax.errors import UserError


def read_lines(path: str, setting: str, origin: str = "") -> list[str]:
    """The lines of a text file, blanks in between reduced to one. `setting` is the field that names the file."""
    if not path:
        raise UserError(f"{setting} is empty: name a text file with one sentence a line")
    if origin and not Path(path).expanduser().exists():
        raise UserError(
            f"there is no file {config.relative_path(path)} (text, one sentence a line) of {origin}: correct {setting}"
        )
    return [" ".join(line.split()) for line in tables.lines(path, setting)]


def vocabulary(data: config.PlainText, lines: Iterable[str]) -> text.Vocabulary:
    """The tokens of a text, the most frequent first. Text is taken as it is, and <unk> in it is <unk>."""
    found = text.build(config.Text(data.unit, normalize="none", min_count=data.min_count), lines)
    assert isinstance(found, text.Vocabulary)
    return found


def encode(vocabulary: text.AnyVocabulary, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all lines, each with its <eos>, int32 [total]; and the offset of each line, int64 [lines + 1]."""
    ids = [np.array([*vocabulary.encode(line), EOS], np.int32) for line in lines]
    return np.concatenate(ids), np.concatenate([[0], np.cumsum([len(line) for line in ids])])


def fingerprint(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


class Segments(NamedTuple):
    """The segments of all streams as rows of a data set: row s * B + b is segment s of stream b."""

    ids: np.ndarray  # int32 [total]
    rows: int
    steps: int
    seed: int | None = None
    """each epoch begins at a place of the text that follows from (seed, epoch); None: at its start"""

    @property
    def segments(self) -> int:
        """Of a stream."""
        return -(-self._length // self.steps)

    @property
    def _length(self) -> int:
        """Tokens of a stream; the last one may have fewer."""
        return -(-len(self.ids) // self.rows)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.segments * self.rows,)

    @property
    def lengths(self) -> np.ndarray:
        """[N, 1]: all are `steps` long, padding included."""
        return np.full((self.segments * self.rows, 1), self.steps)

    def begin(self, epoch: int) -> int:
        """Where the first stream begins in an epoch."""
        if self.seed is None:
            return 0
        drawn = np.random.Philox(np.random.SeedSequence([self.seed % 2**64, epoch, 1])).random_raw()
        return int(drawn % len(self.ids))

    def batch(self, rows: np.ndarray, bucket: Bucket, epoch: int = 0) -> Batch:
        """inputs and targets int32 [B, T], <pad> where there is no text; `start` bool [B]: the first of a stream."""
        segment, stream = rows // self.rows, rows % self.rows
        within = segment[:, None] * self.steps + np.arange(bucket[0])  # [B, T] places of the stream
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
    """Rows as they come, in every epoch: a batch holds the rows that follow those of the batch before it."""

    def _make_epoch(self, number: int) -> _Epoch:
        table = np.arange(self.steps_per_epoch * self.rows[0]).reshape(-1, self.rows[0])
        table.flags.writeable = False
        steps = np.arange(self.steps_per_epoch)
        return _Epoch([table], np.stack([np.zeros_like(steps), steps], axis=1))
