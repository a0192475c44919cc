"""Settings of JAX that a user makes around a training, as `with jax.default_matmul_precision("highest"):`."""

from __future__ import annotations

import contextlib
import contextvars
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax

from s2sjax.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


def check() -> None:
    """Refuses a setting under which nothing can be trained."""
    if jax.config.values["jax_enable_x64"]:
        raise UserError(
            "jax_enable_x64 is on, and parameters are float32: unset JAX_ENABLE_X64, or call this outside of "
            "jax.enable_x64(); for more exact products use jax.default_matmul_precision('highest')"
        )


def debugged() -> bool:
    """Whether a program is to run as JAX's debugging modes want: operation by operation, or again if it has a NaN.

    A program that is compiled ahead of time has lost its function, and can do neither.
    """
    return any(jax.config.values[f"jax_{name}"] for name in ("disable_jit", "debug_nans", "debug_infs"))


def place_of(error: BaseException) -> str:
    """Where an error was raised, outside of the libraries: "cells.py line 31, in step"."""
    frames = list(traceback.walk_tb(error.__traceback__))
    package = lambda frame: frame.f_globals.get("__name__", "").partition(".")[0]
    code, line = next((f.f_code, line) for f, line in reversed(frames) if package(f) not in ("jax", "flax", "optax"))
    return f"{Path(code.co_filename).name} line {line}, in {code.co_name}"


def inherit(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which in any thread sees the context of this one, as it is now.

    Threads start with the global settings of JAX: without it a `jax.default_matmul_precision("highest")` around a
    training would not reach what its threads trace. It also passes on Python's context variables.
    """
    variables, settings = contextvars.copy_context(), dict(jax.config.values)

    def inherited(*arguments: P.args, **options: P.kwargs) -> R:
        with _entered(settings):
            return variables.copy().run(function, *arguments, **options)  # one context is never entered twice at once

    return inherited


@contextlib.contextmanager
def _entered(settings: dict[str, Any]) -> Iterator[None]:
    """Enters the context manager `jax.x(value)` of each setting jax_x that has another value in this thread.

    A setting without one cannot differ between threads. In reverse: jax_transfer_guard comes after those that it sets.
    """
    with contextlib.ExitStack() as stack:
        for name in reversed(settings):
            manager = getattr(jax, name.removeprefix("jax_"), None)
            if manager is not None and jax.config.values[name] != settings[name]:
                stack.enter_context(manager(settings[name]))
        yield
