"""Sequences of frames with their labels, which are shorter and not aligned: sound, pen strokes, rows of pictures.

A corpus is a settings class that inherits from `Signals`. `Strings` makes its examples of short pieces: example i of a
split is a pure function of (seed, split, i).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from s2sjax.config import at_least, require, settings
from s2sjax.errors import UserError

DIGITS = tuple("0123456789")
SPLITS = ("train", "dev", "test")


class Signal(NamedTuple):
    """One example."""

    frames: np.ndarray  # float32 [T, F]
    labels: tuple[str, ...]  # () if they are not known
    name: str
    digest: str = ""
    """SHA-256 of what the frames were computed from"""

    def __str__(self) -> str:
        return self.name


class Signals:
    """A corpus. Your own inherits from it and defines these."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        """All labels."""
        raise UserError(f"{type(self).__name__} defines no alphabet: return all labels from it")

    @property
    def features(self) -> int:
        """Numbers in a frame."""
        raise UserError(f"{type(self).__name__} defines no features: return the numbers in a frame from it")

    @property
    def seconds(self) -> float:
        """From one frame to the next, for figures; 0: frames have no time."""
        return 0.0

    def has(self, split: str) -> bool:
        return bool(getattr(self, split, None))

    def examples(self, split: str) -> list[Signal]:
        """The same call must return the same examples."""
        raise UserError(f"{type(self).__name__} does not define examples(split): return its Signals from it")

    def example_of(self, line: str, where: str) -> Signal:
        """The example that a line of `s2sjax decode` stands for."""
        raise UserError(f"{type(self).__name__} cannot read its input from lines: use s2sjax evaluate")

    def compile_features(self, most: int) -> None:
        """Compiles what `example_from` computes with, for up to `most` frames."""

    @property
    def file_kinds(self) -> str:
        """Which files `example_of` reads, if a line is the path of one: "WAV, FLAC or OGG"; else empty."""
        return ""

    def example_from(self, content: bytes, where: str, most: int) -> Signal:
        """The example in the content of such a file; refused before it is read if it has more than `most` frames."""
        raise UserError(f"{type(self).__name__} does not read files: send lines")


def check_labels(labels: Sequence[str], alphabet: Sequence[str], where: str) -> tuple[str, ...]:
    """The labels, refused if one is not in the alphabet."""
    for label in labels:
        known = " ".join(alphabet[:20]) + (" ..." if len(alphabet) > 20 else "")
        require(label in alphabet, f"{where}: the label {label!r} is not in the alphabet, {known}: correct it")
    return tuple(labels)


def numbers_of(line: str, where: str, columns: int, what: str) -> np.ndarray:
    """The blank-separated numbers of a line, float32 [*, columns]. `what` they should be."""
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
    """Strings that are made by joining pieces, each of which has one label."""

    train: int = 6000
    """number of training strings"""
    dev: int = 500
    """number of strings evaluated during training"""
    test: int = 1000
    """number of strings evaluated at the end"""
    longest: int = 5
    """most labels of a string; all lengths from 1 are equally likely"""
    seed: int = 0
    """of the strings"""

    def __post_init__(self):
        at_least(0, self, "data.corpus.strings", *SPLITS)
        at_least(1, self, "data.corpus.strings", "longest")

    def draw(self, split: str, groups: Sequence[Sequence[int]]) -> list[tuple[list[int], random.Random]]:
        """For each string the pieces that it is made of, all of one group, and a generator for all else."""
        found = []
        for index in range(getattr(self, split)):
            rng = random.Random(f"{self.seed}/{split}/{index}")
            group = groups[rng.randrange(len(groups))]
            pieces = [group[rng.randrange(len(group))] for _ in range(rng.randint(1, self.longest))]
            found.append((pieces, rng))
        return found


def split_by_line(number: int, dev_percent: float, test_percent: float) -> str:
    """The split of piece `number`, spread evenly: multiples of the golden ratio, modulo 1."""
    place = number * (5**0.5 - 1) / 2 % 1 * 100
    return "test" if place < test_percent else "dev" if place < test_percent + dev_percent else "train"


# ------------------------------------------------------------------------------- fingerprints


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def fingerprint(signals: Sequence[Signal]) -> str:
    """Of labels and of what the frames were computed from: features differ in their last bits from device to device."""
    found = hashlib.sha256()
    for signal in signals:
        found.update(json.dumps([signal.labels, signal.digest]).encode())
    return found.hexdigest()
