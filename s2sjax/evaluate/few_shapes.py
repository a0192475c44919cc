"""A translator whose programs are few and known: a server compiles them all before the first request.

Letters: B rows of a batch, S source length, T target length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from s2sjax.core.tokens import PAD
from s2sjax.data.batches import evaluation_batches, round_length, round_rows, rows_that_fit
from s2sjax.data.columns import Ragged
from s2sjax.evaluate.decoding import Translator, padded_prefixes

PAIRS = 8
"""rows of an attention program"""


class FewShapes(Translator):
    """Decodes at most `rows` lines in one call by the programs that `programs` lists, and by no others.

    Outputs are those of the translator: padding changes nothing. Of its buckets the longest stays, and each that is at
    most half of the next; the lines of a batch share one bucket. The output of a source of S tokens has room for as
    many tokens as any such source may get.
    """

    def __init__(self, translator: Translator, rows: int):
        self.__dict__.update(vars(translator))
        self.rows = max(min(rows, translator.rows) // self._multiple, 1) * self._multiple
        kept = [max(translator.buckets)]
        for width in sorted(translator.buckets, reverse=True):
            kept += [width] if 2 * width <= kept[-1] else []
        self.buckets = kept[::-1]
        self._pairs = -(-PAIRS // self._multiple) * self._multiple

    def sizes(self, width: int = 0) -> list[int]:
        """Numbers of rows that a search of this width may have, by default of the buckets."""
        most = rows_that_fit(width, max(self.buckets), self.rows, self._multiple)
        return sorted({round_rows(count, most, self._multiple) for count in range(1, most + 1)})

    def programs(self, params: Any) -> list[Callable[[], Any]]:
        """Calls that compile all programs, searches first. Their batches are padding."""
        params, last = self._stored(params), max(self.buckets)
        longest = min(filter(None, (self._cut_at, self._max_source)))
        wider = {round_length(length, self._max_source) for length in range(last + 1, longest + 1)}
        widths = [*self.buckets, *sorted(wider)]
        functions = [self._attention] * self.attends + [self._heads] * bool(self.has_heads)
        found: list[Callable[[], Any]] = []
        found += [partial(self._search_padding, params, rows, width) for width in widths for rows in self.sizes(width)]
        found += [partial(self._attend_padding, function, params, width) for function in functions for width in widths]
        if self.options.beam > 1 and not self.options.sampling.count:
            found += [partial(self._tree_of_padding, params, width) for width in widths if width >= last]
        return found

    def trial(self, params: Any, rows: int) -> None:
        """Searches the same line in every row, to measure how the time depends on the rows."""
        source = self._ids(rows, max(self.buckets))
        source[:, : -(-source.shape[1] // 2)] = self.source.size - 1
        jax.block_until_ready(self._search_rows(self._stored(params), source, self._begin(rows), self._numbers(rows)))

    # ------------------------------------------------------------------------------------ the programs

    def _ids(self, rows: int, width: int) -> np.ndarray:
        return np.full((rows, width), PAD, np.int32)

    def _begin(self, rows: int) -> np.ndarray:
        return np.repeat(padded_prefixes([self._prefix(None)]), rows, axis=0)

    def _numbers(self, rows: int) -> np.ndarray:
        return np.zeros(rows, np.int32)

    def _search_padding(self, params: tuple, rows: int, width: int) -> None:
        self._search_rows(params, self._ids(rows, width), self._begin(rows), self._numbers(rows))

    def _tree_of_padding(self, params: tuple, width: int) -> None:
        self._search(params, self._ids(1, width), self._begin(1), self._numbers(1), slots=1, record=True)

    def _attend_padding(self, function: Callable[..., Any], params: tuple, width: int) -> None:
        pair = self._ids(self._pairs, width), self._ids(self._pairs, self._output_length(width))
        function(params, *map(self._place, pair))

    # ----------------------------------------------------------------------------- how batches are made

    def _batches(
        self, params: tuple, sources: Sequence[list[int]], **options: Any
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        options = {"rows": self.rows, "multiple": self._multiple} | options | {"max_queue": 1}
        return evaluation_batches(sources, self.buckets, max_length=self._max_source, spare=sys.maxsize, **options)

    def _pair_batches(
        self, params: tuple, sources: Sequence[list[int]], targets: Ragged
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for indices, source in self._batches(params, sources, rows=self._pairs, multiple=self._pairs):
            yield indices, source, targets.padded(indices, self._output_length(source.shape[1]))
