"""Functions that settings name by their import path, with arguments written as name=value."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from s2sjax.errors import UserError


def find(path: str, field: str) -> Callable[..., Any]:
    """Imports the function at a path such as "optax.contrib.muon". `field` is the setting that names it."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a user's module may raise anything when it is imported
        reason = " ".join(str(error).split())
        raise UserError(f"{field} {path} cannot be imported ({reason}): correct it, or install its package") from None
    if not callable(found):
        raise UserError(f"{field} {path} is not a function: name another")
    return found


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """("momentum=0.9", "nesterov=True", "mu_dtype=bfloat16") -> {"momentum": 0.9, "nesterov": True, ...}"""
    return {name: _value(text) for name, _, text in (argument.partition("=") for argument in arguments)}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a name, such as bfloat16


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def check_arguments(
    function: Callable[..., Any], field: str, path: str, *, given: Mapping[str, str], reserved: Mapping[str, str]
) -> None:
    """Raises UserError for an argument that the function does not take, or that is missing.

    given: {argument: the setting that gives it}. reserved: {argument: the setting to use instead}.
    """
    takes = parameters(function)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values()):
        return
    for name, setting in given.items():
        if name in reserved:
            raise UserError(f"{setting} has {name}: set {reserved[name]} instead")
        if name not in takes:
            free = ", ".join(other for other in takes if other not in reserved) or "no other arguments"
            raise UserError(f"{setting}: {path} does not take {name}: it takes {free}")
    required = [name for name, one in takes.items() if one.default is inspect.Parameter.empty]
    missing = [name for name in required if name not in given and name not in reserved]
    if missing:
        raise UserError(f"train.{field} {path} requires {missing[0]}: add {missing[0]}=VALUE to train.{field}_args")
