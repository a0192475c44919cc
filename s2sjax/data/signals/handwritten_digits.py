"""Corpora of handwritten digits, joined to numbers: pen strokes (pendigits) and pixels (scikit-learn's digits)."""

from __future__ import annotations

import random
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sjax.config import FilePath, at_least, require, settings
from s2sjax.data.corpora.text_files import read_tsv
from s2sjax.data.signals.signal_examples import (
    DIGITS,
    Signal,
    Signals,
    Strings,
    check_labels,
    digest,
    join_with_gaps,
    numbers_of,
    split_by_line,
)
from s2sjax.errors import UserError

PENDIGITS = "Pen-Based Recognition of Handwritten Digits (Alpaydin and Alimoglu 1998)"


class Piece(NamedTuple):
    """A handwritten digit."""

    digit: str
    values: np.ndarray  # float32 [steps, numbers]


class Written(Signals):
    """Base class of corpora of numbers that are joined from digits; each digit is in one split."""

    strings: Strings
    dev_percent: float
    test_percent: float
    gap: float

    alphabet = DIGITS

    def __post_init__(self):
        at_least(0, self, "data.corpus", "dev_percent", "test_percent", "gap")
        total = self.dev_percent + self.test_percent
        require(total < 100, f"data.corpus: dev_percent + test_percent is {total}: keep it below 100")

    def has(self, split: str) -> bool:
        return getattr(self.strings, split) > 0 and (split == "train" or getattr(self, f"{split}_percent") > 0)

    @property
    def pieces(self) -> list[Piece]:
        """All digits of the corpus, in the order of the data."""
        raise UserError(f"{type(self).__name__} defines no pieces: return the digits from it")

    def join(self, pieces: list[Piece], rng: random.Random) -> np.ndarray:
        """The frames of a number."""
        raise UserError(f"{type(self).__name__} does not define join(pieces, rng): return the frames of a number")

    def examples(self, split: str) -> list[Signal]:
        pieces = self.pieces
        group = [n for n in range(len(pieces)) if split_by_line(n, self.dev_percent, self.test_percent) == split]
        require(bool(group), f"data.corpus has no digits for {split}: raise {split}_percent")
        found = []
        for chosen, rng in self.strings.draw(split, [group]):
            digits = [pieces[n] for n in chosen]
            name, frames = "+".join(str(n + 1) for n in chosen), self.join(digits, rng)
            found.append(Signal(frames, tuple(piece.digit for piece in digits), name, digest(frames)))
        return found


@settings
class PenDigits(Written):
    """Pen strokes: each digit is a path of 8 points. `folder` has train.tsv: the digit, then 8 fields `x y`, 0 to 100.

    A frame is a point: y, the step from the previous point (dx, dy), and 1 where the pen was set down. The digits of a
    number stand side by side. The data does not name the writers, so that each may occur in all splits.
    """

    folder: FilePath = "data:pendigits"
    """folder of train.tsv"""
    strings: Strings = Strings(train=10_000)
    """number and length of the strings"""
    dev_percent: float = 5.0
    """percentage of the digits used for dev strings"""
    test_percent: float = 15.0
    """percentage of the digits used for test strings"""
    pen_lifts: bool = False
    """whether frames mark where the pen was set down, which is where a digit begins"""
    gap: float = 40.0
    """maximum space between two digits, which are up to 100 wide"""
    features = 4

    @cached_property
    def pieces(self) -> list[Piece]:  # type: ignore[override]
        file = Path(self.folder) / "train.tsv"
        found = []
        for where, (digit, *points) in read_tsv(file, ("digit",), "data.corpus.folder", PENDIGITS, "fields `x y`"):
            check_labels([digit], DIGITS, where)
            found.append(Piece(digit, numbers_of(" ".join(points), where, 2, "pairs of numbers `x y`")))
        return found

    def join(self, pieces: list[Piece], rng: random.Random) -> np.ndarray:
        at, strokes = 0.0, []
        for piece in pieces:
            low = piece.values[:, 0].min()
            strokes.append(piece.values + np.array([at - low, 0], np.float32))
            at = strokes[-1][:, 0].max() + rng.uniform(0, self.gap)
        return self._frames(strokes)

    def _frames(self, strokes: list[np.ndarray]) -> np.ndarray:
        """Converts the points [steps, 2] of all strokes to frames [T, 4]."""
        points = np.concatenate(strokes)
        steps = np.diff(points, axis=0, prepend=points[:1])
        down = np.zeros(len(points))
        if self.pen_lifts:
            down[np.cumsum([0, *(len(stroke) for stroke in strokes[:-1])])] = 1
        return np.column_stack([points[:, 1], steps, down]).astype(np.float32)

    def example_of(self, line: str, where: str) -> Signal:
        """Parses a line `x y x y ...`, with `|` where the pen was lifted."""
        parts = [part for part in line.split("|") if part.strip()]
        require(bool(parts), f"{where} is empty: write the points of a number, x y x y ...")
        strokes = [numbers_of(part, where, 2, "pairs of numbers `x y`") for part in parts]
        return Signal(self._frames(strokes), (), " ".join(line.split()))


