"""Settings to plain JSON and back.

Each dataclass carries its class as `kind`: the name alone for those of `s2sjax.config`, else `module:Class`, which is
imported when the JSON is read. So a model, a corpus or a task of a user's own package needs no registration.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from s2sjax.errors import UserError

PACKAGE = "s2sjax.config"


def to_json(settings: Any) -> Any:
    """A frozen dataclass as plain JSON."""
    if dataclasses.is_dataclass(settings):
        fields = {f.name: to_json(getattr(settings, f.name)) for f in dataclasses.fields(settings)}
        return {"kind": kind_of(type(settings)), **fields}
    if isinstance(settings, tuple):
        return [to_json(value) for value in settings]
    return settings


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, dict):
        kind = _find(value.get("kind", ""))
        known = {f.name for f in dataclasses.fields(kind)}
        unknown = sorted(set(value) - known - {"kind"})
        if unknown:
            raise UserError(f"{kind.__name__} has no field {unknown[0]!r}: it was written by another version of s2sjax")
        return kind(**{name: from_json(value[name]) for name in known & set(value)})
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    return value


def kind_of(kind: type) -> str:
    own = kind.__module__ == PACKAGE or kind.__module__.startswith(f"{PACKAGE}.")
    return kind.__name__ if own else f"{kind.__module__}:{kind.__qualname__}"


def _find(name: str) -> Any:
    module, colon, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module if colon else PACKAGE)
        for part in (path if colon else name).split("."):
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
