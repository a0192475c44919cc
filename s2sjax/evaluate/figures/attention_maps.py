"""Attention maps: the weights of each target piece over the source pieces.

Figures are plain `Figure` objects. They use neither pyplot nor the global style, so they do not affect the other plots
of a notebook. The suffix of the path chooses the format (.png, .svg, .pdf).

A figure is one inch square, so that figure coordinates are inches, and saving crops it to its content. Axes are
placed in inches from the top left corner.

Letters: S source pieces, T target pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from s2sjax.errors import UserError
from s2sjax.evaluate.figures.search_trees import search_tree as search_tree
from s2sjax.evaluate.figures.style import (
    BACKGROUND,
    GREY,
    Drawing,
    PathLike,
    Target,
    ignore_missing_glyphs,
    new_figure,
    save,
    text_style,
)
from s2sjax.evaluate.metrics.edit_distance import printable, text_width
from s2sjax.evaluate.prediction.attention_heads import SIDES, Kind

ATTENTION_COLOURS = LinearSegmentedColormap.from_list(
    "attention", ["#f4f6f8", "#c9dbec", "#6fa3cf", "#1f5a96", "#0c2a4d"]
)


class AttentionMap(NamedTuple):
    """The attention weights [T, S] of one output: row t belongs to target piece t. Notebooks display it as a figure."""

    source: Sequence[str]
    target: Sequence[str]
    weights: Any
    title: str | None = None
    of: Kind = "cross"

    def save(self, path: PathLike) -> Path:
        """Saves the map as a .png, .svg or .pdf file."""
        return self._drawing().save(path)

    def _repr_png_(self) -> bytes:
        return self._drawing()._repr_png_()

    def _drawing(self) -> Drawing:
        return Drawing(lambda target: attention_grid(target, [self], columns=1))


# ------------------------------------------------------------------------------------- attention


def attention_map(
    path: Target, source_pieces: Sequence[str], target_pieces: Sequence[str], weights: Any, title: str | None = None
) -> None:
    """Draws `weights` [T, S] as square cells, darker for larger weights: source along the top, target down the side."""
    attention_grid(path, [AttentionMap(source_pieces, target_pieces, weights, title)], columns=1)


def attention_grid(path: Target, maps: Sequence[AttentionMap], columns: int = 3) -> None:
    """Draws several maps, row by row, with the same cell size and colour scale: 0 to the largest weight."""
    if not maps:
        raise UserError("there are no attention maps to draw: give at least one")
    if columns < 1:
        raise UserError(f"columns is {columns}: it must be at least 1")
    tables = [_checked_weights(one) for one in maps]
    columns = min(columns, len(maps))
    rows = -(-len(maps) // columns)
    across, down = (columns * max(t.shape[1] for t in tables), rows * max(t.shape[0] for t in tables))
    cell = _cell_inches(max(across, *(len(table) for table in tables)), max(across, down))
    points = float(np.clip(36 * cell, 4, 11))  # half as tall as a cell
    finite = np.concatenate([table[np.isfinite(table)] for table in tables])
    top = float(finite.max(initial=0)) or 1.0

    figure = new_figure()
    panels = [_draw_map(figure, one, table, top, cell, points) for one, table in zip(maps, tables)]
    right = _arrange(figure, panels, columns, gap=2.5 * points / 72)
    _draw_scale(figure, panels[0], right + 1.5 * points / 72, top, points)
    save(figure, path)


def _checked_weights(one: AttentionMap) -> np.ndarray:
    """Checks and returns the weights [T, S] of a map; at least one cell, even if the source or the target is empty."""
    weights = np.asarray(one.weights, dtype=np.float32)
    T, S = len(one.target), len(one.source)
    if weights.shape != (T, S) and (weights.size or T * S):
        raise UserError(
            f"attention weights have shape {weights.shape}, but there are {T} target and {S} source pieces: "
            "give weights [target, source]"
        )
    return weights if weights.size else np.zeros((max(T, 1), max(S, 1)), np.float32)


def _cell_inches(longest: int, total: int) -> float:
    """The side length of a cell: `longest` cells take about nine inches, and `total` cells at most forty."""
    return min(float(np.clip(9 / longest, 0.13, 0.40)), 40 / total)


def _draw_map(figure: Figure, one: AttentionMap, table: np.ndarray, top: float, cell: float, points: float) -> Axes:
    T, S = table.shape
    panel = figure.add_axes((0, -T * cell, S * cell, T * cell))
    panel.imshow(table, cmap=ATTENTION_COLOURS, vmin=0, vmax=top, aspect="auto", interpolation="nearest")
    labels = [printable(piece) for piece in one.source]
    panel.xaxis.tick_top()
    for tick in panel.set_xticks(range(len(labels)), labels, **text_style(points)):
        tick.label2.set_rotation(90 if len(tick.label2.get_text()) > 2 else 0)
    panel.set_yticks(range(len(one.target)), [printable(piece) for piece in one.target], **text_style(points))
    panel.tick_params(length=0, pad=0.4 * points)
    # Thin lines between the cells help to find the two labels of a cell.
    panel.set_xticks(np.arange(S + 1) - 0.5, minor=True)
    panel.set_yticks(np.arange(T + 1) - 0.5, minor=True)
    panel.tick_params(which="minor", length=0)
    panel.grid(which="minor", color=BACKGROUND, linewidth=0.1 * points)
    panel.spines[:].set_visible(False)
    panel.xaxis.set_label_position("top")
    seen, sees = SIDES[one.of]
    panel.set_xlabel(seen, labelpad=0.4 * points, **text_style(0.8 * points) | {"color": GREY})
    panel.set_ylabel(sees, labelpad=0.4 * points, **text_style(0.8 * points) | {"color": GREY})
    if one.title:
        # A title must not be wider than the map and its labels, where the next map begins.
        most = max(12, round((S + 3) * cell * 72 / (0.65 * points)))
        title = shortened(" ".join(printable(word) for word in one.title.split(" ")), most)
        panel.set_title(title, loc="left", pad=0.9 * points, fontweight="bold", **text_style(1.1 * points))
    return panel


def shortened(text: str, most: int) -> str:
    return text if text_width(text) <= most else text[: most - 1] + "…"


def _arrange(figure: Figure, panels: Sequence[Axes], columns: int, gap: float) -> float:
    """Moves the panels into a grid with room for their labels, and returns its right edge."""
    with ignore_missing_glyphs():
        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = [
            (panel.get_tightbbox(renderer) or panel.bbox).transformed(figure.transFigure.inverted()) for panel in panels
        ]
    places = [panel.get_position() for panel in panels]

    def edges(before: Sequence[float], after: Sequence[float], lines: Sequence[int]) -> tuple[list[float], float]:
        """Computes the start of each line (row or column) of the grid, and the end of the last one.

        Panel i is in line `lines[i]`; it needs `before[i]` inches before its first cell and `after[i]` inches after.
        """
        at, begins = 0.0, []
        for line in range(max(lines) + 1):
            members = [i for i, of in enumerate(lines) if of == line]
            begins.append(at + max(before[i] for i in members))
            at = begins[-1] + max(after[i] for i in members) + gap
        return begins, at - gap

    xs, right = edges([-box.x0 for box in boxes], [box.x1 for box in boxes], [i % columns for i in range(len(boxes))])
    ys, _ = edges([box.y1 for box in boxes], [-box.y0 for box in boxes], [i // columns for i in range(len(boxes))])
    for i, (panel, place) in enumerate(zip(panels, places)):
        panel.set_position((xs[i % columns], -ys[i // columns] - place.height, place.width, place.height))
    return right


def _draw_scale(figure: Figure, panel: Axes, left: float, top: float, points: float) -> None:
    """Draws a narrow colour bar to the right of the grid, next to its first row."""
    beside = panel.get_position()
    height = min(beside.height, 1.5)
    strip = figure.add_axes((left, beside.y1 - height, 0.9 * points / 72, height))
    bar = figure.colorbar(panel.images[0], cax=strip)
    bar.outline.set_visible(False)
    bar.set_ticks([0, top], labels=["0", f"{top:.2g}"])
    bar.set_label("attention weight", labelpad=0.2 * points, **text_style(0.8 * points) | {"color": GREY})
    strip.tick_params(length=0, pad=0.3 * points, labelsize=0.8 * points, labelcolor=GREY)