@settings
class SklearnDigits(Written):
    """Pictures of digits, 8 by 8 pixels from 0 to 16, read as columns from left to right (the extra `sklearn`).

    Needs no download: the pictures are part of scikit-learn.
    """

    strings: Strings = Strings(train=5000, dev=300, test=500)
    """number and length of the strings"""
    dev_percent: float = 5.0
    """percentage of the digits used for dev strings"""
    test_percent: float = 15.0
    """percentage of the digits used for test strings"""
    gap: int = 2
    """maximum number of empty columns between two digits"""
    features = 8

    @cached_property
    def pieces(self) -> list[Piece]:  # type: ignore[override]
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            what = "the digits are part of scikit-learn, which is not installed"
            raise UserError(f"{what}: pip install scikit-learn") from None
        found = load_digits()
        columns = found.images[:, ::-1].swapaxes(1, 2).astype(np.float32)  # [N, x, y], y upwards
        return [Piece(str(digit), values) for digit, values in zip(found.target, columns)]

    def join(self, pieces: list[Piece], rng: random.Random) -> np.ndarray:
        gap = lambda: np.zeros((rng.randint(0, self.gap), 8), np.float32)
        return join_with_gaps([piece.values for piece in pieces], gap)

    def example_of(self, line: str, where: str) -> Signal:
        """Parses a line with 8 numbers for each column, from its bottom to its top."""
        frames = numbers_of(line, where, 8, "8 numbers for each column of pixels, from its bottom to its top")
        inside = bool((frames >= 0).all() and (frames <= 16).all())
        require(inside, f"{where} has a pixel that is not from 0 to 16: correct it")
        return Signal(frames, (), f"{len(frames)} columns")


@settings
class Patterns(Signals):
    """Generated signals, for quick tests: each label is a vector for a few frames, then silence, with added noise."""

    strings: Strings = Strings(train=1000, dev=100, test=100)
    """number and length of the strings"""
    labels: int = 4
    """number of distinct labels, from 1 to 10"""
    width: int = 6
    """number of features of a frame"""
    frames: int = 3
    """maximum number of frames of a label, and of the silence after it"""
    noise: float = 0.1
    """standard deviation of the noise that is added to each feature"""

    def __post_init__(self):
        at_least(1, self, "data.corpus", "width", "frames")
        at_least(0, self, "data.corpus", "noise")
        require(1 <= self.labels <= 10, f"data.corpus.labels is {self.labels}: it must be from 1 to 10")

    @property
    def alphabet(self) -> tuple[str, ...]:
        return DIGITS[: self.labels]

    @property
    def features(self) -> int:
        return self.width

    def has(self, split: str) -> bool:
        return getattr(self.strings, split) > 0

    def examples(self, split: str) -> list[Signal]:
        found = []
        for index, (labels, rng) in enumerate(self.strings.draw(split, [range(self.labels)])):
            rows = []
            for label in labels:
                vector = random.Random(f"label {label}")
                rows += [[vector.gauss(0, 1) for _ in range(self.width)]] * rng.randint(1, self.frames)
                rows += [[0.0] * self.width] * rng.randint(1, self.frames)
            noise = [[rng.gauss(0, self.noise) for _ in range(self.width)] for _ in rows]
            frames = (np.array(rows) + np.array(noise)).astype(np.float32)
            found.append(Signal(frames, tuple(DIGITS[label] for label in labels), f"{split} {index}", digest(frames)))
        return found

    def example_of(self, line: str, where: str) -> Signal:
        """Parses a line with the numbers of all frames, one frame after another."""
        frames = numbers_of(line, where, self.width, f"{self.width} numbers for each frame")
        return Signal(frames, (), f"{len(frames)} frames")
