"""Converts settings to plain JSON and back.

Each dataclass stores its class as `kind`: the bare name for classes of `s2sjax.config`, otherwise `module:Class`, which
is imported when the JSON is read. So a model, a corpus or a task of a user's package needs no registration. The module
of an experiment file has a name that is unique in its process, `s2sjax_file_STEM@3` (see experiment_file.py). The JSON
omits the number, and the module is looked up among the files of the run that is being opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from s2sjax import former_names
from s2sjax.core import tables
from s2sjax.errors import UserError

PACKAGE = "s2sjax.config"
PREFIX = "s2sjax_file_"


def to_json(settings: Any) -> Any:
    """Converts a frozen dataclass to plain JSON."""
    if dataclasses.is_dataclass(settings):
        fields = {f.name: to_json(getattr(settings, f.name)) for f in dataclasses.fields(settings)}
        return {"kind": kind_of(type(settings)), **fields}
    if isinstance(settings, tuple):
        return [to_json(value) for value in settings]
    if isinstance(settings, str) and tables.of_module(settings.rpartition(".")[0]):  # a function of an experiment file
        return without_number(settings)
    return settings


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, dict):
        kind = _find(value.get("kind", ""))
        known = {f.name for f in dataclasses.fields(kind)}
        value = {former_names.field(name, known): each for name, each in value.items()}
        unknown = sorted(set(value) - known - {"kind"})
        if unknown:
            raise UserError(f"{kind.__name__} has no field {unknown[0]!r}: it was written by another version of s2sjax")
        return kind(**{name: from_json(value[name]) for name in known & set(value)})
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if isinstance(value, str) and value.startswith(PREFIX) and (module := _own(value.rpartition(".")[0])):
        return f"{module.__name__}.{value.rpartition('.')[2]}"
    return value


def kind_of(kind: type) -> str:
    """The `kind` of a settings class in JSON."""
    if kind.__module__ == PACKAGE or kind.__module__.startswith(f"{PACKAGE}."):
        return kind.__name__
    package = kind.__module__.rpartition(".")[0]
    exported = getattr(sys.modules.get(package), kind.__name__, None) is kind  # a name that outlives a move of its file
    return f"{package if exported else without_number(kind.__module__)}:{kind.__qualname__}"


def without_number(name: str) -> str:
    """Removes the number of a module name: s2sjax_file_mine@3.rate -> s2sjax_file_mine.rate."""
    return re.sub(r"@\d+", "", name, count=1)


def _find(name: str) -> Any:
    if not isinstance(name, str):
        raise UserError(f"the kind of some settings is {name!r:.60}, not a name: it was edited by hand, restore it")
    module, colon, path = former_names.kind(name).partition(":")
    try:
        found: Any = (_own(module) or installed(module)) if colon else importlib.import_module(PACKAGE)
        for part in (path if colon else module).split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        if module == "__main__":
            raise UserError(f"{path} was defined in a script or a notebook: define it in a file or a package") from None
        raise UserError(
            f"there is no {name!r} ({error}): install the package that defines it, or add its folder to PYTHONPATH"
        ) from None
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise UserError(f"{name!r} is not a settings class: it was written by another version of s2sjax")
    return found


def _own(name: str) -> ModuleType | None:
    """The module of an experiment file, or of a file that it imports; None if there is none of this name."""
    return next(filter(None, (space.module(name) for space in tables.visible())), None)


def installed(name: str) -> ModuleType:
    """Imports an installed module, but not from the current directory, which may contain untrusted code."""
    if name in sys.modules:
        return sys.modules[name]
    with without_current_directory():
        return importlib.import_module(name)


@contextlib.contextmanager
def without_current_directory() -> Iterator[None]:
    """Disables imports from the current directory, unless PYTHONPATH or an installed package names it.

    Python adds the current directory as "" or as the first path, and for an empty or relative part of PYTHONPATH.
    """
    former, named = sys.path, os.environ.get("PYTHONPATH") or os.sep
    ours = 1 if all(map(os.path.isabs, named.split(os.pathsep))) else len(former)
    sys.path = [path for n, path in enumerate(former) if path and not (n < ours and _is_current(path))]
    try:
        yield
    finally:
        sys.path = former


def _is_current(path: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(os.curdir)
