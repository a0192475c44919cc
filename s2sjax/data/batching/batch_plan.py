"""Batches as a pure function of (data, seed, step).

    plan = Plan(columns.lengths, buckets, tokens=2048, seed=0, multiple=devices * grad_accum_steps)
    for step, batch in stream(columns, plan, start=0, stop=10_000): ...

To resume, start the stream at another step: there is no other state. The mesh only decides which rows of a batch each
process loads. Columns of any task will do: see columns.py.

Letters: B rows of a batch, N rows of the data set, k ragged columns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import gt
from typing import Any, NamedTuple

import numpy as np

from s2sjax.config import require
from s2sjax.data.batching.columns import AnyColumns, Batch, Buckets, Ragged, first_bucket
from s2sjax.errors import UserError

# ---------------------------------------------------------------------------------------- plan


ORDER = 0x6F72646572
"""seed of the order of batches, the same for all runs"""


class _Epoch(NamedTuple):
    rows: list[np.ndarray]  # for each group (a bucket of a part): [batches, B] rows, -1 where padded
    order: np.ndarray  # [steps_per_epoch, 2]: group, and index of the batch in the group


class Plan:
    """The assignment of rows to the batch of each step.

    A batch of bucket (S, T) has tokens / (S + T) rows, and at least one, so that all steps do about the same work. Each
    epoch shuffles the rows by (seed, epoch) alone, sorts them into buckets, splits the buckets into batches, and
    shuffles the batches by the epoch alone: the bucket of a step does not depend on the seed, so that the members of a
    sweep share their steps. Every row occurs exactly once per epoch, and all epochs have the same number of steps.
    Padding rows fill the last batch of a bucket, and every batch up to a multiple of `multiple`, so that devices and
    micro-batches get equally many rows; the real rows of a step stay the same. With `part` [N], the part of each row
    (s2sjax/data/batching/target_subsets.py), no batch mixes two parts.

        Plan([[2, 2], [3, 3], [2, 3]], buckets=[(4, 4)], tokens=16, seed=0).at(step)    2 rows, 2 steps per epoch
        step 0: bucket 0, rows 0 1      step 1: bucket 0, rows 2 -1      step 2: bucket 0, rows 2 1
    """

    order_by_seed = False
    """shuffle the batches by the seed too, as runs do that an earlier version began"""

    def __init__(
        self, lengths: np.ndarray, buckets: Buckets, tokens: int, seed: int, multiple: int = 1, *,
        part: np.ndarray | None = None,
    ):  # fmt: skip
        self.buckets = tuple(buckets)
        lengths = np.asarray(lengths).reshape(-1, len(self.buckets[0]))
        self.seed = seed
        self._full = tuple(max(1, tokens // sum(bucket)) for bucket in self.buckets)
        self.rows = tuple(-(-rows // multiple) * multiple for rows in self._full)
        self.part = part
        self._bucket = first_bucket(lengths, buckets)
        if not np.any(self._bucket >= 0):
            raise UserError(_no_rows_message(lengths, self.buckets))
        parts = 0 if part is None else part
        self._group = np.where(self._bucket >= 0, parts * len(self.buckets) + self._bucket, -1)
        self.left_out = int(np.sum(self._bucket < 0))
        """number of rows that are too long for every bucket"""
        counts = np.bincount(self._group[self._group >= 0])
        self._batches = [-(-int(count) // self._full[self._of(group)]) for group, count in enumerate(counts)]
        self.steps_per_epoch = sum(self._batches)
        self._epochs: dict[int, _Epoch] = {}
        self._lock = threading.Lock()

    @property
    def used_buckets(self) -> list[int]:
        """The buckets that contain rows, which are the shapes that a run compiles."""
        return sorted({self._of(group) for group, batches in enumerate(self._batches) if batches})

    def first_uses(self, start: int, stop: int) -> list[int]:
        """The buckets of the steps start <= step < stop, in the order of their first use.

        Searches two epochs, which use all buckets, except perhaps a rare bucket of a mixture.
        """
        found: list[int] = []
        for _ in range(2):
            if start >= stop or len(found) == len(self.used_buckets):
                break
            number, index = self._find(start)
            groups = self._epoch(number).order[index : index + stop - start, 0]
            buckets, places = np.unique(groups % len(self.buckets), return_index=True)
            found += [int(bucket) for bucket in buckets[np.argsort(places)] if bucket not in found]
            start += len(groups)
        return found

    @property
    def idle(self) -> float:
        """The fraction of padding rows that make a batch divisible by devices and micro-batches."""
        used = self.used_buckets
        return 1 - sum(self._full[b] for b in used) / sum(self.rows[b] for b in used)

    def _of(self, group: int) -> int:
        """The bucket of a group."""
        return group % len(self.buckets)

    def epoch(self, step: int) -> int:
        return self._find(int(step))[0]

    def at(self, step: int) -> tuple[int, np.ndarray]:
        """The bucket of the global batch at `step`, and its rows: int64 [B], -1 where padded."""
        number, index = self._find(int(step))
        epoch = self._epoch(number)
        group, batch = epoch.order[index]
        return self._of(int(group)), epoch.rows[group][batch]

    def _find(self, step: int) -> tuple[int, int]:
        """(epoch, index within the epoch) of a step."""
        return divmod(step, self.steps_per_epoch)

    def _epoch(self, number: int) -> _Epoch:
        """The batches of an epoch. Two epochs are cached: Grain's threads alternate between them near a boundary."""
        with self._lock:
            if number not in self._epochs:
                while len(self._epochs) >= 2:
                    del self._epochs[next(iter(self._epochs))]
                self._epochs[number] = self._make_epoch(number)
            return self._epochs[number]

    def _make_epoch(self, number: int) -> _Epoch:
        # Sorting Philox's raw numbers gives the same shuffle in every NumPy release; Generator.permutation may not.
        philox = np.random.Philox(np.random.SeedSequence([self.seed % 2**64, number]))
        rows = []
        for group, chosen in enumerate(self._draw(number, philox)):
            width = self._full[self._of(group)]
            table = np.full((-(-len(chosen) // width), self.rows[self._of(group)]), -1)
            places = np.arange(len(chosen))
            table[places // width, places % width] = chosen
            table.flags.writeable = False  # `at` returns views of it
            rows.append(table)
        order = np.concatenate([np.stack([np.full(len(t), g), np.arange(len(t))], 1) for g, t in enumerate(rows)])
        by = philox if self.order_by_seed else np.random.Philox(np.random.SeedSequence([ORDER, number]))
        return _Epoch(rows, order[np.argsort(by.random_raw(len(order)), kind="stable")])

    def _draw(self, number: int, philox: np.random.Philox) -> list[np.ndarray]:
        """The rows of each group, in the order of this epoch."""
        shuffled = np.argsort(philox.random_raw(len(self._group)), kind="stable")
        by_group = shuffled[np.argsort(self._group[shuffled], kind="stable")]  # rows without a group, -1, come first
        starts = np.searchsorted(self._group[by_group], np.arange(len(self._batches) + 1))
        return [by_group[first:last] for first, last in pairwise(starts)]


def _no_rows_message(lengths: np.ndarray, buckets: Buckets) -> str:
    if len(lengths) == 0:
        return "there are no examples to train on: check data"
    shortest = lengths[np.argmin(lengths.sum(axis=1))]
    return (
        f"none of {len(lengths)} examples fits in data.buckets, the largest of which is {tuple(buckets[-1])}: the "
        f"shortest has lengths {tuple(shortest.tolist())}; add a larger bucket"
    )


# ------------------------------------------------------------------------------------- batches


def make_batch(columns: AnyColumns, plan: Plan, step: int, shards: Sequence[int] = (0,), shard_count: int = 1) -> Batch:
    """The rows of some shards of the global batch at `step`, which is split into `shard_count` equal shards.

    Example: shards (0, 2) of 4 are the rows 0 1 4 5 of 8. A process loads the shards of its devices; other processes
    may load the same shards: see `row_shards` in s2sjax/training/mesh.py.
    """
    bucket, rows = plan.at(step)
    part = None if plan.part is None else plan.part[rows[rows >= 0][0]]
    if len(rows) % shard_count:
        what = f"a batch of {len(rows)} rows cannot be split evenly into {shard_count} shards"
        raise UserError(f"{what}: plan it with a multiple of {shard_count}")
    rows = rows.reshape(shard_count, -1)[list(shards)].ravel()
    batch = columns.batch(rows, plan.buckets[bucket], plan.epoch(step))
    return batch if part is None else {**batch, "part": np.full(len(rows), part, np.int32)}


def stream(
    columns: AnyColumns, plan: Plan, start: int, stop: int, *,
    shards: Sequence[int] = (0,), shard_count: int = 1, prefetch: int = 4,
) -> Iterator[tuple[int, Batch]]:  # fmt: skip
    """Yields (step, batch) for start <= step < stop: see `prefetched`."""
    return prefetched(lambda step: make_batch(columns, plan, step, shards, shard_count), start, stop, prefetch)


def prefetched(make: Callable[[int], Batch], start: int, stop: int, prefetch: int = 4) -> Iterator[tuple[int, Batch]]:
    """Yields (step, make(step)) for start <= step < stop. Grain's threads prepare `prefetch` batches in advance.

    Steps before `start` are not read. The threads stop when the stream ends or is closed.
    """
    # Imported here because it takes a second and imports JAX; but not in the generator, whose first batch may be
    # requested while a thread compiles: importing Grain makes imports lazy in all threads, which breaks JAX.
    import grain

    steps = grain.MapDataset.range(start, max(start, stop))
    batches = steps.map(lambda step: (step, make(step)))
    # Two threads: gathering rows holds the GIL most of the time, so that more threads would only wait.
    options = grain.ReadOptions(num_threads=min(2, prefetch), prefetch_buffer_size=prefetch)
    return _closing(batches.to_iter_dataset(options))


def _closing(batches: Any) -> Iterator[Any]:
    """Yields the batches. Stops Grain's threads when the generator is closed."""
    found = iter(batches)
    try:
        yield from found
    finally:
        found.close()


def round_length(length: int, max_length: int | None = None) -> int:
    """The next power of two, so that few shapes are compiled. Padding alone never exceeds the model's `max_length`.

    Example: 5 -> 8; 5, max_length 6 -> 6; 7, max_length 6 -> 8.
    """
    rounded = 1 << (length - 1).bit_length()
    return rounded if max_length is None or length > max_length else min(rounded, max_length)


def rows_that_fit(width: int, longest: int, rows: int, multiple: int = 1) -> int:
    """The number of sequences of `width` tokens to decode at once, a multiple of `multiple`: `rows` if they fit the
    `longest` bucket, fewer for wider sequences, to keep the number of tokens.

    Example: 64 rows, longest 32 -> 64 of width 16, 16 of width 128, 1 of width 4096.
    """
    return max(rows * longest // max(width, longest) // multiple, 1) * multiple


def round_rows(count: int, most: int, multiple: int) -> int:
    """Rounds up to a power of four times `multiple`, at most `most`: few lines are cheap, few shapes are compiled."""
    size = multiple
    while size < min(count, most):
        size *= 4
    return min(size, most)


def joined_buckets(lengths: np.ndarray, buckets: Buckets, spare: int) -> Buckets:
    """Drops each bucket whose rows fit into the next one with at most `spare` additional tokens of padding."""
    counts = np.bincount(first_bucket(lengths, buckets) + 1, minlength=len(buckets) + 1)[1:]
    kept, waiting = [], 0
    for bucket, wider, count in zip(buckets, (*buckets[1:], ()), counts):
        waiting += int(count)
        if not wider or any(map(gt, bucket, wider)) or waiting * (sum(wider) - sum(bucket)) > spare:
            kept.append(bucket)
            waiting = 0
    return kept


def evaluation_batches(
    sources: Sequence[Sequence[int]], buckets: Sequence[int], rows: int, max_length: int | None = None, *,
    max_queue: int = 1, multiple: int = 1, lengths: np.ndarray | None = None, spare: int = 0,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # fmt: skip
    """Yields batches of sources (ids without <eos>), short before long: indices int64 [N] and source int32 [N, S].

    Each index occurs exactly once. S is the first of `buckets` that fits the source and its <eos>; a longer source is
    padded to its `round_length`. If given, `lengths` (at least those of the sources) are fitted instead. The sources of
    one S join those of the next S if that adds at most `spare` tokens of padding, because each S compiles a program.

    N is `rows_that_fit` times the largest power of two, at most `max_queue`, that the sources of this S need; it is
    smaller if there are fewer sources, and a multiple of `multiple`. Rows of <pad>, whose index is -1, fill the last
    batch of each S.
    """
    require(rows >= 1, f"evaluate.batch_size is {rows}: it must be at least 1")
    ragged = Ragged.of_ids(sources)
    lengths = ragged.lengths if lengths is None else lengths
    limits = np.unique(np.asarray(buckets, np.int64))
    place = np.searchsorted(limits, lengths)
    rounded = [round_length(int(length), max_length) for length in lengths]
    widths = np.where(place < len(limits), np.append(limits, 0)[place], rounded)
    near = widths <= 2 * limits[-1]
    joined = joined_buckets(widths[near, None], [(width,) for width in np.unique(widths[near])], spare)
    wider = np.array([width for (width,) in joined], np.int64)
    widths[near] = wider[np.searchsorted(wider, widths[near])]
    for width in np.unique(widths):
        members = np.flatnonzero(widths == width)
        members = members[np.argsort(lengths[members], kind="stable")]
        most = rows_that_fit(int(width), int(limits[-1]), rows, multiple)
        size = most * min(max_queue, 1 << (-(-len(members) // most) - 1).bit_length())
        if len(members) < most:
            size = round_rows(len(members), most, multiple)
        for first in range(0, len(members), size):
            indices = np.full(size, -1)
            chosen = members[first : first + size]
            indices[: len(chosen)] = chosen
            yield indices, ragged.padded(indices, int(width))
