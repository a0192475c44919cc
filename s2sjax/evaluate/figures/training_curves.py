"""Curves of the training loss and the scores against the step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from s2sjax.errors import UserError
from s2sjax.evaluate.figures import logged_metrics
from s2sjax.evaluate.figures.logged_metrics import Point
from s2sjax.evaluate.figures.style import BACKGROUND, GREY, GRID, PathLike, Target, new_figure, save, text_style
from s2sjax.files import as_path

SERIES = ("#1f5a96", "#d1603d", "#3f8f5b", "#8a5aa5", "#b58a1b", "#5f6b7a")


def learning_curves(path: Target, runs: Mapping[str, PathLike | Sequence[PathLike]]) -> None:
    """Plots losses and scores against the step, with one panel and its own axis for each metric.

    runs: {name in the legend: metrics.jsonl of the run}. Of several files, such as those of several seeds, the mean is
    plotted, with a band from the lowest to the highest. The curves are the training loss and all numbers of
    evaluations: those in lines with a `score`, and those whose names begin with `dev`. Nested objects are read as
    `outer/inner`. If a step was repeated after a resume, the last values are plotted.
    """
    panels: dict[str, list[Curve]] = {}
    for number, (run, each) in enumerate(runs.items()):
        logs = [each] if isinstance(each, str | os.PathLike) else each
        found = logged_metrics.mean_curves([logged_metrics.read(as_path(log)) for log in logs])
        for metric, of_dev, points in found:
            panels.setdefault(metric, []).append(Curve(run, number, of_dev, points))
        if not found:
            raise UserError(f"{logs[0]} has neither a loss nor a score: wait until the run has logged a step")
    if not panels:
        raise UserError("no run has logged a step yet: wait until one has")
    figure = new_figure()
    last = max(curve.points[-1].step for curves in panels.values() for curve in curves)
    columns = 1 if len(panels) <= 4 else 2
    for place, (metric, drawn) in enumerate(sorted(panels.items(), key=lambda item: "loss" not in item[0])):
        row, column = divmod(place, columns)
        panel = figure.add_axes((7.2 * column, -1.9 - 2.6 * row, 6.4, 1.9))
        lowest = place + columns >= len(panels)
        _draw_curves(panel, drawn, metric, "step" if lowest else "", len(runs))
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
    points: Sequence[Point]


def _draw_curves(panel: Axes, curves: Sequence[Curve], metric: str, x_label: str, runs: int) -> None:
    bottom, top = _limits(curves)
    explodes = top < max(point.high for curve in curves for point in curve.points)
    for curve in curves:
        x, y, low, high, count = np.asarray(curve.points, dtype=np.float64).T
        style = _line(curve.number, curve.of_dev, runs)
        if count.max() > 1:
            panel.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0, clip_on=explodes)
        panel.plot(
            x, y, **style, solid_capstyle="round", clip_on=explodes, zorder=3,
            marker="o" if len(x) <= 40 else "", markersize=4.0, markeredgecolor=BACKGROUND, markeredgewidth=0.8,
        )  # fmt: skip
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(GREY)
    panel.tick_params(length=0, pad=6, labelsize=9, labelcolor=GREY)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if explodes:
        panel.set_ylim(top=top)
    if 0 <= bottom <= top / 2:
        panel.set_ylim(bottom=0)  # values that differ a lot: heights are then proportional to them
    panel.set_xlabel(x_label, labelpad=6, **text_style(10))
    panel.set_title(metric, loc="left", pad=8, fontweight="bold", **text_style(10))


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """The lowest value, and the highest that is shown.

    A curve that explodes leaves the panel to the others: shown are twice their range, and where each curve begins.
    """
    low = min(point.low for curve in curves for point in curve.points)
    highest = sorted(max(point.high for point in curve.points) for curve in curves)
    usual = low + 2 * (highest[len(highest) // 2] - low)
    return low, min(highest[-1], max(usual, *(curve.points[0].high for curve in curves)))


def _line(number: int, of_dev: bool, runs: int) -> dict[str, Any]:
    """The style of a curve: one colour per run and dashes for dev; with a single run, another colour for dev.

    More runs than SERIES has colours are coloured from the first to the last by a sequential colour map.
    """
    colour: Any = SERIES[(number if runs > 1 else int(of_dev)) % len(SERIES)]
    if runs > len(SERIES):
        colour = colormaps["viridis"](0.95 * number / (runs - 1))
    return {"color": colour, "linestyle": "--" if runs > 1 and of_dev else "-", "linewidth": 1.5}


def _draw_key(panel: Axes, runs: Sequence[str], kinds: set[bool]) -> None:
    """Draws the legend to the right of a panel."""
    several = len(runs) > 1
    lines = [(_line(number, False, len(runs)), run) for number, run in enumerate(runs) if several]
    for of_dev in sorted(kinds):
        style = _line(0, of_dev, len(runs)) | ({"color": GREY} if several else {})
        lines.append((style, "dev" if of_dev else "training"))
    legend = panel.legend(
        [Line2D([], [], **style) for style, _ in lines], [label for _, label in lines], loc="upper left",
        bbox_to_anchor=(1.04, 1.0), frameon=False, borderaxespad=0, handlelength=2.2, borderpad=0,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set(**text_style(9))
