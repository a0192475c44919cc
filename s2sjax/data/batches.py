"""The law: the batch at step t is a pure function of (data, seed, t).

    pairs = encode(examples, source_vocabulary, target_vocabulary, buckets)
    plan = Plan(pairs.lengths, buckets, tokens=2048, seed=0, multiple=devices * micro_batches)
    for step, batch in stream(pairs, plan, start=0, stop=10_000): ...

To resume, start the stream at another step: nothing else is remembered. How many processes share a batch decides only
which of its rows each of them makes.

B rows of a batch, S and T the source and target length of its bucket, N pairs. All lengths count <eos>.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, Protocol

import numpy as np

from s2sjax.core.tokens import EOS, PAD
from s2sjax.data import Example
from s2sjax.data.segmentation import Draw
from s2sjax.data.text import AnyVocabulary
from s2sjax.errors import UserError

Buckets = Sequence[tuple[int, int]]
Batch = dict[str, np.ndarray]
"""`source` int32 [B, S] and `target` int32 [B, T], filled with <pad>; `example` int32 [B], -1 in a row of padding;

`part` int32 [B], one number, where the plan has parts.
"""


# --------------------------------------------------------------------------------------- pairs


class Ragged(NamedTuple):
    """Sequences of unequal length without padding: sequence n is flat[offsets[n] : offsets[n + 1]]."""

    flat: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """[[7], [8, 9]] -> flat 7 <eos> 8 9 <eos>, offsets 0 2 5."""
        offsets = np.zeros(len(sequences) + 1, np.int64)
        np.cumsum([len(sequence) + 1 for sequence in sequences], out=offsets[1:])
        tokens = chain.from_iterable(chain(sequence, (EOS,)) for sequence in sequences)
        return cls(np.fromiter(tokens, np.int32, count=offsets[-1]), offsets)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def padded(self, rows: np.ndarray, width: int, epoch: int = 0) -> np.ndarray:
        """int32 [B, width]: the sequences `rows` names, filled with <pad>; -1 names a row of padding alone.

        They are the same in every epoch.
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts  # of row -1: first offset - last, below 0, so nothing is real
        column = np.arange(width)  # [width]
        real = column < lengths[:, None]  # [B, width]
        return np.where(real, self.flat[np.where(real, starts[:, None] + column, 0)], np.int32(PAD))


class Drawn(NamedTuple):
    """One side of the pairs, its texts cut into subwords anew each epoch: a pure function of (seed, epoch, pair).

    `lengths` are what a plan reckons with: those of epoch 0, unless the plain ones are longer, or alone fit a bucket.
    A pair that is too long for its bucket in a later epoch comes as its plain sequence: none is cut or left out.
    """

    plain: Ragged
    texts: Sequence[str]
    draw: Draw
    seed: str
    lengths: np.ndarray

    def sequence(self, pair: int, epoch: int) -> list[int]:
        return [*self.draw(self.texts[pair], random.Random(f"{self.seed}/{epoch}/{pair}")), EOS]

    def first_lengths(self) -> np.ndarray:
        """[N]: of epoch 0, or the plain ones where those are longer."""
        drawn = [len(self.sequence(pair, 0)) for pair in range(len(self.texts))]
        return np.maximum(drawn, self.plain.lengths)

    def padded(self, rows: np.ndarray, width: int, epoch: int) -> np.ndarray:
        """As a Ragged's."""
        table = self.plain.padded(rows, width)
        for row, pair in zip(table, rows.tolist()):
            if pair >= 0 and len(sequence := self.sequence(pair, epoch)) <= width:
                row[:] = PAD
                row[: len(sequence)] = sequence
        return table


class Pairs(NamedTuple):
    """Every (source, target) pair of the examples as ids, <eos> appended on both sides.

    An example with several targets gives several pairs; `example[n]` is the index of the one that pair n came from.
    `too_long` pairs fit in no bucket: no plan holds them, and whoever trains says so.
    """

    source: Ragged | Drawn
    target: Ragged | Drawn
    example: np.ndarray
    too_long: int
    sizes: tuple[int, ...]  # pairs of each corpus of a mixture, which stand one corpus behind the other

    @property
    def lengths(self) -> np.ndarray:
        """[N, 2]: source and target."""
        return np.stack([self.source.lengths, self.target.lengths], axis=1)

    def batch(self, rows: np.ndarray, S: int, T: int, epoch: int = 0) -> Batch:
        """The pairs that `rows` name, padded; -1 names a row of padding. Only what is Drawn depends on the epoch."""
        return {
            "source": self.source.padded(rows, S, epoch),
            "target": self.target.padded(rows, T, epoch),
            "example": np.where(rows < 0, np.int32(-1), self.example[rows]),
        }


