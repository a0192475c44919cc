"""Log-likelihood and attention of given targets, by teacher forcing.

Letters: S source length, T target length.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from s2sjax.data.batching.columns import Ragged
from s2sjax.evaluate.prediction.line_batches import Ids, LineBatches
from s2sjax.evaluate.prediction.search_programs import Programs


class ForcedScoring:
    """Scores pairs of source and target ids, both without <eos>. `params` are those that `Programs.stored` returns."""

    def __init__(self, programs: Programs, batches: LineBatches):
        self._programs, self._batches = programs, batches

    def log_likelihoods(self, params: tuple, sources: Ids, targets: Ids) -> list[tuple[float, int]]:
        """Returns (log-likelihood, number of tokens including <eos>) of each target."""
        written, place = Ragged.of_ids(targets), self._programs.place
        scores: list[tuple[float, int]] = [(0.0, 0)] * len(sources)
        for indices, source, target in self._batches.pairs(params, sources, written):
            found = np.asarray(self._programs.log_likelihood(params, place(source), place(target)))
            for row, index in enumerate(indices):
                if index >= 0:
                    scores[index] = (float(found[row]), int(written.lengths[index]))
        return scores

    def attention(
        self, params: tuple, sources: Ids, targets: Ids, heads: bool = False, eos: bool = False
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (index, weights [T, S]) of each pair whose source is not empty.

        heads: yield the weights of each layer and head, [layers, heads, T, S]. eos: include <eos> on both sides.
        """
        place, program = self._programs.place, self._programs.heads if heads else self._programs.attention
        for indices, source, target in self._batches.pairs(params, sources, Ragged.of_ids(targets)):
            weights = np.asarray(program(params, place(source), place(target)))
            for row, index in enumerate(indices):
                if index >= 0 and sources[index]:
                    yield int(index), weights[row, ..., : len(targets[index]) + eos, : len(sources[index]) + eos]
