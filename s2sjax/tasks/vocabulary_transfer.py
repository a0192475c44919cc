"""Which rows of another run's parameters belong to the words of this run: `Task.transfer_rows`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from s2sjax.data import text
from s2sjax.training.checkpoints.transfer import Rows


def source_vocabulary(assets: Mapping[str, Any]) -> text.AnyVocabulary | None:
    """The source vocabulary of a run of any task, or None."""
    found = [assets.get(name) for name in ("text", "source")]
    return next((one for one in found if isinstance(one, text.AnyVocabulary)), None)


def word_rows(
    mine: text.AnyVocabulary, theirs: Any, axes: Mapping[str, int | None], name: str = ""
) -> dict[str, Rows | None]:
    """The rows of parameters that a vocabulary indexes, of this run and of another; None where they do not correspond.

    axes: the axis of each parameter, by path; None if it cannot be mapped. name: its path in the other run, if it
    differs.
    """
    known = isinstance(theirs, text.AnyVocabulary)
    if known and not name and mine.fingerprint == theirs.fingerprint:
        return {}
    index = text.rows_in(mine, theirs) if known else None
    return {path: None if index is None or axis is None else Rows(axis, index, name) for path, axis in axes.items()}


def vocabulary_rows(
    mine: text.AnyVocabulary, theirs: Any, shapes: Mapping[str, tuple[int, ...]], larger: Mapping[str, tuple[int, ...]]
) -> dict[str, Rows | None]:
    """The rows of all parameters that grow with a vocabulary.

    shapes: those of all parameters; larger: the same for a vocabulary with one more word.
    """
    axes: dict[str, int | None] = {}
    for path, shape in shapes.items():
        for axis in [axis for axis, size in enumerate(shape) if size != larger[path][axis]][:1]:
            axes[path] = axis if shape[axis] == mine.size else None
    return word_rows(mine, theirs, axes)
