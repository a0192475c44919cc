"""Recordings with free text, cut into windows of some seconds, with the features of Whisper.

A model reads each window alone, and silence fills the last one: the frames of an example are a multiple of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np

from s2sjax.config import FilePath, at_least, require, settings
from s2sjax.core.signals import mel_features
from s2sjax.data.corpora.text_files import read_tsv
from s2sjax.data.signals import audio
from s2sjax.data.signals.signal_examples import SPLITS, Signal, digest
from s2sjax.data.signals.spoken_digits import Recorded

CHUNK = 8
"""maximum number of windows whose features are computed at once"""


@settings
class WhisperMel:
    """The features of Whisper (`whisper_log_mel` in s2sjax/core/signals/mel_features.py), of windows of equal length.

    Each window is scaled by its own loudest moment, as Whisper was trained.
    """

    rate: int = 16000
    """sampling rate in Hz; recordings with another rate are rejected"""
    window_samples: int = 400
    """length of a frame in samples"""
    hop_samples: int = 160
    """distance between the starts of two frames in samples"""
    filters: int = 80
    """number of mel filters, which is the number of features of a frame"""
    high: float = 8000.0
    """highest frequency in Hz"""
    seconds: int = 30
    """length of a window in seconds"""

    def __post_init__(self):
        at_least(1, self, "WhisperMel", "rate", "hop_samples", "filters", "seconds")
        at_least(2, self, "WhisperMel", "window_samples")
        require(
            self.window_samples % 2 == 0,
            f"WhisperMel.window_samples {self.window_samples} must be even, because frames are centred",
        )
        require(
            0 < self.high <= self.rate / 2,
            f"WhisperMel.high {self.high} must be above 0, and at most half of the rate {self.rate}",
        )
        require(
            self.samples % self.hop_samples == 0 and self.samples > self.window_samples,
            f"WhisperMel.seconds {self.seconds} must be longer than a frame, and a multiple of hop_samples",
        )

    @property
    def samples(self) -> int:
        """The number of samples of a window."""
        return self.seconds * self.rate

    @property
    def frames(self) -> int:
        """The number of frames of a window."""
        return self.samples // self.hop_samples

    def log_mels(self, samples: np.ndarray) -> np.ndarray:
        """Computes the features of the windows of a recording [N]: float32 [windows * frames, filters]."""
        count = -(-len(samples) // self.samples)
        windows = np.zeros((count, self.samples), np.float32)
        windows.reshape(-1)[: len(samples)] = samples
        compute = _compiled(self)
        found = []
        for first in range(0, count, CHUNK):
            rows = windows[first : first + CHUNK]
            height = 1 if len(rows) == 1 else CHUNK  # few shapes are compiled
            padded = np.pad(rows, ((0, height - len(rows)), (0, 0)))
            found.append(np.asarray(compute(padded))[: len(rows)].reshape(-1, self.filters))
        return np.concatenate(found)


@cache
def _compiled(settings: WhisperMel):
    window, bins = settings.window_samples, settings.window_samples // 2 + 1
    triangles = mel_features.slaney_triangles(settings.filters, bins, settings.rate, 0.0, settings.high)
    compute = partial(mel_features.whisper_log_mel, window=window, hop=settings.hop_samples, triangles=triangles)
    return jax.jit(compute)


@settings
class SpokenText(Recorded):
    """Lists of recordings: TSV files with the path of a recording, relative to the list, a tab, and its text.

    The labels of an example are the words of its text, so that the label error rate is the word error rate.
    """

    train: FilePath = ""
    """list of the training recordings, each of at most one window"""
    dev: FilePath = ""
    """list of the recordings evaluated during training"""
    test: FilePath = ""
    """list of the recordings evaluated at the end"""
    audio: WhisperMel = WhisperMel()  # type: ignore[assignment]
    """settings of the features"""
    alphabet = ()

    @property
    def window_frames(self) -> int:  # type: ignore[override]
        return self.audio.frames

    def examples(self, split: str) -> list[Signal]:
        require(split in SPLITS and self.has(split), f"data.corpus.{split} is empty: name a list of recordings")
        file, found = Path(getattr(self, split)), []
        for where, (path, text) in read_tsv(file, ("path", "text"), f"data.corpus.{split}"):
            samples = audio.read(file.parent / path, self.audio, where)
            found.append(self._signal(samples, text.split(), path))
        return found

    def example_of(self, line: str, where: str) -> Signal:
        """Reads the recording whose path is a line."""
        path = line.strip()
        require(bool(path), f"{where} is empty: write the path of a recording")
        return self._signal(audio.read(path, self.audio, where), (), path)

    def example_from(self, content: bytes, where: str, most: int) -> Signal:
        samples = audio.read(where, self.audio, content=content, most=most * self.audio.hop_samples)
        return self._signal(samples, (), where)

    def compile_features(self, most: int) -> None:
        for windows in (1, 2) if most > self.audio.frames else (1,):
            self.audio.log_mels(np.ones(windows * self.audio.samples, np.float32))

    def _signal(self, samples: np.ndarray, words: Sequence[str], name: str) -> Signal:
        return Signal(self.audio.log_mels(samples), tuple(words), name, digest(samples))
