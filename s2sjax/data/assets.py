"""Small assets as JSON in the run folder: a set of labels, the statistics of frames."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from s2sjax.errors import UserError
from s2sjax.files import naming


def sha256(parts: Iterable[bytes]) -> str:
    """The SHA-256 of the concatenated parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def fingerprint(content: Any) -> str:
    """The SHA-256 of `content` as JSON."""
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def save_json(folder: Path, name: str, content: Any) -> None:
    """Writes `content` to NAME.json in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    with naming(path):
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def load_json(kind: Any, folder: Path, name: str) -> Any:
    """Reads a dict that `save_json` wrote, as kind(**content)."""
    path = folder / f"{name}.json"
    try:
        return kind(**{key: _tuples(value) for key, value in json.loads(path.read_text(encoding="utf-8")).items()})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error}): copy it again from where the run was made") from None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


class Labels(NamedTuple):
    """The labels of the training data, numbered in alphabetical order."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, labels: Sequence[str]) -> Labels:
        return cls(tuple(sorted(set(labels))))

    def number(self, label: str, where: str) -> int:
        """The number of a label. Raises a UserError that begins with `where` if the training data lacks it."""
        try:
            return self.names.index(label)
        except ValueError:
            some = ", ".join(self.names[:10]) + (", ..." if len(self.names) > 10 else "")
            raise UserError(f"{where}: label {label!r} does not occur in the training data: use {some}") from None

    @property
    def fingerprint(self) -> str:
        return fingerprint(self)

    def save(self, folder: Path, name: str) -> None:
        save_json(folder, name, self._asdict())


class Statistics(NamedTuple):
    """Mean and standard deviation of each feature over all frames of the training data."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, sequences: Sequence[np.ndarray]) -> Statistics:
        frames = np.concatenate(sequences).astype(np.float64)  # [*, F]
        return cls(tuple(frames.mean(0).tolist()), tuple(frames.std(0).tolist()))

    def apply(self, frames: np.ndarray) -> np.ndarray:
        """Normalizes frames [*, F] to (x - mean) / deviation, float32. A constant feature becomes 0."""
        mean, deviation = np.array(self.mean), np.array(self.deviation)
        changes = deviation > 1e-9 * np.abs(mean)  # the mean of equal numbers is not exactly one of them
        return np.where(changes, (frames - mean) / np.where(changes, deviation, 1.0), 0.0).astype(np.float32)

    @property
    def features(self) -> int:
        return len(self.mean)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self)

    def save(self, folder: Path, name: str) -> None:
        save_json(folder, name, self._asdict())
