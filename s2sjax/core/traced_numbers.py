"""Settings that are arguments of a compiled program, such as a learning rate.

A `Number` takes the place of a Python number in the settings while a program is traced. Arithmetic with it is traced,
so that one program serves all values. Its values are known, one for each member of a sweep (one alone for a run), and
answer the questions that Python asks:

    rate * x, 1 - rate          traced; with Python numbers, the result is a Number again
    if rate > 0                 answered if the answer is the same for all members, otherwise raises Disagree
    float(rate), range(n)       the value if all members have the same, otherwise raises Disagree

Whoever forms groups of members splits a group by the answers of Disagree, and traces again. No list is needed of the
settings that are shapes, or that change the program.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np


class Disagree(Exception):
    """The members of a group need different programs. answers: what each member would answer."""

    def __init__(self, answers: tuple[Any, ...]):
        super().__init__("the members of a group need different programs")
        self.answers = answers


class Number:
    """A traced scalar whose values are known.

    value: the traced scalar, weakly typed, so that it takes the dtype of arrays as a Python number does.
    values: its value for each member.
    """

    __slots__ = ("value", "values")
    shape, ndim = (), 0

    def __init__(self, value: Any, values: tuple[Any, ...]):
        self.value, self.values = value, values

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
        return np.asarray(self._agreed(self.values), *arguments)

    def _agreed(self, answers: tuple[Any, ...]) -> Any:
        first = answers[0]
        if any(answer != first and not (answer != answer and first != first) for answer in answers):
            raise Disagree(answers)
        return first

    def __bool__(self) -> bool:
        return bool(self._agreed(tuple(map(bool, self.values))))

    def __float__(self) -> float:
        return float(self._agreed(self.values))

    def __int__(self) -> int:
        return int(self._agreed(self.values))

    def __index__(self) -> int:
        return operator.index(self._agreed(self.values))

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        return " or ".join(dict.fromkeys(map(str, self.values)))

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return " or ".join(dict.fromkeys(format(value, form) for value in self.values))

    def __neg__(self) -> Number:
        return Number(-self.value, tuple(-value for value in self.values))

    def __abs__(self) -> Number:
        return Number(abs(self.value), tuple(map(abs, self.values)))

    def __round__(self, digits: int | None = None) -> Number:
        rounded = jnp.round(self.value, digits or 0)
        values = tuple(round(value, digits) for value in self.values)
        return Number(rounded if digits is not None else rounded.astype(int), values)


if TYPE_CHECKING:
    Scalar = Any
else:
    Scalar = int | float | Number | jax.Array
    """a number in the settings, or traced"""


def _flatten(number: Number) -> tuple[tuple[Any], tuple[Any, ...]]:
    return (number.value,), number.values


# Functions that JAX has jitted, such as jnp.sqrt, accept only arrays and trees of them.
jax.tree_util.register_pytree_node(Number, _flatten, lambda values, children: Number(children[0], values))


def _known(other: Any) -> tuple[Any, ...] | None:
    """The values of a Number, or of a Python number; None for an array."""
    if isinstance(other, Number):
        return other.values
    return (other,) if isinstance(other, int | float) else None


def _each(compute: Callable[[Any, Any], Any], one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    count = max(len(one), len(other))
    found = []
    for left, right in zip(one * (count // len(one)), other * (count // len(other))):
        try:
            found.append(compute(left, right))
        except ArithmeticError:  # division by zero, overflow: an array has inf or nan there
            found.append(math.nan)
    return tuple(found)


def _arithmetic(compute: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Number, Any], Any]:
    ordered = (lambda left, right: compute(right, left)) if swapped else compute

    def method(self: Number, other: Any) -> Any:
        value = ordered(self.value, other.value if isinstance(other, Number) else other)
        known = _known(other)
        return value if known is None else Number(value, _each(ordered, self.values, known))

    return method


def _comparison(compute: Callable[[Any, Any], Any]) -> Callable[[Number, Any], Any]:
    def method(self: Number, other: Any) -> Any:
        if other is None or isinstance(other, str):
            return NotImplemented
        known = _known(other)
        if known is None:
            return compute(self.value, other)
        return self._agreed(_each(compute, self.values, known))

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Number, f"__{_name}__", _arithmetic(getattr(operator, _name), swapped=False))
    setattr(Number, f"__r{_name}__", _arithmetic(getattr(operator, _name), swapped=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Number, f"__{_name}__", _comparison(getattr(operator, _name)))
