"""Parallel text as arrays: all pairs of a word of a sentence and a word of its translation.

A *cell* is a word of a source sentence with a word of its translation. Many cells hold the same two words, so that each
distinct word pair gets a number, and a translation table is a vector with one entry per number: the 30 million cells of
the Hansards hold 3.9 million word pairs, of the billion pairs that the two vocabularies could form.

Letters: I generating words, J generated words, N words generated in a group of sentences, B sentences.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from s2sjax.errors import UserError

MOST_CELLS = 10_000_000
"""maximum number of cells of a sentence pair, which take some gigabytes of memory"""
Sentence = str | Sequence[str]
"""list of words, or a string that is split at blanks"""


class Words(NamedTuple):
    """The sentences of one language."""

    ids: np.ndarray  # the words of all sentences, concatenated
    lengths: np.ndarray  # the number of words of each sentence
    starts: np.ndarray  # the first word of each sentence
    types: list[str]  # the word of each id


class Bitext(NamedTuple):
    """Sentence pairs. Cell (i, j) of sentence s is number `starts[s] + i * J + j`."""

    sources: Words
    targets: Words
    cells: np.ndarray  # the word pair of each cell
    pairs: tuple[np.ndarray, np.ndarray]  # the source and the target word of each word pair
    starts: np.ndarray  # the first cell of each sentence

    @property
    def size(self) -> int:
        """The number of sentence pairs."""
        return len(self.starts)


class Group(NamedTuple):
    """Sentences with the same number of generating words.

    The generated words are sorted by position, then by sentence, the longest sentence first, so that the words at
    position j are one block, which belongs to the first `alive[j]` sentences:

        sentences of 3, 2 and 1 words    a0 b0 c0 | a1 b1 | a2        alive 3, 2, 1
    """

    I: int  # noqa: E741
    lengths: np.ndarray  # [B] number of words generated in each sentence
    alive: np.ndarray  # [J]
    words: slice  # into Direction.words
    cells: slice  # into Direction.cells: [N * I]

    def blocks(self) -> list[slice]:
        """The words of each position, as slices of this group's words."""
        ends = np.cumsum(self.alive)
        return [slice(end - alive, end) for end, alive in zip(ends.tolist(), self.alive.tolist())]


class Direction(NamedTuple):
    """A bitext of which one side generates the other."""

    groups: list[Group]
    words: np.ndarray  # [N] the generated words of all groups
    cells: np.ndarray  # the word pairs of the N x I cells of each group
    places: np.ndarray  # the index of each of these cells in Bitext.cells
    order: np.ndarray  # [N] the index of each generated word in the text
    generators: np.ndarray  # the generating word of each word pair
    types: int  # the number of distinct generated words


def build(pairs: Iterable[tuple[Sentence, Sentence]]) -> Bitext:
    """Numbers the words and the word pairs of all sentence pairs."""
    sources, targets = _Numbering(), _Numbering()
    for number, pair in enumerate(pairs, start=1):
        if isinstance(pair, str) or len(pair) != 2:
            raise UserError(f"pair {number} is {pair!r:.60}: give (source, target) pairs")
        sources.add(pair[0])
        targets.add(pair[1])
    one, two = sources.words(), targets.words()
    sizes = one.lengths * two.lengths
    if sizes.max(initial=0) > MOST_CELLS:
        longest = int(sizes.argmax())
        lengths = f"{one.lengths[longest]:,} and {two.lengths[longest]:,}"
        raise UserError(f"sentence pair {longest + 1} has {lengths} words: split it into sentences")
    keys = np.repeat(one.ids.astype(np.int64) * max(len(two.types), 1), np.repeat(two.lengths, one.lengths))
    ends = np.cumsum(sizes)
    # The target words of a sentence, repeated for each of its source words.
    places = np.arange(len(keys)) - np.repeat(ends - sizes, sizes)
    places %= np.repeat(two.lengths, sizes)
    places += np.repeat(two.starts, sizes)
    keys += two.ids[places]
    del places
    distinct, cells = np.unique(keys, return_inverse=True)
    owners = np.divmod(distinct, max(len(two.types), 1))
    return Bitext(
        one, two, cells.astype(np.int32), (owners[0].astype(np.int32), owners[1].astype(np.int32)), ends - sizes
    )


def direction(bitext: Bitext, reverse: bool = False) -> Direction:
    """The direction in which sources generate targets, or the reverse. Leaves out pairs with an empty side."""
    generating, generated = (bitext.targets, bitext.sources) if reverse else (bitext.sources, bitext.targets)
    step_in, step_out = (1, bitext.targets.lengths) if reverse else (bitext.targets.lengths, 1)
    real = (generating.lengths > 0) & (generated.lengths > 0)
    groups, order, places = [], [], []
    words_end = cells_end = 0
    for size in np.unique(generating.lengths[real]).tolist():
        sentences = np.flatnonzero(real & (generating.lengths == size))
        sentences = sentences[np.argsort(-generated.lengths[sentences], kind="stable")]
        lengths = generated.lengths[sentences]
        alive = np.array([np.count_nonzero(lengths > j) for j in range(lengths[0])])
        position = np.repeat(np.arange(len(alive)), alive)
        sentence = sentences[np.arange(len(position)) - np.repeat(np.cumsum(alive) - alive, alive)]
        order.append(generated.starts[sentence] + position)
        inner = np.broadcast_to(step_in, bitext.size)[sentence, None] * np.arange(size)  # [N, I]
        outer = np.broadcast_to(step_out, bitext.size)[sentence] * position
        places.append(((bitext.starts[sentence] + outer)[:, None] + inner).ravel())
        words = slice(words_end, words_end := words_end + len(position))
        cells = slice(cells_end, cells_end := cells_end + len(position) * size)
        groups.append(Group(size, lengths, alive, words, cells))
    joined = lambda parts: np.concatenate(parts) if parts else np.zeros(0, np.int64)
    in_text, flat = joined(order), joined(places)
    generators = bitext.pairs[1 if reverse else 0]
    return Direction(
        groups, generated.ids[in_text], bitext.cells[flat], flat, in_text, generators, len(generated.types)
    )


class _Numbering:
    """Collects the words of one language."""

    def __init__(self):
        self.number: dict[str, int] = {}
        self.ids, self.lengths = array("i"), array("i")

    def add(self, sentence: Sentence) -> None:
        words = sentence.split() if isinstance(sentence, str) else sentence
        self.ids.extend([self.number.setdefault(word, len(self.number)) for word in words])
        self.lengths.append(len(words))

    def words(self) -> Words:
        lengths = np.array(self.lengths, np.int64)
        return Words(np.array(self.ids, np.int32), lengths, np.cumsum(lengths) - lengths, list(self.number))
