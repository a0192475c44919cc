"""Reads and checks recordings, and computes their features.

`soundfile` (the extra `audio`) reads the files: WAV, FLAC, OGG and other formats of libsndfile, also inside a .zip.
"""

from __future__ import annotations

import io
import os
import random
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import jax
import numpy as np

from s2sjax.config import at_least, require, settings
from s2sjax.core.signals import mel_features
from s2sjax.datasets import table
from s2sjax.errors import UserError


@settings
class LogMel:
    """Log-mel filterbank features (s2sjax/core/signals/mel_features.py)."""

    rate: int = 8000
    """sampling rate in Hz; recordings with another rate are rejected"""
    window: float = 25.0
    """length of a frame in milliseconds"""
    hop: float = 10.0
    """distance between the starts of two frames in milliseconds"""
    filters: int = 40
    """number of mel filters, which is the number of features of a frame"""
    low: float = 60.0
    """lowest frequency in Hz"""
    high: float = 0.0
    """highest frequency in Hz; 0: half of the sampling rate"""
    loudness: float = 0.1
    """root mean square of the nonzero samples to which each recording is scaled; 0: no scaling"""
    center: bool = False
    """whether to subtract the mean of each recording's features, which reduces the effect of the microphone but harms
    short recordings"""

    def __post_init__(self):
        at_least(1, self, "LogMel", "rate", "filters")
        at_least(0, self, "LogMel", "loudness")
        require(self.window > 0 and self.hop > 0, "LogMel: window and hop must be above 0 milliseconds")
        require(self.hop_samples >= 1, f"LogMel.hop {self.hop} ms is less than one sample at {self.rate} Hz: raise it")
        require(
            0 <= self.low < self.highest <= self.rate / 2,
            f"LogMel: frequencies from {self.low} to {self.highest} Hz: they must ascend, up to half of the rate "
            f"{self.rate}",
        )
        empty = ~self.triangles.any(axis=0)
        require(
            not empty.any(),
            f"LogMel.filters {self.filters} is too many for windows of {self.window} ms at {self.rate} Hz: "
            f"{empty.sum()} of them contain no frequency; lower it",
        )

    @property
    def highest(self) -> float:
        return self.high or self.rate / 2

    @property
    def window_samples(self) -> int:
        return round(self.rate * self.window / 1000)

    @property
    def hop_samples(self) -> int:
        return round(self.rate * self.hop / 1000)

    @property
    def triangles(self) -> np.ndarray:
        """The mel filters [bins, filters], for a DFT whose size is the next power of two."""
        size = 1 << max(self.window_samples - 1, 1).bit_length()
        return mel_features.mel_triangles(self.filters, size // 2 + 1, self.rate, self.low, self.highest)


# -------------------------------------------------------------------------------------- reading


class Sampled(Protocol):
    """Settings that say which recordings are read: `LogMel`, or those of other features."""

    @property
    def rate(self) -> int: ...
    @property
    def window_samples(self) -> int: ...


def read(
    path: str | Path, settings: Sampled, where: str = "", archive: zipfile.ZipFile | None = None, *,
    content: bytes | None = None, most: int | None = None,
) -> np.ndarray:  # fmt: skip
    """Reads the samples of a recording: float32 [N] in [-1, 1]. Errors begin with `where`: the list and the line.

    With `archive`, `path` is the name of a member; with `content`, the name of these bytes. A recording with more than
    `most` samples is rejected before decoding, because a few bytes can encode hours of silence.
    """
    try:
        import soundfile
    except ImportError:
        what = "reading recordings needs soundfile, which is not installed"
        raise UserError(f"{what}: pip install soundfile") from None
    except OSError as error:
        raise UserError(f"soundfile cannot find its library ({error}): install libsndfile") from None

    name = f"{where}: {path}" if where else str(path)
    try:
        content = archive.read(str(path)) if archive else content
        with soundfile.SoundFile(os.path.expanduser(path) if content is None else io.BytesIO(content)) as file:
            count = file.frames * file.channels
            if most is not None and count > most:
                raise UserError(f"{name} has {count:,} samples, at most {most:,} are read: shorten it")
            samples, rate = file.read(dtype="float32", always_2d=True), file.samplerate
    except KeyError:
        raise UserError(f"{name} is not in {archive.filename if archive else path}: correct the name") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror or error}): check the file") from None
    except (RuntimeError, TypeError, zlib.error, zipfile.BadZipFile) as error:
        # soundfile raises a RuntimeError, or a TypeError for a .raw file; an encrypted archive raises a RuntimeError
        if content is None and not archive and not os.path.exists(os.path.expanduser(path)):
            raise UserError(f"{name} does not exist: correct the path") from None
        reason = str(getattr(error, "error_string", error)).rstrip(".")
        raise UserError(f"{name} cannot be read ({reason}): give a WAV, FLAC or OGG file") from None
    return check(samples, rate, settings, name)


