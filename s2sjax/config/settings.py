"""Frozen dataclasses that check the names of their fields and the types of their values.

    @settings
    class Train:
        steps: int = 10_000

    Train(stepz=5)        error: Train has no field 'stepz': did you mean 'steps'?
    Train(steps="5")      error: Train.steps is '5': it must be a whole number

Lists are converted to tuples, so that settings are hashable, and equal after a round trip through JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar

from s2sjax import former_names
from s2sjax.config.choices import OneOf
from s2sjax.core import tables
from s2sjax.core.traced_numbers import Number
from s2sjax.errors import UserError, nearest

T = TypeVar("T")


def require(condition: bool, message: str) -> None:
    """Raises a UserError unless `condition` holds."""
    if not condition:
        raise UserError(message)


def at_least(low: int, config: Any, where: str, *names: str) -> None:
    """Raises a UserError if any of these fields is below `low`."""
    for name in names:
        value = getattr(config, name)
        require(value >= low, f"{where}.{name} is {value}: it must be at least {low}")


RANGES: dict[str, Callable[[float], bool]] = {
    "above 0": lambda value: value > 0,
    "from 0 to 1": lambda value: 0 <= value <= 1,
    "in [0, 1)": lambda value: 0 <= value < 1,
    "above 0 and at most 1": lambda value: 0 < value <= 1,
}


def must_be(range: str, config: Any, where: str, *names: str) -> None:
    """Raises a UserError if any of these fields is outside a range of RANGES. None is not checked."""
    for name in names:
        value = getattr(config, name)
        require(value is None or RANGES[range](value), f"{where}.{name} is {value}: it must be {range}")


def check_buckets(buckets: Sequence[tuple[int, ...]], least: int = 1) -> None:
    """Raises a UserError unless the buckets are sorted and every length is at least `least`."""
    require(len(buckets) > 0, "data.buckets is empty: give at least one")
    require(
        list(buckets) == sorted(buckets) and min(map(min, buckets)) >= least,
        f"data.buckets is {buckets}: give lengths of at least {least}, from short to long",
    )


def parts(value: Any) -> Iterator[Any]:
    """Yields settings and all settings that they contain, except the corpus that a prepared one was made from."""
    if isinstance(value, tuple):
        for part in value:
            yield from parts(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield value
        for field in dataclasses.fields(value):
            if not getattr(value, "is_prepared", False):
                yield from parts(getattr(value, field.name))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Applies `change` to all settings that `value` contains, the innermost first; the others stay the same objects."""
    if isinstance(value, tuple):
        new = tuple(mapped(part, change) for part in value)
        return new if any(after is not before for after, before in zip(new, value)) else value
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    changed = {name: after for name, before in fields.items() if (after := mapped(before, change)) is not before}
    return change(dataclasses.replace(value, **changed) if changed else value)


@typing.dataclass_transform(frozen_default=True)
def settings(cls: type[T]) -> type[T]:
    """Turns a class into a frozen dataclass that checks its fields: see the module docstring.

    A class whose fields must be converted together defines `convert_fields(values) -> values`, as `InMemory` does.
    """
    build = dataclass(frozen=True)(cls).__init__
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names, signature = [field.name for field in fields], inspect.signature(build)
    convert = getattr(cls, "convert_fields", dict)

    @functools.wraps(build)
    def __init__(self, *values, **named):
        for name in list(named.keys() - set(names)):
            if (now := former_names.field(name, names)) != name:
                former_names.warn_field(cls.__name__, name, now)
                named[now] = named.pop(name)
                continue
            raise UserError(f"{cls.__name__} has no field {name!r}: did you mean {nearest(name, names)!r}?")
        types = typing.get_type_hints(cls, include_extras=True)
        _, *given = signature.bind(self, *values, **named).arguments.items()
        checked = {name: _checked(f"{cls.__name__}.{name}", value, types[name]) for name, value in given}
        with tables.within(tables.of_module(cls.__module__)):  # defaults may name table rows that this file added
            for field in fields:
                if field.default is not dataclasses.MISSING:
                    checked.setdefault(field.name, _bound(field.default, types[field.name]))
        build(self, **convert(checked))

    cls.__init__ = __init__  # type: ignore[method-assign]
    cls.__getattr__ = former_names.attribute  # type: ignore[attr-defined]
    if not cls.__module__.startswith("s2sjax."):
        former_names.add_present_names(cls, names)
    return cls


def _checked(name: str, value: Any, kind: Any) -> Any:
    for part in typing.get_args(kind) if typing.get_origin(kind) is Annotated else ():
        if hasattr(part, "convert"):  # such a type checks and converts the value itself
            return part.convert(name, value)
    value = _tuples(value)
    remedy = f", write ({_short(value)},)" if _fits((value,), kind) else ""  # a one-element tuple without its comma
    require(_fits(value, kind), f"{name} is {_short(value)}: it must be {_describe(kind)}{remedy}")
    return _bound(value, kind)


def _bound(value: Any, kind: Any) -> Any:
    """Returns the value with each name of a table row bound to the row it means here: see core/tables.py."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Annotated:
        owners = [part.table for part in parts[1:] if isinstance(part, OneOf) and isinstance(part.table, tables.Table)]
        return owners[0].bind(value) if owners else _bound(value, parts[0])
    if isinstance(kind, UnionType):
        return next((_bound(value, part) for part in parts if _fits(value, part)), value)
    if isinstance(value, tuple) and parts:
        return tuple(map(_bound, value, parts[:1] * len(value) if parts[-1] is ... else parts))
    return value


def _short(value: Any) -> str:
    """The repr of a value, truncated: a wrong value can be a whole corpus."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has a type. True does not count as a number; 1 counts as a float."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Annotated:
        return _fits(value, parts[0]) and all(value in part.table for part in parts[1:] if isinstance(part, OneOf))
    if typing.get_origin(kind) is Literal:
        return value in parts
    if isinstance(kind, UnionType):
        return any(_fits(value, part) for part in parts)
    if parts:  # tuple[int, int] or tuple[str, ...]
        parts = parts[:1] * len(value) if parts[-1] is ... and isinstance(value, tuple) else parts
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_fits, value, parts))
    if kind in (int, float):
        is_number = isinstance(value, int | kind) and not isinstance(value, bool) and math.isfinite(value)
        return is_number or isinstance(value, Number)
    return kind is Any or isinstance(value, kind)


def _describe(kind: Any) -> str:
    """tuple[tuple[int, int], ...] -> "a tuple of (a whole number, a whole number)"."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Annotated:
        tables = [part.table for part in parts[1:] if isinstance(part, OneOf)]
        return "one of " + ", ".join(map(repr, tables[0])) if tables else _describe(parts[0])
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, parts))
    if isinstance(kind, UnionType):
        return " or ".join(map(_describe, parts))
    if parts:
        return f"a tuple of {_describe(parts[0])}" if parts[-1] is ... else f"({', '.join(map(_describe, parts))})"
    plain = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", type(None): "None"}
    return plain.get(kind) or f"a config.{kind.__name__}"


def check_share(percent: float) -> None:
    require(0 < percent <= 100, f"data.corpus.train_percent is {percent}: it must be above 0 and at most 100")
