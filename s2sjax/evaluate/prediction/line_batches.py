"""Lines as the arrays that a compiled program reads: ids of bounded length, padded in batches of few shapes.

Letters: B rows of a batch, S source length, T target length, P length of the prefixes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from s2sjax.core.special_tokens import PAD, UNK
from s2sjax.data.batching.batch_plan import evaluation_batches, round_length, rows_that_fit
from s2sjax.data.batching.columns import Ragged
from s2sjax.data.text.vocabulary import AnyVocabulary
from s2sjax.errors import UserError
from s2sjax.evaluate.prediction.batched_apply import spare_tokens
from s2sjax.evaluate.prediction.line_notes import Notes

Ids = Sequence[list[int]]


@dataclass(frozen=True)
class LineEncoder:
    """Encodes lines as ids without <eos>, and cuts those that are too long."""

    source: AnyVocabulary
    target: AnyVocabulary
    limit: int
    """search.max_source: maximum number of tokens of a source or a target, including <eos>"""
    max_source: int | None
    """number of source positions that the model can address, or None"""
    max_target: int | None
    """number of target positions that the model can address, or None"""
    default_prefix: tuple[int, ...]
    """search.prefix, or the forced beginning of the target vocabulary"""

    def prefix(self, text: str | None) -> list[int]:
        """The ids of a forced prefix; by default those of search.prefix. Empty: those that the vocabulary forces."""
        if not text:
            return list(self.default_prefix if text is None else self.target.forced_begin)
        ids = self.target.encode(text)
        if UNK in ids:
            raise UserError(f"the prefix {text!r} is not in the target vocabulary: choose another")
        return ids

    def sources(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of source lines, cut."""
        return self.cut_sources([self.source.encode(line) for line in lines])

    def cut_sources(self, ids: Ids, numbers: Sequence[int] = (), notes: Notes | None = None) -> list[list[int]]:
        """Cuts sources that are longer than the limit or than the positions of the model, and notes their lines."""
        return self._cut(ids, self.max_source, numbers, notes)

    def cut_targets(self, ids: Ids, numbers: Sequence[int] = (), notes: Notes | None = None) -> list[list[int]]:
        """Cuts targets likewise."""
        return self._cut(ids, self.max_target, numbers, notes)

    def _cut(self, ids: Ids, positions: int | None, numbers: Sequence[int], notes: Notes | None) -> list[list[int]]:
        most, name = self.limit, "search.max_source"
        if positions and positions < most:
            most, name = positions, "model.max_length"
        long = [number for number, each in zip(numbers, ids) if len(each) >= most]
        if long and notes:
            notes.add_cut(long, f"{most:,} tokens ({name})")
        elif long:
            warnings.warn(f"lines longer than {most:,} tokens ({name}) were cut", stacklevel=4)
        return [each[: most - 1] for each in ids]


@dataclass(frozen=True)
class LineBatches:
    """Collects ids into batches. Each shape of a batch is a program to compile, so there are few."""

    buckets: Sequence[int]
    """source lengths"""
    rows: int
    """number of sentences that are decoded at once, fewer if they are longer than all buckets"""
    multiple: int
    """number of devices that share a batch: the rows of a batch are a multiple of it"""
    max_source: int | None
    max_target: int | None
    max_queue: int = 1
    """maximum number of sentences per slot of continuous batching"""

    def slots(self, width: int) -> int:
        """The number of sentences of this width that are decoded at once."""
        return rows_that_fit(width, max(self.buckets), self.rows, self.multiple)

    def sources(self, params: Any, sources: Ids) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (indices [B], source [B, S]); the index of a row of padding is -1."""
        return self._made(params, sources, max_queue=self.max_queue)

    def pairs(self, params: Any, sources: Ids, targets: Ragged) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields (indices [B], source [B, S], target [B, T]). The longer side of a pair determines its bucket."""
        longer = np.maximum([len(ids) + 1 for ids in sources], targets.lengths)
        for indices, source in self._made(params, sources, lengths=longer):
            longest = int(max(targets.lengths[indices[indices >= 0]]))
            # A long target made the batch wide: no source is longer than the model's positions.
            source = source[:, : self.max_source]
            yield indices, source, targets.padded(indices, round_length(longest, self.max_target))

    def alone(self, ids: list[int]) -> np.ndarray:
        """A batch of one source, [1, S]: S is the longest bucket if it fits, so that most lines share one program."""
        ((_, source),) = evaluation_batches([ids], [max(self.buckets)], 1, self.max_source)
        return source

    def _made(self, params: Any, sources: Ids, **more: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        more |= {"multiple": self.multiple, "spare": spare_tokens(params)}
        return evaluation_batches(sources, self.buckets, self.rows, self.max_source, **more)


def padded_prefixes(prefixes: Sequence[Sequence[int]]) -> np.ndarray:
    """Pads prefixes to [B, P], where P is a power of two, or 0 if all prefixes are empty."""
    longest = max(map(len, prefixes))
    table = np.full((len(prefixes), 1 << (longest - 1).bit_length() if longest else 0), PAD, np.int32)
    for row, prefix in zip(table, prefixes):
        row[: len(prefix)] = prefix
    return table
