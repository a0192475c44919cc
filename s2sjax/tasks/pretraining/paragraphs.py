"""Lines as text pairs for pre-training: a text, and its continuation or a random text (Devlin et al. 2019).

    [CLS] It is fast. <eos> It is small. <eos>        cut between two sentences of a line; <eos> is BERT's [SEP]

The cut and the second text are pure functions of (seed, epoch, row).

Letters: N lines, B rows of a batch, S positions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from s2sjax.core.special_tokens import CLS, EOS, MASK, PAD, UNK
from s2sjax.data import text
from s2sjax.data.batching.columns import Batch, Bucket, Columns, Ragged

Parts = tuple[str, ...]
"""sentences of a line, or the two halves of a single sentence; the line is cut between two parts"""


class Pair(NamedTuple):
    """A pair of texts for evaluation."""

    first: str
    second: str
    follows: bool
    """whether the second text follows the first; otherwise it is random"""
    number: int
    """index of the line, from 0"""


def split(line: str) -> Parts:
    """Splits a line into sentences, or a single sentence into halves; () for fewer than two words.

    "It is fast. It is small." -> "It is fast.", "It is small."       "a small fast one" -> "a small", "fast one"
    """
    sentences = re.split(r"(?<=[.!?]) (?=\W*[^\Wa-z])", line)
    if len(sentences) > 1:
        return tuple(sentences)
    words = line.split()
    half = (len(words) + 1) // 2
    return (" ".join(words[:half]), " ".join(words[half:])) if len(words) > 1 else ()


def pairs(lines: Sequence[Parts]) -> list[Pair]:
    """The pairs of whole texts of epoch 0 and seed 0. In half of them, the second text follows the first."""
    rows = np.arange(len(lines))
    cut = lambda row, drawn: 1 + int(drawn) % (len(lines[row]) - 1)
    follow, others = _follows(0, 0, rows), _others(0, 0, rows, len(lines))
    found = []
    for row, mine, theirs in zip(rows.tolist(), _draw(0, 0, rows, CUT), _draw(0, 0, rows, OTHER_CUT)):
        source, place = (row, cut(row, mine)) if follow[row] else (others[row], cut(others[row], theirs))
        first = " ".join(lines[row][: cut(row, mine)])
        found.append(Pair(first, " ".join(lines[source][place:]), bool(follow[row]), row))
    return found


def pair_columns(vocabulary: text.AnyVocabulary, examples: Sequence[Pair], longest: int) -> Columns:
    """The columns source, first and follows of `Lines`. Texts of pairs longer than `longest` are truncated."""
    rows, first = [], []
    for example in examples:
        one = vocabulary.encode(example.first)[: longest - 3]
        two = _after(vocabulary, example.second)[: longest - 3 - len(one)]
        rows.append([text.mark(vocabulary, CLS), *one, EOS, *two, EOS])
        first.append(len(one) + 2)
    dense = {"first": np.array(first, np.int32), "follows": np.array([e.follows for e in examples], np.int32)}
    numbers = np.array([example.number for example in examples], np.int32)
    return Columns({"source": Ragged.of_labels(rows)}, dense, numbers, (len(rows),))


def _after(vocabulary: text.AnyVocabulary, part: str) -> list[int]:
    """The ids of a part that is not the first of its line; some ids include the blank before it."""
    return vocabulary.encode(f" {part}" if vocabulary.unit in ("characters", "pretrained") else part)


PLACEHOLDER = "\ue000"
"""private-use character that stands for [MASK] while a text is encoded"""


def masked_ids(vocabulary: text.AnyVocabulary, line: str) -> list[int]:
    """Encodes a line with [MASK] in it, without [CLS] and <eos>. A word that contains [MASK] is masked as a whole."""
    mask = text.mark(vocabulary, MASK)
    if isinstance(vocabulary, text.PretrainedVocabulary):
        return vocabulary.encode_masked(line)
    line = line.replace(PLACEHOLDER, "").replace(MASK, PLACEHOLDER)
    unknown = iter(vocabulary.unknown(line))
    ids = [mask if token == UNK and PLACEHOLDER in next(unknown) else token for token in vocabulary.encode(line)]
    if vocabulary.unit != "subwords":
        return ids
    blank = [vocabulary.pieces([token]) == ["▁"] for token in ids]  # a masked subword includes its blank
    return [token for token, gone, after in zip(ids, blank, [*ids[1:], PAD]) if not (gone and after == mask)]


def spelled(vocabulary: text.AnyVocabulary, ids: Sequence[int]) -> list[str]:
    """The text of each of the predicted ids, as `filled` takes it."""
    if vocabulary.unit == "pretrained":
        return [vocabulary.decode([token]).strip() or piece for token, piece in zip(ids, vocabulary.pieces(ids))]
    return vocabulary.pieces(ids)


def filled(line: str, pieces: Sequence[str]) -> str:
    """Replaces each [MASK] of a line by a piece, without the "▁" that marks the blank before a subword."""
    begin, *rest = line.split(MASK)
    return begin + "".join(piece.removeprefix("▁") + part for piece, part in zip(pieces, rest, strict=True))


# ------------------------------------------------------------------------------------- training


class Lines(NamedTuple):
    """Training lines as columns. A batch has

    source   [B, S]    [CLS] first text <eos> second text <eos>, then <pad>
    first    [B]       length of the first text, including [CLS] and its <eos>
    follows  [B]       1: the second text follows the first; 0: it is the end of another line

    The second text has the length of the shorter of its two candidates, the rest of the line and the end of the other
    line, so that its length does not reveal which one it is, and no row is longer than its line.
    """

    ids: Ragged
    cuts: Ragged
    """possible cuts of each line, as numbers of tokens"""
    cls: int
    seed: int

    @classmethod
    def of(cls, vocabulary: text.AnyVocabulary, lines: Sequence[Parts], seed: int) -> Lines:
        encoded = [[vocabulary.encode(first), *(_after(vocabulary, part) for part in more)] for first, *more in lines]
        ids = Ragged.of_labels([[token for part in parts for token in part] for parts in encoded])
        cuts = Ragged.of_labels([list(accumulate(map(len, parts)))[:-1] for parts in encoded])
        return cls(ids, cuts, text.mark(vocabulary, CLS), seed)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (len(self.ids.lengths),)

    @property
    def lengths(self) -> np.ndarray:
        """The lengths [N, 1]."""
        return self.ids.lengths[:, None] + 3

    def batch(self, rows: np.ndarray, bucket: Bucket, epoch: int = 0) -> Batch:
        real, row = rows >= 0, np.maximum(rows, 0)
        a, start, b = self._pairs(row, epoch)
        place = np.arange(bucket[0]) - 1  # [S], [CLS] at -1
        a, b, start, begin = (array[:, None] for array in (a, b, start, self.ids.offsets[row]))
        second = place - a - 1  # [B, S] positions in the second text
        one, two = self.ids.flat.take(begin + place, mode="clip"), self.ids.flat.take(start + second, mode="clip")
        found = np.select(
            [place == -1 + 0 * a, place < a, place == a, second < b, second == b], [self.cls, one, EOS, two, EOS], PAD
        )
        return {
            "source": np.where(real[:, None], found, PAD).astype(np.int32),
            "first": np.where(real, a[:, 0] + 2, 0).astype(np.int32),
            "follows": (_follows(self.seed, epoch, row) & real).astype(np.int32),
            "example": np.where(real, rows, -1).astype(np.int32),
        }

    def _pairs(self, rows: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each row: the length of the first text, and the start (in `ids.flat`) and length of the second."""
        others = _others(self.seed, epoch, rows, len(self.ids.lengths))
        a = self._cut(rows, _draw(self.seed, epoch, rows, CUT))
        room = self.ids.lengths[rows] - a
        tail = self.ids.lengths[others] - self._cut(others, _draw(self.seed, epoch, rows, OTHER_CUT))
        follows = _follows(self.seed, epoch, rows)
        start = np.where(follows, self.ids.offsets[rows] + a, self.ids.offsets[others + 1] - tail)
        return a, start, np.minimum(room, tail)

    def _cut(self, rows: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        return self.cuts.flat[self.cuts.offsets[rows] + (drawn % self.cuts.lengths[rows].astype(np.uint64)).astype(int)]


# ---------------------------------------------------------------------------------------- draws

CUT, FOLLOWS, OTHER, OTHER_CUT = range(4)


def _follows(seed: int, epoch: int, rows: np.ndarray) -> np.ndarray:
    """Random booleans [B] that are true half of the time."""
    return _draw(seed, epoch, rows, FOLLOWS) >> np.uint64(63) == 1


def _others(seed: int, epoch: int, rows: np.ndarray, count: int) -> np.ndarray:
    """A random other row, of `count` rows, for each row."""
    return (rows + 1 + (_draw(seed, epoch, rows, OTHER) % np.uint64(count - 1)).astype(int)) % count


def _draw(seed: int, epoch: int, rows: np.ndarray, name: int) -> np.ndarray:
    """Random uint64 [B]: a hash of the arguments (SplitMix64, Steele et al. 2014)."""
    found = np.zeros(len(rows), np.uint64)
    for number in (np.uint64(seed % 2**64), np.uint64(epoch), rows.astype(np.uint64), np.uint64(name)):
        found = (found ^ number) + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ found >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ found >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        found = found ^ found >> np.uint64(31)
    return found
