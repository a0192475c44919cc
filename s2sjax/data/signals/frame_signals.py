"""Recordings or sequences of vectors in a column of a table, with their labels in another."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from s2sjax import config
from s2sjax.config import at_least, require, settings
from s2sjax.config.in_memory import text_row
from s2sjax.data.corpora import frame_reader
from s2sjax.data.signals import audio
from s2sjax.data.signals.audio import LogMel
from s2sjax.data.signals.signal_examples import Signal, check_labels, digest
from s2sjax.data.signals.spoken_digits import Recorded, signals


@settings
class FrameSignals(Recorded):
    """Recordings, or sequences of vectors, of a frame or of Parquet or JSON lines files.

    The source is a recording: the bytes of a WAV, FLAC or OGG file, an audio column of Hugging Face datasets, or a list
    of samples. With `vector_size`, it is a list of vectors. The target is labels: a list, or text separated by blanks.
    """

    frame: config.Tabular = field(default_factory=config.Frame)
    """table of the signals and labels"""
    labels: tuple[str, ...] = ()
    """all labels, the alphabet"""
    audio: LogMel = LogMel()
    """settings of the features of recordings"""
    vector_size: int = 0
    """number of features of a vector, if the source is a list of vectors; 0: recordings"""

    def __post_init__(self):
        distinct = len({*self.labels}) == len(self.labels) > 0
        require(distinct, "data.corpus.labels must be different labels, at least one")
        at_least(0, self, "data.corpus", "vector_size")
        frame_reader.require_target(self.frame)

    @property
    def alphabet(self) -> tuple[str, ...]:
        return self.labels

    @property
    def features(self) -> int:
        return self.vector_size or self.audio.filters

    @property
    def seconds(self) -> float:
        return 0.0 if self.vector_size else super().seconds

    @property
    def file_kinds(self) -> str:  # type: ignore[override]
        return "" if self.vector_size else Recorded.file_kinds

    def has(self, split: str) -> bool:
        return self.frame.has(split)

    def examples(self, split: str) -> list[Signal]:
        require(self.has(split), f"data.corpus.frame.{split} is empty: give some rows, or name another split")
        found, labels, names = [], [], []
        for row in frame_reader.rows(self.frame, split):
            found.append(self._vectors(row) if self.vector_size else self._samples_of(row))
            _, *texts = text_row(row.where, self.frame.columns, ("", *row.targets))
            labels.append(check_labels(" ".join(texts).split(), self.labels, row.where))
            names.append(row.where)
        if self.vector_size:
            return list(map(Signal, found, labels, names, map(digest, found)))
        return signals(found, labels, names, self.audio)

    def _vectors(self, row: frame_reader.Row) -> np.ndarray:
        found = frame_reader.array(row.source)
        width = self.vector_size
        right = found is not None and found.ndim == 2 and found.shape[1] == width
        require(right, f"{self._place(row)}: it must be a list of vectors of data.corpus.vector_size {width} numbers")
        finite = bool(np.isfinite(found).all())  # type: ignore[arg-type]
        require(finite, f"{row.where} has a number that is not finite: correct it, or remove the row")
        return found.astype(np.float32)  # type: ignore[union-attr]

    def _samples_of(self, row: frame_reader.Row) -> np.ndarray:
        value, rate = row.source, self.audio.rate
        if content := frame_reader.encoded(value):
            name = value.get("path") or "recording" if isinstance(value, dict) else "recording"
            as_bytes = content if isinstance(content, bytes) else None
            return audio.read(name, self.audio, row.where, content=as_bytes)
        if isinstance(value, dict) and "array" in value:
            value, rate = value["array"], value.get("sampling_rate", rate)
        samples = frame_reader.array(value)
        right = samples is not None and samples.ndim == 1
        require(right, f"{self._place(row)}: it must be a recording: bytes, an audio column, or a list of samples")
        return audio.check(samples[:, None].astype(np.float32), rate, self.audio, row.where)  # type: ignore[index]

    def _place(self, row: frame_reader.Row) -> Any:
        return f"{row.where}: the column {self.frame.source!r} is {row.source!r:.60}"