class AnyPairs(Protocol):
    """Pairs in memory, or those that `records.Records` reads when they are asked for."""

    @property
    def too_long(self) -> int: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...
    @property
    def lengths(self) -> np.ndarray: ...
    def batch(self, rows: np.ndarray, S: int, T: int, epoch: int = 0) -> Batch: ...


def encode(
    examples: Sequence[Example], source_vocabulary: AnyVocabulary, target_vocabulary: AnyVocabulary, buckets: Buckets
) -> Pairs:
    sources = [source_vocabulary.encode(example.source) for example in examples]
    counts = [len(example.targets) for example in examples]
    index = np.repeat(np.arange(len(examples), dtype=np.int32), counts)
    source = Ragged.of([sources[n] for n in index])
    target = Ragged.of([target_vocabulary.encode(text) for example in examples for text in example.targets])
    sizes = np.bincount([example.corpus for example in examples], counts).astype(int)
    pairs = Pairs(source, target, index, too_long=0, sizes=tuple(sizes.tolist()))
    return pairs._replace(too_long=int(np.sum(first_bucket(pairs.lengths, buckets) < 0)))


def counts(side: Ragged | Drawn, size: int) -> np.ndarray:
    """How often each of `size` ids comes, <eos> included: int64 [V]."""
    return np.bincount((side.plain if isinstance(side, Drawn) else side).flat, minlength=size)


def redrawn(
    pairs: Pairs, examples: Sequence[Example], source: Draw | None, target: Draw | None, seed: int, buckets: Buckets
) -> Pairs:
    """The pairs with the sides that have a `draw` cut into subwords anew each epoch, and the others as they were."""
    texts = (
        [examples[index].source for index in pairs.example],
        [text for example in examples for text in example.targets],
    )
    sides = [
        Drawn(plain, lines, draw, f"{seed}/{name}", plain.lengths) if draw and isinstance(plain, Ragged) else plain
        for name, plain, draw, lines in zip(("source", "target"), pairs[:2], (source, target), texts)
    ]
    first = np.stack([side.first_lengths() if isinstance(side, Drawn) else side.lengths for side in sides], axis=1)
    lengths = np.where(first_bucket(first, buckets)[:, None] >= 0, first, pairs.lengths)
    planned = [side._replace(lengths=n) if isinstance(side, Drawn) else side for side, n in zip(sides, lengths.T)]
    return pairs._replace(source=planned[0], target=planned[1])


def first_bucket(lengths: np.ndarray, buckets: Buckets) -> np.ndarray:
    """[N, 2] -> [N]: the first bucket that holds both sides, -1 where none does.

    lengths (3, 9), (3, 3), (99, 1) and buckets (4, 4), (8, 16) -> 1, 0, -1
    """
    bucket = np.full(len(lengths), -1, np.int16)  # small, for the pairs may be many millions
    for index, (S, T) in reversed(list(enumerate(buckets))):
        bucket[(lengths[:, 0] <= S) & (lengths[:, 1] <= T)] = index
    return bucket


# ---------------------------------------------------------------------------------------- plan


class _Epoch(NamedTuple):
    rows: list[np.ndarray]  # for each group, a bucket of a part: [its batches, its B] pairs, -1 where padded
    order: np.ndarray  # [steps_per_epoch, 2]: group, and which of the group's batches


