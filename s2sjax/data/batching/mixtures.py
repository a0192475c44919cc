"""Batches from several corpora, still as a pure function of (data, seed, step).

An epoch of a mixture has as many pairs as its corpora together, N = sum_i n_i. Corpus i provides c_i = p_i N of them,
with p_i proportional to its weight, or to n_i^(1 / temperature) (Arivazhagan et al. 2019). A corpus is an endless
sequence of shuffles of its pairs. Each epoch takes the next c_i of them, so that

    after E epochs every pair of corpus i has been seen m or m + 1 times, m = floor(E c_i / n_i).

Only pairs that fit in a bucket count. Letters: i corpora, b buckets, n_ib pairs of corpus i in bucket b.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from s2sjax.data.batching.batch_plan import Plan
from s2sjax.data.batching.columns import Buckets


def shares(
    sizes: Sequence[int], weights: Sequence[float] = (), temperature: float = 1.0, total: int | None = None
) -> list[int]:
    """The number of pairs c_i of each corpus per epoch, at least 1 each; their sum is `total` (default: sum of sizes).

    sizes 900 100: at temperature 1 -> 900 100, at temperature 2 -> 750 250, with weights 1 1 -> 500 500.
    """
    total = sum(sizes) if total is None else total
    raw = np.array(weights or [size ** (1 / temperature) for size in sizes], np.float64)
    raw = np.where(np.array(sizes) > 0, raw, 0.0)
    exact = raw / raw.sum() * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    by_remainder = np.argsort(counts - exact, kind="stable")  # the largest remainder first
    counts[by_remainder[: total - counts.sum()]] += 1
    return [max(int(count), 1) if size else 0 for count, size in zip(counts, sizes)]


class MixturePlan(Plan):
    """A plan over the concatenated pairs of several corpora; `sizes` are their numbers of pairs.

    Each corpus has its own sequence of shuffles per bucket, of which E epochs take floor(E c_i n_ib / n_i). Epochs
    differ by at most one pair per corpus and bucket; `steps_per_epoch` is that of the first epoch. The first step of an
    epoch follows from these counts alone, without shuffling the earlier epochs.
    """

    def __init__(
        self, lengths: np.ndarray, buckets: Buckets, tokens: int, seed: int, multiple: int = 1, *,
        sizes: Sequence[int], weights: Sequence[float] = (), temperature: float = 1.0,
    ):  # fmt: skip
        super().__init__(lengths, buckets, tokens, seed, multiple)
        corpus = np.repeat(np.arange(len(sizes)), sizes)
        self._members = [
            [np.flatnonzero((corpus == i) & (self._bucket == b)) for b in range(len(buckets))]
            for i in range(len(sizes))
        ]
        self.sizes = [sum(map(len, row)) for row in self._members]  # n_i
        self.shares = shares(self.sizes, weights, temperature)  # c_i
        self._begins = [0]  # the first step of each epoch, computed on demand
        self.steps_per_epoch = self._steps(0)

    def _pairs_taken(self, epochs: int, i: int, b: int) -> int:
        """The number of pairs of corpus i and bucket b in the first `epochs` epochs."""
        count = len(self._members[i][b])
        return epochs * self.shares[i] * count // self.sizes[i] if count else 0

    def _steps(self, epoch: int) -> int:
        """The number of batches of an epoch."""
        taken = lambda epochs, b: sum(self._pairs_taken(epochs, i, b) for i in range(len(self.sizes)))
        return sum(-(-(taken(epoch + 1, b) - taken(epoch, b)) // width) for b, width in enumerate(self._full))

    def _find(self, step: int) -> tuple[int, int]:
        with self._lock:
            while self._begins[-1] <= step:
                self._begins.append(self._begins[-1] + self._steps(len(self._begins) - 1))
            number = bisect_right(self._begins, step) - 1
            return number, step - self._begins[number]

    def _draw(self, number: int, philox: np.random.Philox) -> list[np.ndarray]:
        found = []
        for b in range(len(self.buckets)):
            pairs = np.concatenate([self._pairs_of_epoch(number, i, b) for i in range(len(self.sizes))])
            found.append(pairs[np.argsort(philox.random_raw(len(pairs)), kind="stable")])
        return found

    def _pairs_of_epoch(self, number: int, i: int, b: int) -> np.ndarray:
        """The pairs of corpus i and bucket b in epoch `number`."""
        members = self._members[i][b]
        first, last = self._pairs_taken(number, i, b), self._pairs_taken(number + 1, i, b)
        taken = [np.zeros(0, np.int64)]
        while first < last:
            shuffle, place = divmod(first, len(members))
            end = min(len(members), place + last - first)
            philox = np.random.Philox(np.random.SeedSequence([self.seed % 2**64, i, b, shuffle]))
            shuffled = np.argsort(philox.random_raw(len(members)), kind="stable")
            taken.append(members[shuffled[place:end]])
            first += end - place
        return np.concatenate(taken)