def check(samples: np.ndarray, rate: int, settings: Sampled, name: str) -> np.ndarray:
    """Checks the samples [N, channels] of a recording and returns its only channel [N]."""
    count, channels = samples.shape
    require(count > 0, f"{name} is empty: record it again")
    require(channels == 1, f"{name} has {channels} channels: mix it down to one")
    require(rate == settings.rate, f"{name} has {rate} samples a second: convert it to {settings.rate}")
    require(bool(np.isfinite(samples).all()), f"{name} has samples that are not finite: record it again")
    require(bool(samples.any()), f"{name} is silent, every sample is 0: record it again")
    require(
        count >= settings.window_samples,
        f"{name} is too short, with {count} samples: at least {settings.window_samples} are needed",
    )
    return samples[:, 0]


def open_zip(path: Path, what: str) -> zipfile.ZipFile:
    """Opens an archive. Errors say `what` it must be, and where that comes from."""
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise UserError(table.missing(path) or f"{path} does not exist: it must be {what}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error}): it must be {what}") from None


# ---------------------------------------------------------------------------------- augmentation

WAVES = 4
"""number of cosines in the log gain of a random filter"""


def random_filter(samples: np.ndarray, rate: int, strength: float, rng: random.Random) -> np.ndarray:
    """Applies a random smooth filter without delay to samples [N], to simulate another microphone.

        log gain(f) = strength * sum_k n_k / k * cos(pi k mel(f) / mel(rate / 2)),  n_k ~ N(0, 1),  k = 1 .. WAVES

    This is the gain of the power.
    """
    spectrum = np.fft.rfft(samples)
    mels = mel_features.mel(np.linspace(0, rate / 2, len(spectrum)))  # [bins]
    place = mels / mel_features.mel(rate / 2)  # from 0 to 1
    gain = sum(strength * rng.gauss(0, 1) / k * np.cos(np.pi * k * place) for k in range(1, WAVES + 1))
    return np.fft.irfft(spectrum * np.exp(gain / 2), len(samples))


# ------------------------------------------------------------------------------------- features

CHUNK = 64
"""number of recordings whose features are computed at once"""
ROUND = 4096
"""number of samples; lengths are padded to a multiple of it, so that few shapes are compiled"""


def widths(most: int) -> list[int]:
    """The padded lengths of single recordings of up to `most` samples: few, so that few shapes are compiled."""
    found = [ROUND]
    while found[-1] < most:
        found.append(2 * found[-1])
    return found


def log_mels(recordings: Sequence[np.ndarray], settings: LogMel) -> list[np.ndarray]:
    """Computes the features, float32 [T, F], of each recording [N], in order. Runs in JAX, on the first device."""
    compute = _compiled(settings)
    rounded = [-(-len(samples) // ROUND) * ROUND for samples in recordings]
    found: list[np.ndarray] = [np.empty(0)] * len(recordings)
    order = sorted(range(len(recordings)), key=lambda row: rounded[row])
    for first in range(0, len(order), CHUNK):
        rows = order[first : first + CHUNK]
        height = CHUNK if len(recordings) > CHUNK else len(rows)
        width = rounded[rows[-1]] if len(recordings) > 1 else widths(rounded[0])[-1]
        padded = np.zeros((height, width), np.float32)
        for place, row in enumerate(rows):
            padded[place, : len(recordings[row])] = _scaled(recordings[row], settings.loudness)
        computed = np.asarray(compute(padded))
        for place, row in enumerate(rows):
            length = mel_features.frame_count(len(recordings[row]), settings.window_samples, settings.hop_samples)
            frames = computed[place, :length]
            found[row] = frames - frames.mean(axis=0) if settings.center else frames.copy()
    return found


def _scaled(samples: np.ndarray, loudness: float) -> np.ndarray:
    sounding = samples[samples != 0]
    return samples * (loudness / np.sqrt(np.mean(sounding**2))) if loudness and len(sounding) else samples


@cache
def _compiled(settings: LogMel):
    window, hop, triangles = settings.window_samples, settings.hop_samples, settings.triangles
    return jax.jit(partial(mel_features.log_mel, window=window, hop=hop, triangles=triangles))