class Plan:
    """Which pairs make the batch of each step.

    A batch of bucket (S, T) has tokens / (S + T) pairs (and never none): the work of a step is about constant. Each
    epoch shuffles the pairs by (seed, epoch) alone, deals them to their buckets, cuts those into batches, and shuffles
    the batches, so every pair comes exactly once an epoch and every epoch has as many steps. A batch is filled with
    rows of padding: the last one of a bucket, and each up to a multiple of `multiple`, so that its rows divide among
    devices and micro-batches; how many there are changes no step's pairs. With `part` [N], the part of each pair (see
    s2sjax/data/parts.py), no batch has pairs of two.

        Plan([[2, 2], [3, 3], [2, 3]], buckets=[(4, 4)], tokens=16, seed=0).at(step)    2 rows, 2 steps an epoch
        step 0: bucket 0, rows 0 1      step 1: bucket 0, rows 2 -1      step 2: bucket 0, rows 2 1
    """

    def __init__(
        self,
        lengths: np.ndarray,
        buckets: Buckets,
        tokens: int,
        seed: int,
        multiple: int = 1,
        part: np.ndarray | None = None,
    ):
        lengths = np.asarray(lengths).reshape(-1, 2)
        self.buckets = tuple(buckets)
        self.seed = seed
        self._pairs = tuple(max(1, tokens // (S + T)) for S, T in self.buckets)
        self.rows = tuple(-(-pairs // multiple) * multiple for pairs in self._pairs)
        self.part = part
        self._bucket = first_bucket(lengths, buckets)
        if not np.any(self._bucket >= 0):
            raise UserError(_nothing_to_plan(lengths, self.buckets))
        parts = 0 if part is None else part
        self._group = np.where(self._bucket >= 0, parts * len(self.buckets) + self._bucket, -1)
        counts = np.bincount(self._group[self._group >= 0])
        self._batches = [-(-int(count) // self._pairs[self._of(group)]) for group, count in enumerate(counts)]
        self.steps_per_epoch = sum(self._batches)
        self._epochs: dict[int, _Epoch] = {}
        self._lock = threading.Lock()

    @property
    def used_buckets(self) -> list[int]:
        """The buckets that hold any pair: the shapes a run will see."""
        return sorted({self._of(group) for group, batches in enumerate(self._batches) if batches})

    @property
    def idle(self) -> float:
        """The share of rows that are padding because devices and micro-batches do not divide the pairs of a batch."""
        used = self.used_buckets
        return 1 - sum(self._pairs[b] for b in used) / sum(self.rows[b] for b in used)

    def _of(self, group: int) -> int:
        """The bucket of a group."""
        return group % len(self.buckets)

    def epoch(self, step: int) -> int:
        return self._find(int(step))[0]

    def at(self, step: int) -> tuple[int, np.ndarray]:
        """The bucket of the global batch at `step`, and its pairs: int64 [B], -1 where padded."""
        number, index = self._find(int(step))
        epoch = self._epoch(number)
        group, batch = epoch.order[index]
        return self._of(int(group)), epoch.rows[group][batch]

    def _find(self, step: int) -> tuple[int, int]:
        """The epoch of a step, and which of its steps it is."""
        return divmod(step, self.steps_per_epoch)

    def _epoch(self, number: int) -> _Epoch:
        """Two epochs are kept: around the turn of an epoch, Grain's threads ask for the old and the new by turns."""
        with self._lock:
            if number not in self._epochs:
                while len(self._epochs) >= 2:
                    del self._epochs[next(iter(self._epochs))]
                self._epochs[number] = self._deal(number)
            return self._epochs[number]

    def _deal(self, number: int) -> _Epoch:
        # Sorting Philox's raw numbers is a shuffle that no release of NumPy may change; Generator.permutation is not.
        philox = np.random.Philox(np.random.SeedSequence([self.seed % 2**64, number]))
        rows = []
        for group, chosen in enumerate(self._draw(number, philox)):
            width = self._pairs[self._of(group)]
            table = np.full((-(-len(chosen) // width), self.rows[self._of(group)]), -1)
            places = np.arange(len(chosen))
            table[places // width, places % width] = chosen
            table.flags.writeable = False  # `at` hands out views of it
            rows.append(table)
        order = np.concatenate([np.stack([np.full(len(t), g), np.arange(len(t))], 1) for g, t in enumerate(rows)])
        return _Epoch(rows, order[np.argsort(philox.random_raw(len(order)), kind="stable")])

    def _draw(self, number: int, philox: np.random.Philox) -> list[np.ndarray]:
        """The pairs that an epoch has of each group, in its order."""
        shuffled = np.argsort(philox.random_raw(len(self._group)), kind="stable")
        by_group = shuffled[np.argsort(self._group[shuffled], kind="stable")]  # those of no group, -1, in front
        starts = np.searchsorted(self._group[by_group], np.arange(len(self._batches) + 1))
        return [by_group[first:last] for first, last in pairwise(starts)]


def _nothing_to_plan(lengths: np.ndarray, buckets: Buckets) -> str:
    if len(lengths) == 0:
        return "there are no examples to train on: check data.corpus"
    shortest = lengths[np.argmin(lengths.sum(axis=1))]
    return (
        f"none of {len(lengths)} examples fits in data.buckets, the largest of which is {tuple(buckets[-1])}: the "
        f"shortest has {shortest[0]} source and {shortest[1]} target tokens"
    )


# ------------------------------------------------------------------------------------- batches


def make_batch(pairs: AnyPairs, plan: Plan, step: int, process_index: int = 0, process_count: int = 1) -> Batch:
    """This process's share of the global batch at `step`: a contiguous slice of its rows."""
    bucket, rows = plan.at(step)
    part = None if plan.part is None else plan.part[rows[rows >= 0][0]]
    if len(rows) % process_count:
        raise UserError(
            f"a batch of {len(rows)} rows does not divide among {process_count} processes: "
            f"plan it with a multiple of {process_count}"
        )
    share = len(rows) // process_count
    rows = rows[process_index * share : (process_index + 1) * share]
    S, T = plan.buckets[bucket]
    batch = pairs.batch(rows, S, T, plan.epoch(step))
    return batch if part is None else {**batch, "part": np.full(share, part, np.int32)}


def stream(
    pairs: AnyPairs,
    plan: Plan,
    start: int,
    stop: int,
    process_index: int = 0,
    process_count: int = 1,
    prefetch: int = 4,
) -> Iterator[tuple[int, Batch]]:
    """(step, batch) for start <= step < stop, `prefetch` batches made ahead by Grain's threads; 0 makes none ahead.

    What went before `start` is not read. The threads end with the stream, also when it is left half-way.
    """
    import grain  # takes a second and brings JAX: not for those who only read text

    class Steps:
        def __len__(self) -> int:
            return max(0, stop - start)

        def __getitem__(self, index: int) -> tuple[int, Batch]:
            step = start + int(index)
            return step, make_batch(pairs, plan, step, process_index, process_count)

    # Two threads: gathering rows holds the interpreter's lock most of the time, and more would wait for it.
    options = grain.ReadOptions(num_threads=min(2, prefetch), prefetch_buffer_size=prefetch)
    batches = iter(grain.MapDataset.source(Steps()).to_iter_dataset(options))
    try:
        yield from batches
    finally:
        batches.close()


def round_length(length: int, most: int | None = None) -> int:
    """The next power of two, so that few shapes are compiled; but padding alone goes beyond no model's `most`.

    Example: 5 -> 8; 5, most 6 -> 6; 7, most 6 -> 8.
    """
    rounded = 1 << (length - 1).bit_length()
    return rounded if most is None or length > most else min(rounded, most)


def evaluation_batches(
    sources: Sequence[Sequence[int]], buckets: Sequence[int], rows: int, most: int | None = None, turns: int = 1
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sources (ids without <eos>), short before long: indices int64 [N] and source int32 [N, S].

    N is `rows`, or twice, four times ... up to `turns` times as many where an S has so many sources.

    Each index comes exactly once. S is the first of `buckets` that holds the source and its <eos>; a source longer than
    all of them is neither refused nor cut: it gets its `round_length`. The last batch of each S is filled with rows of
    <pad>, whose index is -1.
    """
    if rows < 1:
        raise UserError(f"evaluate.rows is {rows}: it must be at least 1")
    ragged = Ragged.of(sources)
    limits = np.unique(np.asarray(buckets, np.int64))
    place = np.searchsorted(limits, ragged.lengths)
    rounded = [round_length(int(length), most) for length in ragged.lengths]
    widths = np.where(place < len(limits), np.append(limits, 0)[place], rounded)
    for width in np.unique(widths):
        members = np.flatnonzero(widths == width)
        members = members[np.argsort(ragged.lengths[members], kind="stable")]
        size = rows * min(turns, 1 << (-(-len(members) // rows) - 1).bit_length())
        for first in range(0, len(members), size):
            indices = np.full(size, -1)
            chosen = members[first : first + size]
            indices[: len(chosen)] = chosen
            yield indices, ragged.padded(indices, int(width))
