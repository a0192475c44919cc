"""Sequences of frames with shorter, unaligned sequences of labels: sound, pen strokes, rows of pictures.

A corpus is a settings class that inherits from `Signals`. `Strings` joins short pieces to examples: example i of a
split is a pure function of (seed, split, i).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from s2sjax.config import at_least, require, settings
from s2sjax.data.assets import sha256
from s2sjax.data.examples import SPLITS
from s2sjax.errors import UserError

DIGITS = tuple("0123456789")


class Signal(NamedTuple):
    """A sequence of frames with its labels."""

    frames: np.ndarray  # float32 [T, F]
    labels: tuple[str, ...]  # () if they are unknown
    name: str
    digest: str = ""
    """SHA-256 of the data from which the frames were computed"""

    def __str__(self) -> str:
        return self.name


class Signals:
    """Base class of corpora of signals. Your own corpus defines these members."""

    file_kinds = ""
    """kinds of files that `example_of` reads, such as "WAV, FLAC or OGG"; empty if lines are not paths"""
    window_frames = 0
    """number of frames that a model reads alone: examples have a multiple of it; 0 if it reads whole sequences"""

    @property
    def alphabet(self) -> tuple[str, ...]:
        """All labels; empty if they are the words of any text."""
        raise UserError(f"{type(self).__name__} defines no alphabet: return all labels from it")

    @property
    def features(self) -> int:
        """The number of features of a frame."""
        raise UserError(f"{type(self).__name__} defines no features: return the number of features of a frame from it")

    @property
    def seconds(self) -> float:
        """The time between two frames in seconds, for figures; 0 if frames have no time."""
        return 0.0

    def has(self, split: str) -> bool:
        return bool(getattr(self, split, None))

    def examples(self, split: str) -> list[Signal]:
        """The examples of a split. Repeated calls must return equal examples."""
        raise UserError(f"{type(self).__name__} does not define examples(split): return its Signals from it")

    def example_of(self, line: str, where: str) -> Signal:
        """Reads the example that a line of `s2sjax decode` describes."""
        raise UserError(f"{type(self).__name__} cannot read its input from lines: use s2sjax evaluate")

    def compile_features(self, most: int) -> None:
        """Compiles the programs that `example_from` needs for up to `most` frames."""

    def example_from(self, content: bytes, where: str, most: int) -> Signal:
        """Reads the example from the content of a file. Rejects more than `most` frames before decoding."""
        raise UserError(f"{type(self).__name__} does not read files: send lines")


def check_labels(labels: Sequence[str], alphabet: Sequence[str], where: str) -> tuple[str, ...]:
    """Returns the labels as a tuple. Raises a UserError if one is not in the alphabet, unless that is empty."""
    for label in labels if alphabet else ():
        known = " ".join(alphabet[:20]) + (" ..." if len(alphabet) > 20 else "")
        require(label in alphabet, f"{where}: the label {label!r} is not in the alphabet, {known}: correct it")
    return tuple(labels)


def numbers_of(line: str, where: str, columns: int, what: str) -> np.ndarray:
    """Parses the blank-separated numbers of a line, float32 [*, columns]. Errors say `what` to write."""
    try:
        values = np.array([float(word) for word in line.split()], np.float32)
    except ValueError as error:
        raise UserError(f"{where}: {error}: write {what}, separated by blanks") from None
    require(bool(np.isfinite(values).all()), f"{where} has a number that is not finite: correct it")
    require(
        len(values) > 0 and len(values) % columns == 0,
        f"{where} has {len(values)} numbers: write {what}, separated by blanks",
    )
    return values.reshape(-1, columns)


# -------------------------------------------------------------------------- strings of pieces


@settings
class Strings:
    """Strings of joined pieces, each of which has one label."""

    train: int = 6000
    """number of training strings"""
    dev: int = 500
    """number of strings evaluated during training"""
    test: int = 1000
    """number of strings evaluated at the end"""
    longest: int = 5
    """maximum number of labels of a string; all lengths from 1 are equally likely"""
    seed: int = 0
    """seed of the strings"""

    def __post_init__(self):
        at_least(0, self, "data.corpus.strings", *SPLITS)
        at_least(1, self, "data.corpus.strings", "longest")

    def draw(self, split: str, groups: Sequence[Sequence[int]]) -> list[tuple[list[int], random.Random]]:
        """Draws the pieces of each string, all from one group; also returns a generator for further draws."""
        found = []
        for index in range(getattr(self, split)):
            rng = random.Random(f"{self.seed}/{split}/{index}")
            group = groups[rng.randrange(len(groups))]
            pieces = [group[rng.randrange(len(group))] for _ in range(rng.randint(1, self.longest))]
            found.append((pieces, rng))
        return found


def join_with_gaps(pieces: Sequence[np.ndarray], gap: Callable[[], np.ndarray]) -> np.ndarray:
    """Concatenates pieces [steps, ...] with a gap before, between and after them."""
    return np.concatenate([gap(), *(part for piece in pieces for part in (piece, gap()))])


def split_by_line(number: int, dev_percent: float, test_percent: float) -> str:
    """The split of piece `number`. Multiples of the golden ratio, modulo 1, spread the splits evenly."""
    place = number * (5**0.5 - 1) / 2 % 1 * 100
    return "test" if place < test_percent else "dev" if place < test_percent + dev_percent else "train"


# ------------------------------------------------------------------------------- fingerprints


def digest(array: np.ndarray) -> str:
    return sha256([np.ascontiguousarray(array).tobytes()])


def fingerprint(signals: Sequence[Signal]) -> str:
    """The SHA-256 of labels and raw data. Features are not hashed: their last bits depend on the device."""
    return sha256(json.dumps([signal.labels, signal.digest]).encode() for signal in signals)
