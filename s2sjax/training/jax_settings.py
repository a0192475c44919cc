"""JAX settings that a user makes around training, such as `with jax.default_matmul_precision("highest"):`."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax

from s2sjax.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


def check() -> None:
    """Raises UserError for a setting under which training does not work."""
    if jax.config.values["jax_enable_x64"]:
        raise UserError(
            "jax_enable_x64 is on, and parameters are float32: unset JAX_ENABLE_X64, or call this outside of "
            "jax.enable_x64(); for more exact products use jax.default_matmul_precision('highest')"
        )


def debugged() -> bool:
    """Whether a debugging mode of JAX is on that runs operations one by one, or runs a program again if it has a NaN.

    A program that is compiled ahead of time has lost its function, and supports neither.
    """
    return any(jax.config.values[f"jax_{name}"] for name in ("disable_jit", "debug_nans", "debug_infs"))


def reason(error: FloatingPointError) -> str:
    """The first line of an error of jax.debug_nans: "invalid value (nan) encountered in log"."""
    return str(error).splitlines()[0].rstrip(".")


def place_of(error: BaseException, *ignored: str) -> str:
    """The place that raised an error, outside of the libraries and `ignored` files: "cells.py line 31, in step"."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    libraries = tuple(sys.modules[name].__path__[0] for name in ("jax", "flax", "optax") if name in sys.modules)
    code, line = next(each for each in reversed(frames) if not each[0].co_filename.startswith((*libraries, *ignored)))
    return f"{Path(code.co_filename).name} line {line}, in {code.co_name}"


def inherit(function: Callable[P, R]) -> Callable[P, R]:
    """Wraps `function` to run, in any thread, with the current JAX settings and context variables of this thread.

    Threads start with the global settings of JAX: a `jax.default_matmul_precision("highest")` around training would
    not reach what its threads trace.
    """
    variables, settings = contextvars.copy_context(), dict(jax.config.values)

    def inherited(*arguments: P.args, **options: P.kwargs) -> R:
        with _entered(settings):
            return variables.copy().run(function, *arguments, **options)  # a context cannot be entered twice at once

    return inherited


@contextlib.contextmanager
def _entered(settings: dict[str, Any]) -> Iterator[None]:
    """Enters the context manager `jax.x(value)` of each setting jax_x that has another value in this thread.

    A setting without a context manager cannot differ between threads. The order is reversed because jax_transfer_guard,
    which sets others, is listed after them.
    """
    with contextlib.ExitStack() as stack:
        for name in reversed(settings):
            manager = getattr(jax, name.removeprefix("jax_"), None)
            if manager is not None and jax.config.values[name] != settings[name]:
                stack.enter_context(manager(settings[name]))
        yield
