"""Fields that name files.

Paths in an experiment file are relative to the file; on the command line and in Python they are relative to the current
directory. A path data:NAME/FILE is that of a public data set, below $S2SJAX_DATA or data (s2sjax/datasets/folder.py). A
run stores absolute paths.

    @settings
    class Lexicon(Corpus):
        file: FilePath = "lexicon.tsv"
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from s2sjax.datasets import folder as data_sets
from s2sjax.datasets import table
from s2sjax.errors import UserError
from s2sjax.files import local_path

T = TypeVar("T")


class IsPath:
    """Marks the type of a field that names a file or a folder."""


FilePath = Annotated[str, IsPath()]


def resolve_paths(settings: T, base: Path) -> T:
    """Joins every relative path in `settings`, including nested settings, to `base`."""
    folder = base.absolute()

    def join(path: str) -> str:
        return os.path.normpath(folder / local_path(data_sets.resolve(path)).expanduser()) if path else path

    return _mapped(settings, join)


def without_folders(settings: T) -> T:
    """Reduces every path in `settings` to its last name, for comparisons that ignore where the files are."""
    return _mapped(settings, lambda path: Path(path).name)


def missing_data(experiment: Any) -> dict[str, str]:
    """The errors for missing files of known data sets, by the name of the set, one each.

    Files of splits that are not read, and those of a prepared corpus, may be missing.
    """
    tests = getattr(getattr(experiment, "evaluate", None), "test", True)
    found: dict[str, str] = {}
    for path in _paths(experiment, () if tests else ("test",)):
        if error := table.missing(path):
            owner = table.owner(path)
            found.setdefault(owner[0].name if owner else "", error)
    return found


def require_data(experiment: Any) -> None:
    """Raises a UserError if a file of a known data set is missing."""
    for error in missing_data(experiment).values():
        raise UserError(error)


def relative_path(path: str | Path, base: Path | None = None) -> str:
    """A path for display: relative to `base` (default: the current directory) if it is below it."""
    absolute, base = Path(path).absolute(), (base or Path.cwd()).absolute()
    return str(absolute.relative_to(base)) if absolute.is_relative_to(base) else str(path)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, tuple):
        parts = tuple(_mapped(part, change) for part in value)
        return value if parts == value else parts
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    kinds, new = _kinds(value), {}
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        changed = _changed(old, change) if _names_path(kinds.get(field.name)) else _mapped(old, change)
        if changed != old:
            new[field.name] = changed
    return dataclasses.replace(value, **new) if new else value


def _paths(value: Any, skipped: tuple[str, ...]) -> Iterator[str]:
    """Yields the paths in settings, but not those of fields with the names `skipped` and of prepared corpora."""

    def note(path: str) -> str:
        if path:
            found.append(path)
        return path

    found: list[str] = []
    if isinstance(value, tuple):
        for part in value:
            yield from _paths(part, skipped)
    elif dataclasses.is_dataclass(value) and type(value).__name__ != "Prepared":
        kinds = _kinds(value)
        for field in dataclasses.fields(value):
            if field.name not in skipped and _names_path(kinds.get(field.name)):
                _changed(getattr(value, field.name), note)
            elif field.name not in skipped:
                yield from _paths(getattr(value, field.name), skipped)
    yield from found


def _kinds(value: Any) -> dict[str, Any]:
    """The types of the fields of settings."""
    try:
        return typing.get_type_hints(type(value), include_extras=True)
    except NameError:  # a user's dataclass whose annotation is imported only for type checkers
        return {}


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_changed(part, change) for part in value)
    return change(value) if isinstance(value, str) else value


def _names_path(kind: Any) -> bool:
    """Whether a type is FilePath, or contains it: tuple[FilePath, ...]."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Annotated:
        return any(isinstance(part, IsPath) for part in parts[1:]) or _names_path(parts[0])
    return any(map(_names_path, parts))
