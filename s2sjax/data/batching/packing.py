"""Packing: several short pairs in one row, to reduce padding (Raffel et al. 2020, section 3.1.4).

    pairs of lengths (3, 2) (2, 2) (4, 1) in rows of (6, 6)

    source           a a a b b .      source_segments   1 1 1 2 2 0      target           A A B B . .
                     c c c c . .                        1 1 1 1 0 0                       C . . . . .

A plan treats a packed row like a pair: it shuffles rows, and mixes corpora by rows. Pairs are assigned to rows once,
independently of the seed, so that every pair occurs once per epoch and all epochs have the same number of steps.

Letters: N pairs, R packed rows, K maximum pairs per row; S and T the lengths of a row.
"""

from __future__ import annotations

from array import array

import numpy as np

from s2sjax.core.special_tokens import PAD
from s2sjax.data.batching.columns import AnyColumns, Batch, Bucket, first_bucket


class Packed:
    """Rows of several pairs each, from memory or a prepared folder. Pairs that are longer than a row are left out."""

    def __init__(self, pairs: AnyColumns, row: tuple[int, int]):
        self.pairs, self.row = pairs, row
        lengths = np.asarray(pairs.lengths)
        order, counts, first = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
        for size in pairs.sizes:  # a row never mixes corpora
            members = first + np.flatnonzero(first_bucket(lengths[first : first + size], [row]) == 0)
            # Shuffled because neighbours in a corpus often come from one text and have similar lengths.
            members = members[np.argsort(np.random.Philox(0).random_raw(len(members)), kind="stable")]
            rows = pack(lengths[members], row)
            order.append(members[np.argsort(rows, kind="stable")])
            counts.append(np.bincount(rows))
            first += size
        self.sizes = tuple(map(len, counts[1:]))
        self.left_out = len(lengths) - sum(map(len, order))
        """number of pairs that are longer than a row"""
        self._order = np.concatenate(order)
        self._starts = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        self.max_pairs = int(np.diff(self._starts).max(initial=1))

    @property
    def lengths(self) -> np.ndarray:
        """The lengths [R, 2]: every packed row counts as full."""
        return np.broadcast_to(np.array(self.row, np.int32), (len(self._starts) - 1, 2))

    def batch(self, rows: np.ndarray, bucket: Bucket, epoch: int = 0) -> Batch:
        """The batch of `Columns.batch`, with `source_segments` and `target_segments`; `example` is [B, K]."""
        first, last = self._starts[rows], self._starts[rows + 1]
        counts = np.where(rows < 0, 0, last - first)  # [B]
        row = np.repeat(np.arange(len(rows)), counts)  # of each pair, like the arrays below
        slot = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)  # index of the pair in its row
        pairs = self.pairs.batch(self._order[np.repeat(first, counts) + slot], bucket, epoch)
        found = {"example": np.full((len(rows), self.max_pairs), -1, np.int32)}
        found["example"][row, slot] = pairs["example"]
        for side in ("source", "target"):
            found[side], found[f"{side}_segments"] = _lay_out(pairs[side], row, slot, len(rows))
        return found


def pack(lengths: np.ndarray, row: tuple[int, int]) -> np.ndarray:
    """Assigns pairs of lengths [N, 2] to rows, int32 [N], by best fit: the fullest row with room, or a new row.

    lengths (3, 2) (2, 2) (4, 1) (1, 1) and row (6, 6) -> 0 0 1 0

    Free room is counted in levels of 1 / C of a row, on its fuller side. Bit n of `levels` is set if some row has
    room n, so the fullest row that fits is found with integer operations.
    """
    S, T = row
    C = max(row)
    rows, room = array("i"), array("i")  # row of each pair; (source, target) room left in each row, flattened
    open_rows: list[list[int]] = [[] for _ in range(C + 1)]
    levels = 0
    for block in np.array_split(np.asarray(lengths), max(1, len(lengths) // 2**18)):  # one list would be large
        needs = np.maximum(-(-block[:, 0] * C // S), -(-block[:, 1] * C // T))
        for source, target, need in zip(block[:, 0].tolist(), block[:, 1].tolist(), needs.tolist()):
            if fitting := levels >> need:
                level = need + (fitting & -fitting).bit_length() - 1
                chosen = open_rows[level].pop()
                if not open_rows[level]:
                    levels ^= 1 << level
            else:
                chosen = len(room) // 2
                room.extend(row)
            room[2 * chosen] -= source
            room[2 * chosen + 1] -= target
            rows.append(chosen)
            level = min(room[2 * chosen] * C // S, room[2 * chosen + 1] * C // T)
            if level > 0:
                open_rows[level].append(chosen)
                levels |= 1 << level
    return np.array(rows, np.int32)


def _lay_out(ids: np.ndarray, row: np.ndarray, slot: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates padded sequences [n, S] within their rows. Returns ids [B, S] and segments [B, S]."""
    real = ids != PAD
    lengths = real.sum(1)
    ends = np.cumsum(lengths)
    before = ends - lengths  # tokens of all earlier sequences, those of earlier rows included
    offset = before - np.maximum.accumulate(np.where(slot == 0, before, 0)) if len(ids) else before
    places = np.repeat(offset, lengths) + np.nonzero(real)[1]
    laid, segments = (np.full((rows, ids.shape[1]), fill, np.int32) for fill in (PAD, 0))
    laid[np.repeat(row, lengths), places] = ids[real]
    segments[np.repeat(row, lengths), places] = np.repeat(slot + 1, lengths)
    return laid, segments
