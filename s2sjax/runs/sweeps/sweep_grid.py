"""The members of a sweep: the combinations of the values of its settings, each with the name of its folder.

grid = {"seed": [0, 1], "train.learning_rate": [0.001, 0.002]}
members(grid)       seed=0,train.learning_rate=0.001    seed=0,train.learning_rate=0.002    seed=1,...
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from s2sjax import config
from s2sjax.errors import UserError

Settings = dict[str, Any]


class Range(NamedTuple):
    """Values from `low` to `high`, drawn on a logarithmic scale; whole numbers if both ends are. For random sweeps."""

    low: float
    high: float

    def at(self, place: float) -> float:
        """The value at a place from 0 to 1, with three digits: Range(1e-4, 1e-2).at(0.5) is 0.001."""
        value = math.exp(math.log(self.low) + place * (math.log(self.high) - math.log(self.low)))
        return round(value) if isinstance(self.low, int) and isinstance(self.high, int) else float(f"{value:.3g}")


def members(grid: Mapping[str, Any], pairs: bool = False, random: int = 0) -> dict[str, Settings]:
    """The settings of each member by its name: all combinations of the values.

    pairs: pair the values up instead, the first with the first. random: draw this many combinations, each trained with
    all seeds; the first of them are the same for every number. A value is a setting's own, or of a dict by its name.
    """
    if pairs and random:
        raise UserError("a sweep pairs its values up, or draws them at random: leave out --pairs or --random")
    values = {name: _listed(name, each, drawn=random > 0) for name, each in grid.items()}
    names = list(values)
    if pairs:
        lengths = {name: len(each) for name, each in values.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise UserError(f"--pairs needs as many values of each setting, but there are {counts}: make them equal")
        combinations: Iterable[tuple[Any, ...]] = zip(*values.values())
    elif random:
        combinations = _drawn(values, random)
    else:
        combinations = itertools.product(*values.values())
    found: dict[str, Settings] = {}
    for combination in combinations:
        settings = dict(zip(names, combination))
        found.setdefault(name_of(settings), settings)
    return found


def name_of(settings: Settings) -> str:
    """The name of a member, which is that of its folder: "seed=0,train.learning_rate=0.001"."""
    return ",".join(f"{name}={text(value)}" for name, value in settings.items())


def apply(experiment: Any, settings: Mapping[str, Any], prefix: str = "") -> Any:
    """The experiment with other values for some settings, by dotted name."""
    if not dataclasses.is_dataclass(experiment):
        raise UserError(f"{prefix.removesuffix('.')} is {experiment!r:.60}, which has no fields: sweep it as a whole")
    own = {name: _value(value) for name, value in settings.items() if "." not in name}
    parts: dict[str, Settings] = {}
    for name, value in settings.items():
        first, dot, rest = name.partition(".")
        if dot:
            parts.setdefault(first, {})[rest] = value
    for first, inner in parts.items():
        if not hasattr(experiment, first):
            raise UserError(f"there is no field {prefix}{first}: see s2sjax sweep FILE --help")
        own[first] = apply(own.get(first, getattr(experiment, first)), inner, f"{prefix}{first}.")
    return config.replace(experiment, **own)  # type: ignore[type-var]


class Named(NamedTuple):
    """A value with a name, such as the settings of a model."""

    name: str
    value: Any


def parse(text: str) -> list[Any] | Range | None:
    """The values of a setting on the command line: "1,2" is a list, "1e-4..1e-2" a Range; None for a single value."""
    low, dots, high = text.partition("..")
    if dots:
        ends = _literal(low), _literal(high)
        if (
            not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
            or not 0 < ends[0] < ends[1]
        ):
            raise UserError(f"{text} is not a range: write two numbers above 0, the lower first, such as 1e-4..1e-2")
        return Range(*ends)
    parts = _split(text)
    return None if len(parts) < 2 else [_literal(part) for part in parts]


def _split(text: str) -> list[str]:
    """Splits at the commas outside of brackets: "1,2" -> 1 2; "(1,2),(3,4)" -> (1,2) (3,4)."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _listed(name: str, values: Any, drawn: bool) -> Sequence[Any]:
    if isinstance(values, Range):
        if not drawn:
            raise UserError(
                f"{name} is a range, {text(values.low)}..{text(values.high)}: add --random N, or list values"
            )
        if name == "seed":
            raise UserError("seed is a range: list the seeds, each of which trains every combination that is drawn")
        return values  # type: ignore[return-value]
    if isinstance(values, Mapping):
        values = [Named(*each) for each in values.items()]
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]
    found = list(values)
    if not found:
        raise UserError(f"{name} has no values: give at least one")
    return found


def _drawn(values: Mapping[str, Any], count: int) -> Iterable[tuple[Any, ...]]:
    for number in range(count):
        chosen = {}
        for name, each in values.items():
            place = random.Random(f"{name}/{number}").random()
            if name != "seed":
                chosen[name] = each.at(place) if isinstance(each, Range) else each[int(place * len(each))]
        for seed in values.get("seed", [None]):
            yield tuple(seed if name == "seed" else chosen[name] for name in values)


def _value(value: Any) -> Any:
    return value.value if isinstance(value, Named) else value


def text(value: Any) -> str:
    """A value in the name of a folder: no spaces, no slashes."""
    if isinstance(value, Named):
        return value.name
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "".join("-" if letter in "/\\" else letter for letter in str(value) if not letter.isspace())
