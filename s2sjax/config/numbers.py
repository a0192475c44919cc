"""The settings that are numbers and no shapes: arguments of the train step, so that their values share one program."""

from __future__ import annotations

import dataclasses
import functools
import operator
import typing
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np

from s2sjax.core.traced_numbers import Number

COUNTS = ("seed", "train.warmup_steps", "train.schedule_steps", "train.average_from")
"""whole numbers that are no shapes; of `train` and `model`, all fields of type float are arguments too"""


def numbers(experiment: Any) -> dict[str, int | float]:
    """The numbers of an experiment by dotted name: {"seed": 0, "train.learning_rate": 0.001, ...}."""
    counts = {name: operator.attrgetter(name)(experiment) for name in COUNTS}
    models = _floats(experiment.model, "model.") if dataclasses.is_dataclass(experiment.model) else ()
    return {**counts, **dict(_floats(experiment.train, "train.")), **dict(models)}


def with_numbers(settings: Any, numbers: Mapping[str, Any], prefix: str = "") -> Any:
    """The settings with other values for some numbers, by dotted name. They are not checked, as they may be traced."""
    found = object.__new__(type(settings))
    for field in dataclasses.fields(settings):
        name, value = f"{prefix}{field.name}", getattr(settings, field.name)
        if name in numbers:
            value = numbers[name]
        elif dataclasses.is_dataclass(value) and any(each.startswith(f"{name}.") for each in numbers):
            value = with_numbers(value, numbers, f"{name}.")
        object.__setattr__(found, field.name, value)
    return found


def argument(name: str, value: int | float) -> np.ndarray:
    """A number as an argument of a program. Of a seed, JAX uses the lower 32 bits."""
    if name == "seed":
        return np.array(value % 2**32, np.uint32).view(np.int32)
    return np.array(value, np.int32 if name in COUNTS else np.float32)


def traced(arguments: Mapping[str, Any], values: Mapping[str, tuple[Any, ...]]) -> dict[str, Number]:
    """The numbers for `with_numbers`, from the traced arguments of a program and the values of all members."""
    return {name: Number(jnp.asarray(argument), values[name]) for name, argument in arguments.items()}


def _floats(settings: Any, prefix: str) -> Iterator[tuple[str, float]]:
    for name, is_float in _fields(type(settings)).items():  # type: ignore[arg-type]
        value = getattr(settings, name)
        if dataclasses.is_dataclass(value):
            yield from _floats(value, f"{prefix}{name}.")
        elif is_float and value is not None:
            yield f"{prefix}{name}", value


@functools.cache
def _fields(kind: Any) -> dict[str, bool]:
    """The names of the fields of a settings class, and whether each is a float or None."""
    types = typing.get_type_hints(kind)
    return {field.name: _is_float(types[field.name]) for field in dataclasses.fields(kind)}


def _is_float(kind: Any) -> bool:
    if typing.get_origin(kind) is Annotated:
        return _is_float(typing.get_args(kind)[0])
    parts = set(typing.get_args(kind)) if isinstance(kind, UnionType) else {kind}
    return float in parts and parts <= {float, int, type(None)}
