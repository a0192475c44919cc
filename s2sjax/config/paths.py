"""Fields that name files.

Paths in an experiment file are relative to the file; on the command line and in Python they are relative to the current
directory. A path data:NAME/FILE is that of a public data set, below $S2SJAX_DATA or data (s2sjax/datasets/folder.py). A
run stores absolute paths. A field of the type AnyPath may also have an address in object storage, gs://BUCKET/FILE or
s3://BUCKET/FILE: text files, and folders that s2sjax has written.

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
from s2sjax.files import as_path, in_storage, local_path

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class IsPath:
    """Marks the type of a field that names a file or a folder."""

    local: bool = True
    """whether it must be on this machine"""


FilePath = Annotated[str, IsPath()]
AnyPath = Annotated[str, IsPath(local=False)]


def resolve_paths(settings: T, base: Path) -> T:
    """Joins every relative path in `settings`, including nested settings, to `base`."""
    folder = base.absolute()

    def join(path: str, local: bool) -> str:
        if in_storage(path) and not local:
            return str(as_path(path))
        return os.path.normpath(folder / os.path.expanduser(local_path(data_sets.resolve(path)))) if path else path

    return _with_paths(settings, join)


def without_folders(settings: T) -> T:
    """Reduces every path in `settings` to its last name, for comparisons that ignore where the files are."""
    return _with_paths(settings, lambda path, local: Path(path).name)


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


def _with_paths(settings: T, change: Callable[[str, bool], str]) -> T:
    """The settings with the paths change(path, whether it must be local)."""

    def renew(part: Any) -> Any:
        fields = _path_fields(part).items()
        old = {name: getattr(part, name) for name, _ in fields}
        new = {name: new for name, local in fields if (new := _changed(old[name], local, change)) != old[name]}
        return dataclasses.replace(part, **new) if new else part

    return mapped(settings, renew)


def _paths(settings: Any, skipped: tuple[str, ...]) -> Iterator[str]:
    """Yields the paths in settings, but not those of fields with the names `skipped` and of prepared corpora."""
    for part in parts(settings):
        for name in _path_fields(part):
            value = getattr(part, name)
            if name not in skipped:
                yield from filter(None, value if isinstance(value, tuple) else (value,))


def _path_fields(settings: Any) -> dict[str, bool]:
    """The fields that name files, and whether these must be local."""
    try:
        kinds = typing.get_type_hints(type(settings), include_extras=True)
    except NameError:  # a user's dataclass whose annotation is imported only for type checkers
        return {}
    marks = {field.name: _mark(kinds.get(field.name)) for field in dataclasses.fields(settings)}
    return {name: mark.local for name, mark in marks.items() if mark}


def _changed(value: Any, local: bool, change: Callable[[str, bool], str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_changed(part, local, change) for part in value)
    return change(value, local) if isinstance(value, str) else value


def _mark(kind: Any) -> IsPath | None:
    """The mark of a type that is FilePath, or contains it: tuple[FilePath, ...]."""
    of_type = [mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, IsPath)]
    return next(filter(None, [*of_type, *map(_mark, typing.get_args(kind))]), None)
