"""The figure of a claim: panels of lines or bars, with means and their spread over seeds."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from s2sjax.evaluate.figures import style
from s2sjax.evaluate.figures.training_curves import SERIES

WIDTH, HEIGHT, GAP = 3.5, 2.5, 0.85
DPI, COLOURS = 110, 64
"""resolution and number of colours, which keep the files small"""


class Panels:
    """A row of panels: `add` adds one, `save` writes the file."""

    def __init__(self) -> None:
        self.figure: Figure = style.new_figure()
        self._left = 0.0

    def add(self, title: str, x: str, y: str, width: float = WIDTH) -> Axes:
        panel = self.figure.add_axes((self._left, 0, width, HEIGHT))
        self._left += width + GAP
        panel.set_title(title, loc="left", pad=8, fontweight="bold", **style.text_style(10))
        panel.set_xlabel(x, **style.text_style(9) | {"color": style.GREY})
        panel.set_ylabel(y, **style.text_style(9) | {"color": style.GREY})
        panel.grid(axis="y", color=style.GRID)
        panel.set_axisbelow(True)
        panel.tick_params(which="both", length=0, labelsize=8.5, colors=style.TEXT)
        panel.spines[:].set_visible(False)
        return panel

    def save(self, path: Path) -> None:
        """Writes the figure with a palette of few colours, which takes a third of the bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        self.figure.savefig(buffer, dpi=DPI, bbox_inches="tight", pad_inches=0.12)
        Image.open(buffer).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def colour(number: int) -> str:
    return SERIES[number % len(SERIES)]


def lines(
    panel: Axes,
    x: Sequence[float],
    curves: Mapping[str, Sequence[Sequence[float]]],
    marker: str = "o",
    first: int = 0,
    geometric: bool = False,
) -> None:
    """Draws curves[label][seed][place]: the mean over seeds as a line, the lowest to the highest as a band."""
    for number, (label, seeds) in enumerate(curves.items(), start=first):
        values = np.asarray(seeds, float)
        mean = np.exp(np.log(values).mean(0)) if geometric else values.mean(0)
        panel.plot(x, mean, color=colour(number), label=label, linewidth=1.8, marker=marker, markersize=4)
        panel.fill_between(x, values.min(0), values.max(0), color=colour(number), alpha=0.15, linewidth=0)


def by_length(panel: Axes, buckets: Sequence[Sequence[int]], curves: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Draws curves[label][seed][bucket] over buckets of lengths (lowest, highest)."""
    places = range(len(buckets))
    lines(panel, places, curves)
    panel.set_xticks(places, [f"{low} to {high}" for low, high in buckets])
    key(panel)


def bars(panel: Axes, values: Mapping[str, Sequence[float]], first: int = 0) -> None:
    """Draws a bar for each mean, and a dot for each seed."""
    for number, (_, seeds) in enumerate(values.items()):
        panel.bar(number, np.mean(seeds), 0.6, color=colour(number + first), alpha=0.75)
        panel.scatter([number] * len(seeds), seeds, s=14, color=style.TEXT, zorder=3)
    panel.set_xticks(range(len(values)), list(values))


def key(panel: Axes, place: str = "best") -> None:
    panel.legend(frameon=False, loc=place, fontsize=8.5, labelcolor=style.TEXT)
