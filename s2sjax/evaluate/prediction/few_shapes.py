"""A translator with few programs, which are known in advance: a server compiles them all before the first request.

Letters: B rows of a batch, S source length, T target length.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from s2sjax.core.special_tokens import PAD
from s2sjax.data.batching.batch_plan import evaluation_batches, round_length, round_rows
from s2sjax.data.batching.columns import Ragged
from s2sjax.evaluate.prediction.line_batches import Ids, LineBatches, padded_prefixes
from s2sjax.evaluate.prediction.translator import Translator

PAIRS = 8
"""number of rows of an attention program"""


@dataclass(frozen=True, kw_only=True)
class FewShapeBatches(LineBatches):
    """Collects ids into batches whose shapes depend only on the lengths of the sources and on the number of lines."""

    pair_rows: int
    """number of rows of a batch of pairs"""
    output_length: Callable[[int], int]
    """maximum length of a target, given the width of the sources"""

    @classmethod
    def like(cls, batches: LineBatches, rows: int, output_length: Callable[[int], int]) -> FewShapeBatches:
        """Batches of at most `rows` rows. Keeps the longest bucket, and each that is at most half of the next."""
        multiple, kept = batches.multiple, [max(batches.buckets)]
        for width in sorted(batches.buckets, reverse=True):
            kept += [width] if 2 * width <= kept[-1] else []
        return cls(
            kept[::-1], max(min(rows, batches.rows) // multiple, 1) * multiple, multiple, batches.max_source,
            batches.max_target, pair_rows=-(-PAIRS // multiple) * multiple, output_length=output_length,
        )  # fmt: skip

    def sources(self, params: Any, sources: Ids) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return self._in_one_bucket(sources, self.rows, self.multiple)

    def pairs(self, params: Any, sources: Ids, targets: Ragged) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for indices, source in self._in_one_bucket(sources, self.pair_rows, self.pair_rows):
            yield indices, source, targets.padded(indices, self.output_length(source.shape[1]))

    def _in_one_bucket(self, sources: Ids, rows: int, multiple: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return evaluation_batches(sources, self.buckets, rows, self.max_source, multiple=multiple, spare=sys.maxsize)


class FewShapes(Translator):
    """Decodes at most `rows` lines per call with the programs that `programs` lists, and with no others.

    The outputs are those of the translator: padding does not change them. The lines of a batch share one bucket. The
    output of a source of S tokens has room for as many tokens as any source of this length may get.
    """

    _batches: FewShapeBatches

    def __init__(self, translator: Translator, rows: int):
        # Translator.__init__ would make new programs. Those of the translator are shared, so that none compiles twice.
        vars(self).update(vars(translator))
        self._batches = FewShapeBatches.like(translator._batches, rows, translator._programs.output_length)

    def sizes(self, width: int = 0) -> list[int]:
        """The numbers of rows that a search of this width may have; by default, a search of any bucket."""
        most = self._batches.slots(width)
        return sorted({round_rows(count, most, self._batches.multiple) for count in range(1, most + 1)})

    def programs(self, params: Any) -> list[Callable[[], Any]]:
        """Calls that compile all programs, searches first. Their batches are padding."""
        params, last, positions = self._programs.stored(params), max(self._batches.buckets), self._batches.max_source
        longest = min(filter(None, (self._encoder.limit, positions)))
        wider = {round_length(length, positions) for length in range(last + 1, longest + 1)}
        widths = [*self._batches.buckets, *sorted(wider)]
        attention = [self._programs.attention] * self.attends + [self._programs.heads] * bool(self.has_heads)
        attention += self._programs.self_attention.values()
        found: list[Callable[[], Any]] = [
            partial(self._search_rows, params, _padding(rows, width), *self._begin(rows))
            for width in widths
            for rows in self.sizes(width)
        ]
        for program, width in itertools.product(attention, widths):
            pair = (_padding(self._batches.pair_rows, each) for each in (width, self._batches.output_length(width)))
            found.append(partial(program, params, *map(self._programs.place, pair)))
        if self.has_trees:
            tree = partial(self._programs.search, slots=1, record=True)
            found += [partial(tree, params, _padding(1, width), *self._begin(1)) for width in widths if width >= last]
        return found

    def trial(self, params: Any, rows: int) -> None:
        """Searches with the same line in every row, to measure how the time depends on the number of rows."""
        source = _padding(rows, max(self._batches.buckets))
        source[:, : -(-source.shape[1] // 2)] = self.source.size - 1
        jax.block_until_ready(self._search_rows(self._programs.stored(params), source, *self._begin(rows)))

    def _begin(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """The prefixes and the numbers of rows without a prefix of their own."""
        return np.repeat(padded_prefixes([self._encoder.prefix(None)]), rows, axis=0), np.zeros(rows, np.int32)


def _padding(rows: int, width: int) -> np.ndarray:
    return np.full((rows, width), PAD, np.int32)
