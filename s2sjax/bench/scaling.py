"""Growth of times: exponents fitted to the largest sizes, and the lengths at which two layers are even.

Rows are those of s2sjax/bench/layers/layer_speed.py.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from s2sjax.bench.layers.layer_types import TYPES
from s2sjax.bench.result_files import Row

LARGEST = 3
"""maximum number of fitted sizes; overheads dominate the times of smaller ones"""


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Fits p of values ~ sizes^p by least squares of the logarithms of the largest sizes; None for fewer than two."""
    points = sorted(zip(sizes, values))[-LARGEST:]
    if len(points) < 2:
        return None
    x, y = np.log(np.asarray(points)).T
    return float(np.polyfit(x, y, 1)[0])


def exponents(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The exponents of time, FLOPs and Table 1: of n at the largest width, and of d at the largest length."""
    found = []
    for (name, way, batch), group in grouped(rows, "name", "pass", "batch"):
        kind = TYPES[group[0]["layer"]]
        fit: dict[str, Any] = {"name": name, "pass": way, "batch": batch, "complexity": kind.complexity}
        for size, other, of_table in (("length", "width", kind.exponents[0]), ("width", "length", kind.exponents[1])):
            largest = max(row[other] for row in group)
            fitted = [row for row in group if row[other] == largest]
            sizes = [row[size] for row in fitted]
            fit[f"{size}_time"] = exponent(sizes, [row["seconds"] for row in fitted])
            fit[f"{size}_flops"] = exponent(sizes, [row["flops"] for row in fitted])
            fit[f"{size}_table"] = of_table
        found.append(fit)
    return found


def crossovers(sizes: Sequence[float], first: Sequence[float], second: Sequence[float]) -> list[tuple[float, float]]:
    """The points (size, value) where two piecewise linear curves on log axes cross.

    sizes ascend. Curves that touch without changing sides do not cross.
    """
    found = []
    x, a, b = (np.log(np.asarray(each, float)) for each in (sizes, first, second))
    apart = [i for i in range(len(x)) if a[i] != b[i]]
    for i, j in itertools.pairwise(apart):
        if (a[i] > b[i]) != (a[j] > b[j]):
            part = (a[i] - b[i]) / ((a[i] - b[i]) - (a[j] - b[j]))
            found.append((float(np.exp(x[i] + part * (x[j] - x[i]))), float(np.exp(a[i] + part * (a[j] - a[i])))))
    return found


RIVALS = ("attention", "causal", "recurrent")
"""layers with which recurrences are compared: attention, causal attention, the LSTM"""


class Race(NamedTuple):
    """The comparison of a recurrence with a rival, at one batch and width."""

    name: str
    rival: str
    way: str
    batch: int
    width: int
    points: list[tuple[float, float]]
    """points (n, seconds) at which they are even"""
    faster: str
    """faster layer at the smallest length"""


def races(rows: Sequence[Row]) -> Iterator[Race]:
    """Compares each recurrence with each of `RIVALS`, over the lengths at which both were measured.

    Of several variants of a rival, such as several unrollings of the LSTM, the fastest one at each length counts.
    """
    for (way, batch, width), group in grouped(rows, "pass", "batch", "width"):
        recurrences = [row for row in group if TYPES[row["layer"]].recurrent]
        for (name, layer), own in grouped(recurrences, "name", "layer"):
            for rival in RIVALS:
                times = _fastest(group, rival) if rival != layer else {}
                both = sorted(
                    (row["length"], row["seconds"], times[row["length"]]) for row in own if row["length"] in times
                )
                if both:
                    lengths, first, second = zip(*both)
                    faster = name if first[0] < second[0] else rival
                    yield Race(name, rival, way, batch, width, crossovers(lengths, first, second), faster)


def faster_at(race: Race) -> str:
    """The lengths at which a recurrence is faster: all, none, n < 300, n > 300, or n < 50, > 700."""
    first = race.faster == race.name
    if not race.points:
        return "all" if first else "none"
    signs = itertools.cycle("<>" if first else "><")
    return "n " + ", ".join(f"{sign} {length:,.0f}" for sign, (length, _) in zip(signs, race.points))


def _fastest(rows: Sequence[Row], layer: str) -> dict[int, float]:
    """The shortest time of a layer at each length."""
    found: dict[int, float] = {}
    for row in rows:
        if row["layer"] == layer:
            found[row["length"]] = min(row["seconds"], found.get(row["length"], row["seconds"]))
    return found


def grouped(rows: Sequence[Row], *names: str) -> Iterator[tuple[tuple, list[Row]]]:
    """Yields the groups of rows with equal values of `names`, in the order of their first rows."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    yield from groups.items()
