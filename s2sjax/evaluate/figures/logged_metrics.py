"""Reads the numbers that a run has logged, as curves over its steps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from s2sjax.errors import UserError
from s2sjax.files import read_growing

LABELS = {"per": "PER (%)", "wer": "WER (%)", "cer": "CER (%)", "exact": "exact (%)", "bleu": "BLEU", "chrf": "chrF",
          "ter": "TER", "mse": "MSE", "mae": "MAE", "ler": "LER (%)", "ser": "SER (%)",
          "macro_f1": "macro F1 (%)"}  # fmt: skip


Logged = dict[str, list[tuple[int, float]]]


def read(path: Path) -> Logged:
    """Returns {name: [(step, value), ...]} for every number in the file, by ascending step.

    Of several values of one step, the last is kept. Numbers of an evaluation are named dev/NAME.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: give the metrics.jsonl of a run folder")
    lines = read_growing(path).splitlines()
    curves: dict[str, dict[int, float]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            step = int(record["step"])
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break  # a run that was killed may leave an incomplete line
            raise UserError(f"{path}, line {number}: not a JSON object with a step: delete the line") from None
        prefix = "dev/" if "score" in record else ""
        for name, value in _numbers(record):
            curves.setdefault(name if name.startswith("dev") else prefix + name, {})[step] = value
    return {name: sorted(points.items()) for name, points in curves.items()}


def curves(logged: Logged) -> list[tuple[str, bool, list[tuple[int, float]]]]:
    """The metrics among the numbers of `read`: (panel, whether it is of dev, points), see `panel_of`."""
    return [(*panel_of(name), points) for name, points in logged.items() if panel_of(name)[0]]


class Point(NamedTuple):
    """A number of several runs at one step."""

    step: int
    mean: float
    low: float
    high: float
    runs: int
    """how many of the runs have logged it"""


def mean_curves(several: Sequence[Logged]) -> list[tuple[str, bool, list[Point]]]:
    """The mean, the lowest and the highest of several runs at each step that any of them has logged, as in `curves`."""
    found: dict[tuple[str, bool], dict[int, list[float]]] = {}
    for panel, of_dev, points in (curve for logged in several for curve in curves(logged)):
        for step, value in points:
            found.setdefault((panel, of_dev), {}).setdefault(step, []).append(value)
    return [
        (
            panel,
            of_dev,
            [Point(step, mean(each), min(each), max(each), len(each)) for step, each in sorted(steps.items())],
        )
        for (panel, of_dev), steps in found.items()
    ]


def _numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and prefix + name != "step":
            yield prefix + name, float(value)


def panel_of(name: str) -> tuple[str, bool]:
    """Returns (metric that a number of metrics.jsonl belongs to, or "" if it is not a metric; whether it is of dev).

    loss -> ("loss", False); dev_loss -> ("loss", True); dev/per -> ("PER (%)", True); seconds -> ("", False)
    """
    rest = re.sub(r"^dev[/_. ]", "", name)
    if rest != name:
        return LABELS.get(rest, rest), True
    return (rest if {"loss", "accuracy", "perplexity"} & set(re.split(r"[/_. ]", rest)) else ""), False
