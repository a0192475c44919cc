"""Corpora of recordings: spoken digits of FSDD, joined to strings, and lists of arbitrary recordings.

Each corpus reads its recordings once and computes their log-mel features in JAX.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sjax.config import FilePath, at_least, require, settings
from s2sjax.data.corpora.text_files import read_tsv
from s2sjax.data.signals import audio
from s2sjax.data.signals.audio import LogMel
from s2sjax.data.signals.signal_examples import (
    DIGITS,
    SPLITS,
    Signal,
    Signals,
    Strings,
    check_labels,
    digest,
    join_with_gaps,
)

FSDD = "the Free Spoken Digit Dataset (Jackson et al. 2018)"


class Recorded(Signals):
    """Base class of corpora of recordings, which reads recordings by path and computes their features."""

    audio: LogMel
    file_kinds = "WAV, FLAC or OGG"

    @property
    def features(self) -> int:
        return self.audio.filters

    @property
    def seconds(self) -> float:
        return self.audio.hop_samples / self.audio.rate

    def example_of(self, line: str, where: str) -> Signal:
        """Reads the recording whose path is a line."""
        path = line.strip()
        require(bool(path), f"{where} is empty: write the path of a recording")
        samples = audio.read(path, self.audio, where)
        return Signal(audio.log_mels([samples], self.audio)[0], (), path)

    def example_from(self, content: bytes, where: str, most: int) -> Signal:
        samples = audio.read(where, self.audio, content=content, most=self._samples(most))
        return Signal(audio.log_mels([samples], self.audio)[0], (), where)

    def compile_features(self, most: int) -> None:
        for length in audio.widths(self._samples(most)):
            audio.log_mels([np.ones(length, np.float32)], self.audio)

    def _samples(self, frames: int) -> int:
        """The maximum number of samples that give this many frames."""
        return frames * self.audio.hop_samples + self.audio.window_samples - 1


class Take(NamedTuple):
    """One recording of one digit."""

    path: str
    speaker: str
    digit: str
    take: int
    where: str


@settings
class SpokenDigits(Recorded):
    """Strings of digits, each joined from recordings of one speaker. The test speakers do not occur in training.

    `folder` has wavs.zip and index.tsv: a header, then path in the zip, speaker, digit and take, separated by tabs.
    """

    folder: FilePath = "data:fsdd"
    """folder of wavs.zip and index.tsv"""
    strings: Strings = Strings()
    """number and length of the strings"""
    test_speakers: tuple[str, ...] = ("theo", "yweweler")
    """speakers whose recordings are used only for test strings"""
    dev_speakers: tuple[str, ...] = ()
    """speakers whose recordings are used only for dev strings; (): see dev_takes"""
    dev_takes: int = 5
    """number of last takes, of each digit and speaker, that are used only for dev strings if dev_speakers is empty"""
    silence: float = 0.2
    """maximum silence before, between and after digits in seconds"""
    voices: float = 0.0
    """maximum relative change of the speed of training strings, and so of the pitch, to simulate more speakers (Ko et
    al. 2015)"""
    noise: float = 0.0
    """maximum standard deviation of the noise in training strings, relative to the largest sample"""
    channel: float = 0.0
    """strength in nats of power of random filters of training strings and their noise, which simulate other microphones
    and rooms; see `audio.random_filter`"""
    audio: LogMel = LogMel()
    """settings of the features"""
    alphabet = DIGITS

    def __post_init__(self):
        at_least(0, self, "data.corpus", "dev_takes", "silence", "voices", "noise", "channel")
        require(self.voices < 1, f"data.corpus.voices is {self.voices}: it must be below 1")
        both = sorted({*self.test_speakers} & {*self.dev_speakers})
        require(not both, f"data.corpus: {', '.join(both)} is in test_speakers and in dev_speakers: remove one")

    def has(self, split: str) -> bool:
        speakers = {"train": True, "dev": self.dev_speakers or self.dev_takes, "test": self.test_speakers}
        return getattr(self.strings, split) > 0 and bool(speakers[split])

    @cached_property
    def takes(self) -> tuple[Take, ...]:
        file = Path(self.folder) / "index.tsv"
        found = []
        for where, fields in read_tsv(file, ("path", "speaker", "digit", "take"), "data.corpus.folder", FSDD):
            path, speaker, digit, take = fields
            if fields == ("path", "speaker", "digit", "take"):
                continue  # the header
            require(take.isdecimal(), f"{where}: the take {take!r} is not a number: correct it")
            check_labels([digit], DIGITS, where)
            found.append(Take(path, speaker, digit, int(take), where))
        require(bool(found), f"{file} has only a header: copy {FSDD} again")
        known = sorted({take.speaker for take in found})
        for name in ("test_speakers", "dev_speakers"):
            for speaker in getattr(self, name):
                missing = f"there is no {speaker!r} in {file}: it has {', '.join(known)}"
                require(speaker in known, f"data.corpus.{name}: {missing}")
        return tuple(found)

    def split_of(self, take: Take) -> str:
        if take.speaker in self.test_speakers:
            return "test"
        if self.dev_speakers or not self.dev_takes:
            return "dev" if take.speaker in self.dev_speakers else "train"
        highest = self._highest[take.speaker, take.digit]
        return "dev" if take.take > highest - self.dev_takes else "train"

    @cached_property
    def _highest(self) -> dict[tuple[str, str], int]:
        """The highest take of each speaker and digit."""
        in_order = sorted(self.takes, key=lambda take: take.take)
        return {(take.speaker, take.digit): take.take for take in in_order}

    def examples(self, split: str) -> list[Signal]:
        takes = [take for take in self.takes if self.split_of(take) == split]
        speakers = sorted({take.speaker for take in takes})
        remedy = "change test_speakers, dev_speakers, dev_takes"
        require(bool(takes), f"data.corpus has no recordings for {split}: {remedy}")
        groups = [[n for n, take in enumerate(takes) if take.speaker == speaker] for speaker in speakers]
        wanted = self.strings.draw(split, groups)
        with audio.open_zip(Path(self.folder) / "wavs.zip", f"the recordings of {FSDD}") as archive:
            used = sorted({piece for pieces, _ in wanted for piece in pieces})
            samples = {n: audio.read(takes[n].path, self.audio, takes[n].where, archive) for n in used}
        joined = [self._join([samples[n] for n in pieces], rng, split == "train") for pieces, rng in wanted]
        labels = [tuple(takes[n].digit for n in pieces) for pieces, _ in wanted]
        names = ["+".join(Path(takes[n].path).stem for n in pieces) for pieces, _ in wanted]
        return signals(joined, labels, names, self.audio)

    def _join(self, pieces: Sequence[np.ndarray], rng: random.Random, train: bool) -> np.ndarray:
        """The samples of a string, with silence before, between and after its digits. Augments training strings."""
        most = round(self.silence * self.audio.rate)
        joined = join_with_gaps(pieces, lambda: np.zeros(rng.randint(0, most), np.float32))
        if train and self.voices:
            factor = rng.uniform(1 - self.voices, 1 + self.voices)
            joined = np.interp(np.arange(0, len(joined) - 1, factor), np.arange(len(joined)), joined)
        through = lambda samples: audio.random_filter(samples, self.audio.rate, self.channel, rng)
        if train and self.channel:
            joined = through(joined)
        if train and self.noise:
            level = self.noise * 10 ** rng.uniform(-2, 0) * np.abs(joined).max()
            noise = np.random.default_rng(rng.getrandbits(64)).standard_normal(len(joined))
            joined = joined + level * (through(noise) if self.channel else noise)
        return joined.astype(np.float32)


@settings
class Recordings(Recorded):
    """Lists of recordings: TSV files with the path of a recording, relative to the list, a tab, and labels separated by
    blanks.
    """

    train: FilePath = ""
    """list of the training recordings"""
    dev: FilePath = ""
    """list of the recordings evaluated during training"""
    test: FilePath = ""
    """list of the recordings evaluated at the end"""
    labels: tuple[str, ...] = DIGITS
    """all labels, the alphabet"""
    audio: LogMel = LogMel()
    """settings of the features"""

    def __post_init__(self):
        require(
            len({*self.labels}) == len(self.labels) > 0, "data.corpus.labels must be different labels, at least one"
        )

    @property
    def alphabet(self) -> tuple[str, ...]:
        return self.labels

    def examples(self, split: str) -> list[Signal]:
        require(split in SPLITS and self.has(split), f"data.corpus.{split} is empty: name a list of recordings")
        file = Path(getattr(self, split))
        samples, labels, names = [], [], []
        for where, (path, text) in read_tsv(file, ("path", "labels"), f"data.corpus.{split}"):
            samples.append(audio.read(file.parent / path, self.audio, where))
            labels.append(check_labels(text.split(), self.labels, where))
            names.append(path)
        return signals(samples, labels, names, self.audio)


def signals(
    samples: Sequence[np.ndarray], labels: Sequence[tuple[str, ...]], names: Sequence[str], settings: LogMel
) -> list[Signal]:
    """Recordings [N] each as signals with log-mel features."""
    return list(map(Signal, audio.log_mels(samples, settings), labels, names, map(digest, samples)))
