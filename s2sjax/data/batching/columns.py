"""Examples as named columns, for any task.

    columns = Columns({"source": Ragged, "target": Ragged}, {}, example=np.arange(N), sizes=(N,))    text pairs
    columns = Columns({"inputs": Ragged}, {"target": floats [N, 1]}, ...)                          one number per series

A *ragged* column holds sequences of unequal length: ids, or frames [*, F]. A *dense* column holds one array of a fixed
shape for each row: a number, a label, a picture. Buckets and token budgets count the ragged columns, in their order.

Letters: N rows of the data set, B rows of a batch, k ragged columns. Lengths of text include <eos>.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.data.text.subword_sampling import Draw

Bucket = tuple[int, ...]
"""the padded length of each ragged column"""
Buckets = Sequence[Bucket]
Batch = dict[str, np.ndarray]
"""the columns by name, [B, ...]; `example` int32 [B], -1 in rows of padding; `part` int32 [B] if `Plan.part` is set"""


class Ragged(NamedTuple):
    """Unpadded sequences of unequal length: sequence n is flat[offsets[n] : offsets[n + 1]]."""

    flat: np.ndarray  # [total, ...]: ids, or frames [total, F]
    offsets: np.ndarray  # int64 [N + 1]

    @classmethod
    def of_ids(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """[[7], [8, 9]] -> flat 7 <eos> 8 9 <eos>, offsets 0 2 5."""
        offsets = _offsets([len(sequence) + 1 for sequence in sequences])
        tokens = chain.from_iterable(chain(sequence, (EOS,)) for sequence in sequences)
        return cls(np.fromiter(tokens, np.int32, count=offsets[-1]), offsets)

    @classmethod
    def of_labels(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """Ids from 1 without <eos>: [[7], [8, 9]] -> flat 7 8 9 <pad>, offsets 0 1 3. Sequences may be empty."""
        offsets = _offsets([len(sequence) for sequence in sequences])
        return cls(np.fromiter(chain(*sequences, (PAD,)), np.int32, count=offsets[-1] + 1), offsets)

    @classmethod
    def of_frames(cls, sequences: Sequence[np.ndarray]) -> Ragged:
        """Frames [length, F], stored as float32: [[0.1], [0.2]] and [[0.3]] -> flat [3, 1], offsets 0 2 3."""
        return cls(np.concatenate(sequences).astype(np.float32), _offsets([len(sequence) for sequence in sequences]))

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def padded(self, rows: np.ndarray, width: int, epoch: int = 0) -> np.ndarray:
        """The sequences at `rows`, padded to [B, width, ...]; row -1 is all padding. Ignores the epoch."""
        starts = self.offsets[rows]
        # Row -1 has the length offsets[0] - offsets[-1] <= 0, so that all of it is padding.
        return padded(self.flat, starts, self.offsets[rows + 1] - starts, width)


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    """[2, 3] -> 0 2 5"""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def padded(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """flat[start : start + length] of each row, padded with <pad> or 0 to [B, width, ...]. 16-bit ids become int32."""
    column = np.arange(width)  # [width]
    real = column < lengths[:, None]  # [B, width]
    found = flat.take(starts[:, None] + column, axis=0, mode="clip")
    real = real.reshape(*real.shape, *(1,) * (found.ndim - 2))
    return np.where(real, found, np.int32(PAD) if found.dtype.kind == "u" else found.dtype.type(PAD))


class Drawn(NamedTuple):
    """Texts that are split into new subwords in each epoch, as a pure function of (seed, epoch, row).

    A plan uses `lengths`: those of epoch 0, or the plain ones if they are longer or if only they fit a bucket. A row
    that is too long for its bucket in a later epoch uses its plain sequence, so that no row is truncated or dropped.
    """

    plain: Ragged
    texts: Sequence[str]
    draw: Draw
    seed: str
    lengths: np.ndarray

    def sequence(self, row: int, epoch: int) -> list[int]:
        return [*self.draw(self.texts[row], random.Random(f"{self.seed}/{epoch}/{row}")), EOS]

    def first_lengths(self) -> np.ndarray:
        """The lengths [N] of epoch 0, or the plain ones where they are longer."""
        return np.maximum([len(self.sequence(row, 0)) for row in range(len(self.texts))], self.plain.lengths)

    def padded(self, rows: np.ndarray, width: int, epoch: int) -> np.ndarray:
        """See `Ragged.padded`."""
        table = self.plain.padded(rows, width)
        for ids, row in zip(table, rows.tolist()):
            if row >= 0 and len(sequence := self.sequence(row, epoch)) <= width:
                ids[:] = PAD
                ids[: len(sequence)] = sequence
        return table


class Shared:
    """A dense column in which rows share values: row n is values[index[n]]. Nothing is copied."""

    def __init__(self, values: np.ndarray, index: np.ndarray):
        self.values, self.index = values, index
        self.dtype, self.ndim = values.dtype, values.ndim

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return self.values[self.index[rows]]


class Columns(NamedTuple):
    """All rows of a data set in memory.

    Several rows may come from one example (a source with several targets); row n comes from `example[n]`.
    """

    ragged: Mapping[str, Ragged | Drawn]
    dense: Mapping[str, np.ndarray | Shared]  # [N, ...] each
    example: np.ndarray  # int32 [N]
    sizes: tuple[int, ...]  # rows of each corpus of a mixture, in order

    @property
    def lengths(self) -> np.ndarray:
        """[N, k]"""
        return np.stack([column.lengths for column in self.ragged.values()], axis=1)

    def batch(self, rows: np.ndarray, bucket: Bucket, epoch: int = 0) -> Batch:
        """The padded rows; row -1 is all padding. Frames have their lengths in NAME_lengths [B].

        Only `Drawn` columns depend on the epoch.
        """
        found: Batch = {}
        for (name, column), width in zip(self.ragged.items(), bucket, strict=True):
            found[name] = column.padded(rows, width, epoch)
            if found[name].ndim > 2:  # padding is visible in ids but not in frames
                found[f"{name}_lengths"] = np.where(rows < 0, 0, column.lengths[rows]).astype(np.int32)
        for name, array in self.dense.items():
            real = (rows >= 0).reshape(-1, *(1,) * (array.ndim - 1))
            found[name] = np.where(real, array[rows], array.dtype.type(0))
        return found | {"example": np.where(rows < 0, np.int32(-1), self.example[rows])}


class Aligned(NamedTuple):
    """Columns whose ragged columns have equal lengths, such as words and their tags, so that a bucket is one length."""

    columns: Columns

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.columns.sizes

    @property
    def lengths(self) -> np.ndarray:
        """[N, 1]"""
        return self.columns.lengths[:, :1]

    def batch(self, rows: np.ndarray, bucket: Bucket, epoch: int = 0) -> Batch:
        return self.columns.batch(rows, bucket * len(self.columns.ragged), epoch)


class AnyColumns(Protocol):
    """Columns in memory, or on disk and read when a batch needs them (data/corpora/prepared_corpus.py)."""

    @property
    def sizes(self) -> tuple[int, ...]: ...
    @property
    def lengths(self) -> np.ndarray: ...
    def batch(self, rows: np.ndarray, bucket: Bucket, epoch: int = 0) -> Batch: ...


def first_bucket(lengths: np.ndarray, buckets: Buckets) -> np.ndarray:
    """The first bucket [N] that fits all lengths [N, k] of a row, -1 if none does.

    lengths (3, 9), (3, 3), (99, 1) and buckets (4, 4), (8, 16) -> 1, 0, -1
    """
    bucket = np.full(len(lengths), -1, np.int16)  # small: there may be many millions of rows
    for index, widths in reversed(list(enumerate(buckets))):
        bucket[(lengths <= np.array(widths)).all(axis=1)] = index
    return bucket
