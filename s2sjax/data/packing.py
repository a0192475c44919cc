"""Several short pairs in one row, instead of padding (Raffel et al. 2020, section 3.1.4): less of a batch is <pad>.

    pairs of lengths (3, 2) (2, 2) (4, 1) in rows of (6, 6)

    source           a a a b b .      source_segments   1 1 1 2 2 0      target           A A B B . .
                     c c c c . .                        1 1 1 1 0 0                       C . . . . .

To a plan a packed row is what a pair is: it permutes rows, and mixes corpora by rows. Which pairs share a row is drawn
once, whatever the seed, so every pair still comes once an epoch and every epoch has as many steps.

N pairs, R packed rows, K the most pairs of a row; S and T the lengths of a row.
"""

from __future__ import annotations

import numpy as np

from s2sjax.core.tokens import PAD
from s2sjax.data.batches import AnyPairs, Batch, first_bucket


class Packed:
    """Pairs, in memory or prepared, as rows of several. Those too long for a row are left out, as from buckets."""

    def __init__(self, pairs: AnyPairs, row: tuple[int, int]):
        self.pairs, self.row, self.too_long = pairs, row, pairs.too_long
        lengths = np.asarray(pairs.lengths)
        order, starts, sizes = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)], []
        first = 0
        for size in pairs.sizes:  # a row holds pairs of one corpus
            members = first + np.flatnonzero(first_bucket(lengths[first : first + size], [row]) == 0)
            # Shuffled, for neighbours in a corpus are often of one text, and of one length.
            members = members[np.argsort(np.random.Philox(0).random_raw(len(members)), kind="stable")]
            ends = pack(lengths[members], row)
            starts.append(ends + sum(map(len, order)))
            order.append(members)
            sizes.append(len(ends))
            first += size
        self.sizes = tuple(sizes)
        self._order, self._starts = np.concatenate(order), np.concatenate(starts)
        self.most = int(np.diff(self._starts).max(initial=1))

    @property
    def lengths(self) -> np.ndarray:
        """[R, 2]: a packed row counts as full."""
        return np.broadcast_to(np.array(self.row, np.int32), (len(self._starts) - 1, 2))

    def batch(self, rows: np.ndarray, S: int, T: int) -> Batch:
        """As `Pairs.batch`, with `source_segments` and `target_segments`; `example` is [B, K]."""
        first, last = self._starts[rows], self._starts[rows + 1]
        counts = np.where(rows < 0, 0, last - first)  # [B]
        row = np.repeat(np.arange(len(rows)), counts)  # of each pair, as all below
        turn = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)  # which pair of its row
        found = self.pairs.batch(self._order[np.repeat(first, counts) + turn], S, T)
        example = np.full((len(rows), self.most), -1, np.int32)
        example[row, turn] = found["example"]
        source, source_segments = _laid_out(found["source"], row, turn, len(rows))
        target, target_segments = _laid_out(found["target"], row, turn, len(rows))
        return {
            "source": source,
            "target": target,
            "source_segments": source_segments,
            "target_segments": target_segments,
            "example": example,
        }


def pack(lengths: np.ndarray, row: tuple[int, int]) -> np.ndarray:
    """[N, 2] -> [R]: where each row ends. Pairs join a row in their order, until one of its sides is full.

    lengths (3, 2) (2, 2) (4, 1) and row (6, 6) -> 2 3
    """
    count = len(lengths)
    full = np.full(count, count)  # the first pair that a row which begins here does not hold
    for side, limit in enumerate(row):
        before = np.concatenate([[0], np.cumsum(lengths[:, side], dtype=np.int64)])
        full = np.minimum(full, np.searchsorted(before, before[:-1] + limit, side="right") - 1)
    jumps, ends, place = full.tolist(), [], 0
    while place < count:
        place = jumps[place]
        ends.append(place)
    return np.array(ends, np.int64)


def _laid_out(ids: np.ndarray, row: np.ndarray, turn: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Padded sequences [n, S] one behind the other in their rows: ids [B, S] and segments [B, S]."""
    real = ids != PAD
    lengths = real.sum(1)
    ends = np.cumsum(lengths)
    before = ends - lengths  # tokens of all sequences before this one; of its row's first, what is not of the row
    offset = before - np.maximum.accumulate(np.where(turn == 0, before, 0)) if len(ids) else before
    places = np.repeat(offset, lengths) + np.nonzero(real)[1]
    laid, segments = (np.full((rows, ids.shape[1]), fill, np.int32) for fill in (PAD, 0))
    laid[np.repeat(row, lengths), places] = ids[real]
    segments[np.repeat(row, lengths), places] = np.repeat(turn + 1, lengths)
    return laid, segments
