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

from s2sjax.config.settings import mapped, parts
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
        return os.path.normpath(folder / os.path.expanduser(local_path(data_sets.resolve(path)))) if path else path

    return _with_paths(settings, join)


def without_folders(settings: T) -> T:
    """Reduces every path in `settings` to its last name, for comparisons that ignore where the files are."""
    return _with_paths(settings, lambda path: Path(path).name)


def missing_data(experiment: Any) -> dict[str, str]:
    """The errors for missing files of known data sets, by the name of the set, one each.

    Files of splits that are not read, and those of a prepared corpus, may be missing.
    """
    reads_test = getattr(getattr(experiment, "evaluate", None), "test", True)
    found: dict[str, str] = {}
    for path in _paths(experiment, () if reads_test else ("test",)):
        if error := table.missing(path):
            owner = table.owner(path)
            found.setdefault(owner[0].name if owner else "", error)
    return found


def require_data(experiment: Any) -> None:
    """Raises a UserError if a file of a known data set is missing."""
    for error in missing_data(experiment).values():
        raise UserError(error)


def _with_paths(settings: T, change: Callable[[str], str]) -> T:
    """The settings with other paths."""

    def renew(part: Any) -> Any:
        old = {name: getattr(part, name) for name in _path_fields(part)}
        new = {name: changed for name, paths in old.items() if (changed := _changed(paths, change)) != paths}
        return dataclasses.replace(part, **new) if new else part

    return mapped(settings, renew)


def _paths(settings: Any, skipped: tuple[str, ...]) -> Iterator[str]:
    """Yields the paths in settings, but not those of fields with the names `skipped` and of prepared corpora."""
    for part in parts(settings):
        for name in _path_fields(part):
            value = getattr(part, name)
            if name not in skipped:
                yield from filter(None, value if isinstance(value, tuple) else (value,))


def _path_fields(settings: Any) -> list[str]:
    """The fields that name files."""
    try:
        kinds = typing.get_type_hints(type(settings), include_extras=True)
    except NameError:  # a user's dataclass whose annotation is imported only for type checkers
        return []
    return [field.name for field in dataclasses.fields(settings) if _names_path(kinds.get(field.name))]


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
