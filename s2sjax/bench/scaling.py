"""Growth of times: exponents fitted to the largest sizes, and the lengths at which recurrence and attention are even.

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


class Race(NamedTuple):
    """The comparison of a recurrent layer with attention, at one batch and width."""

    recurrent: str
    way: str
    batch: int
    width: int
    points: list[tuple[float, float]]
    """points (n, seconds) at which they are even"""
    faster: str
    """faster layer at the smallest length"""


def races(rows: Sequence[Row]) -> Iterator[Race]:
    """Compares each recurrent layer with attention, over the lengths at which both were measured."""
    for (way, batch, width), group in grouped(rows, "pass", "batch", "width"):
        times = {row["length"]: row["seconds"] for row in group if row["layer"] == "attention"}
        for (name,), own in grouped([row for row in group if row["layer"] == "recurrent"], "name"):
            both = sorted(
                (row["length"], row["seconds"], times[row["length"]]) for row in own if row["length"] in times
            )
            if both:
                lengths, first, second = zip(*both)
                faster = name if first[0] < second[0] else "attention"
                yield Race(name, way, batch, width, crossovers(lengths, first, second), faster)


def grouped(rows: Sequence[Row], *names: str) -> Iterator[tuple[tuple, list[Row]]]:
    """Yields the groups of rows with equal values of `names`, in the order of their first rows."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    yield from groups.items()
