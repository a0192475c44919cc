"""The contents of the report of a sweep: its table, learning curves with bands, scores against settings, its runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from s2sjax.evaluate.figures import logged_metrics
from s2sjax.files import in_storage
from s2sjax.report.contents import thinned
from s2sjax.runs.evaluations import finite
from s2sjax.runs.sweeps.sweep_results import Member, Summary, heading, shown
from s2sjax.version import __version__

NAME = "report.html"
"""name of the report in the folder of a run or a sweep"""
MOST_POINTS = 200
"""maximal number of points of a curve: there may be many curves"""


def contents(found: Summary, beside: Path) -> dict[str, Any]:
    """Collects the values that the page shows. beside: the folder of the page, to which links are relative."""
    table, main = found.table(), next(iter(found.metrics), None)
    settings = [_setting(name, found.sweep.members) for name in found.sweep.swept]
    columns = [*found.sweep.swept, *found.metrics, "n", "p"]
    values = {
        "version": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": found.sweep.folder.resolve().name,
        "folder": str(found.sweep.folder),
        "head": table.head,
        "rows": [
            {"label": found.sweep.label(row.settings), "cells": cells, "best": record["best"],
             "keys": [_sort_key(record[name]) for name in columns[: len(cells)]]}
            for row, cells, record in zip(found.rows, table.rows, table.records)
        ],
        "remarks": found.remarks(),
        "curves": _curves(found),
        "metric": heading(found.metrics[main]) if main else "",
        "metrics": [heading(result) for result in found.metrics.values()],
        "higher": bool(main and found.metrics[main].higher_is_better),
        "settings": settings,
        "members": [
            _member(found, number, member, settings, beside)
            for number, row in enumerate(found.rows) for member in row.members
        ],
    }  # fmt: skip
    return finite(values)


def _sort_key(value: Any) -> Any:
    return value if isinstance(value, int | float | None) else shown(value)


def _curves(found: Summary) -> list[dict[str, Any]]:
    rows = {found.sweep.label(row.settings): number for number, row in enumerate(found.rows)}
    return [
        {"row": rows[label], "panel": panel, "dev": of_dev, "points": thinned(points, MOST_POINTS)}
        for label, logs in found.logs().items()
        for panel, of_dev, points in logged_metrics.mean_curves([logged_metrics.read(log) for log in logs])
    ]


def _setting(name: str, members: Sequence[Member]) -> dict[str, Any]:
    """The values of a setting, in the order of its axis, and the scale of that axis."""
    values: list[Any] = list(
        {shown(value): value for value in (member.settings.get(name) for member in members)}.values()
    )
    scale = scale_of(values)
    values = values if scale == "names" else sorted(values)
    return {"name": name, "scale": scale, "values": values, "labels": [shown(value) for value in values]}


def scale_of(values: Sequence[Any]) -> str:
    """The scale of an axis: names, linear, or log if that spaces the values more evenly.

    Of two values, one must be ten times the other.

    >>> scale_of([0.001, 0.002, 0.004]), scale_of([0.1, 0.2, 0.3]), scale_of(["gru", "lstm"])
    ('log', 'linear', 'names')
    """
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return "names"
    ordered = np.sort(np.asarray(values, np.float64))
    if ordered[0] <= 0 or len(ordered) < 3:
        return "log" if 0 < 10 * ordered[0] <= ordered[-1] else "linear"
    even = np.linspace(0, 1, len(ordered))
    unevenness = lambda x: np.abs((x - x[0]) / (x[-1] - x[0]) - even).sum()
    return "log" if unevenness(np.log(ordered)) < unevenness(ordered) else "linear"


def _member(found: Summary, row: int, member: Member, settings: Sequence[Any], beside: Path) -> dict[str, Any]:
    one = found.rows[row].scored.get(member.name)
    results = {name: one.results.get(name) if one else None for name in found.metrics}
    keys = [finite(result.value) if result else None for result in results.values()]
    return {
        "name": member.name,
        "row": row,
        "status": member.status,
        "step": one.step if one else None,
        "score": keys[0] if keys else None,
        "keys": keys,
        "scores": [result.number(result.value) if result else "-" for result in results.values()],
        "places": [setting["labels"].index(shown(member.settings.get(setting["name"]))) for setting in settings],
        "href": _link(member, beside),
    }


def _link(member: Member, beside: Path) -> str | None:
    """The address of the report of a run, or else of its folder; None if it is not below the page in the storage."""
    elsewhere = in_storage(member.folder) or in_storage(beside)
    if member.status == "missing" or (elsewhere and not member.folder.is_relative_to(beside)):
        return None
    end = NAME if (member.folder / NAME).is_file() else ""
    return f"{quote(os.path.relpath(member.folder.resolve(), beside.resolve()))}/{end}"
