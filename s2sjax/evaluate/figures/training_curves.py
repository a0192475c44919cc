"""Curves of the training loss and the scores against the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from s2sjax.errors import UserError
from s2sjax.evaluate.figures import logged_metrics
from s2sjax.evaluate.figures.style import BACKGROUND, GREY, GRID, PathLike, Target, new_figure, save, text_style

SERIES = ("#1f5a96", "#d1603d", "#3f8f5b", "#8a5aa5", "#b58a1b", "#5f6b7a")


def learning_curves(path: Target, runs: Mapping[str, PathLike]) -> None:
    """Plots losses and scores against the step, with one panel and its own axis for each metric.

    runs: {name in the legend: metrics.jsonl of the run}. The curves are the training loss and all numbers of
    evaluations: those in lines with a `score`, and those whose names begin with `dev`. Nested objects are read as
    `outer/inner`. If a step was repeated after a resume, the last values are plotted.
    """
    panels: dict[str, list[Curve]] = {}
    for number, (run, log) in enumerate(runs.items()):
        found = logged_metrics.curves(logged_metrics.read(Path(log)))
        for metric, of_dev, points in found:
            panels.setdefault(metric, []).append(Curve(run, number, of_dev, points))
        if not found:
            raise UserError(f"{log} has neither a loss nor a score: wait until the run has logged a step")
    figure = new_figure()
    last = max(x for curves in panels.values() for curve in curves for x, _ in curve.points)
    columns = 1 if len(panels) <= 4 else 2
    for place, (metric, drawn) in enumerate(sorted(panels.items(), key=lambda item: "loss" not in item[0])):
        row, column = divmod(place, columns)
        panel = figure.add_axes((7.2 * column, -1.9 - 2.6 * row, 6.4, 1.9))
        lowest = place + columns >= len(panels)
        _draw_curves(panel, drawn, metric, "step" if lowest else "", several=len(runs) > 1)
        panel.set_xlim(0, max(last, 1))
        if place == columns - 1:  # at the right
            _draw_key(panel, list(runs), {curve.of_dev for curves in panels.values() for curve in curves})
    save(figure, path)


class Curve(NamedTuple):
    """One metric of one run."""

    run: str
    number: int
    """number of the run, which chooses the colour"""
    of_dev: bool
    points: Sequence[tuple[int, float]]


def _draw_curves(panel: Axes, curves: Sequence[Curve], metric: str, x_label: str, several: bool) -> None:
    for curve in curves:
        x, y = np.asarray(curve.points, dtype=np.float64).reshape(-1, 2).T
        panel.plot(
            x, y, **_line(curve.number, curve.of_dev, several), solid_capstyle="round", clip_on=False, zorder=3,
            marker="o" if len(x) <= 40 else "", markersize=4.0, markeredgecolor=BACKGROUND, markeredgewidth=0.8,
        )  # fmt: skip
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(GREY)
    panel.tick_params(length=0, pad=6, labelsize=9, labelcolor=GREY)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    values = [value for curve in curves for _, value in curve.points]
    if 0 <= min(values) <= max(values) / 2:
        panel.set_ylim(bottom=0)  # values that differ a lot: heights are then proportional to them
    panel.set_xlabel(x_label, labelpad=6, **text_style(10))
    panel.set_title(metric, loc="left", pad=8, fontweight="bold", **text_style(10))


def _line(number: int, of_dev: bool, several: bool) -> dict[str, Any]:
    """The style of a curve: one colour per run and dashes for dev; with a single run, another colour for dev."""
    colour = SERIES[(number if several else int(of_dev)) % len(SERIES)]
    return {"color": colour, "linestyle": "--" if several and of_dev else "-", "linewidth": 1.5}


def _draw_key(panel: Axes, runs: Sequence[str], kinds: set[bool]) -> None:
    """Draws the legend to the right of a panel."""
    several = len(runs) > 1
    lines = [(_line(number, False, True), run) for number, run in enumerate(runs) if several]
    for of_dev in sorted(kinds):
        style = _line(0, of_dev, several) | ({"color": GREY} if several else {})
        lines.append((style, "dev" if of_dev else "training"))
    legend = panel.legend(
        [Line2D([], [], **style) for style, _ in lines], [label for _, label in lines], loc="upper left",
        bbox_to_anchor=(1.01, 1.0), frameon=False, borderaxespad=0, handlelength=2.2, borderpad=0,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set(**text_style(9))
