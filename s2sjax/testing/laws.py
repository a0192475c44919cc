"""What a law is: a function that raises `LawError` if a property does not hold."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np


class LawError(AssertionError):
    """A law that does not hold: which one, what was expected, what was seen, and where to look."""

    law = ""

    def __str__(self) -> str:
        return f"{self.law} does not hold: {self.args[0]}"


Law = Callable[[Any], Sequence[str]]
"""law(subject) -> hints, usually none; the first line of its docstring states the law"""


def law(function: Callable[[Any], Sequence[str] | None]) -> Law:
    """Makes a law of a function that raises LawError(what is wrong), and may return hints."""

    @functools.wraps(function)
    def checked(subject: Any) -> Sequence[str]:
        try:
            return function(subject) or ()
        except LawError as broken:
            broken.law = function.__name__
            raise

    return checked


class Report(NamedTuple):
    """The laws that have been checked."""

    laws: dict[str, str]
    """the laws by name, each in one line"""
    hints: tuple[str, ...] = ()
    """remarks on what is allowed but may be an oversight"""

    def __str__(self) -> str:
        return "\n".join([*(f"{name}: {line}" for name, line in self.laws.items()), *self.hints])


def verify(laws: Sequence[Law], subject: Any) -> Report:
    """Checks the laws in their order: raises LawError at the first that is broken, and warns of hints."""
    hints = tuple(hint for one in laws for hint in one(subject))
    for hint in hints:
        warnings.warn(hint, stacklevel=3)
    return Report({one.__name__: (one.__doc__ or "").partition("\n")[0] for one in laws}, hints)


def check(holds: Any, message: str) -> None:
    """Raises LawError unless a condition holds."""
    if not holds:
        raise LawError(message)


def check_equal(seen: Any, expected: Any, tolerance: float, what: str, advice: str) -> None:
    """Raises LawError, with the place of the largest difference, if two trees of arrays are not equal.

    what: names the arrays, and the change that should have no effect on them
    advice: where to look
    """
    leaves = jax.tree_util.tree_leaves_with_path(expected)
    for (path, right), left in zip(leaves, jax.tree.leaves(seen), strict=True):
        left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
        check(left.shape == right.shape, f"{what}: the shape is {left.shape} instead of {right.shape}; {advice}")
        with np.errstate(invalid="ignore"):
            apart = np.where(left == right, 0.0, np.nan_to_num(np.abs(left - right), nan=np.inf))
        if apart.size and apart.max() > tolerance:
            at = np.unravel_index(apart.argmax(), apart.shape)
            place = f"{jax.tree_util.keystr(path)}[{', '.join(map(str, at))}]"
            raise LawError(f"{what}: {place} is {left[at]:.6g} instead of {right[at]:.6g}; {advice}")


def check_finite(tree: Any, what: str, advice: str) -> None:
    """Raises LawError, with the name of the array, if a tree has a NaN or an infinity."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        check(np.isfinite(leaf).all(), f"{what}{name and ' of '}{name} is not finite; {advice}")
