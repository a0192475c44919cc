"""Figures for classifiers: confusion matrices, and texts shaded by attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from s2sjax.evaluate.figures.attention_maps import ATTENTION_COLOURS, shortened
from s2sjax.evaluate.figures.style import BACKGROUND, DPI, GREY, TEXT, Target, ignore_missing_glyphs, new_figure, save
from s2sjax.evaluate.figures.style import text_style as style
from s2sjax.evaluate.metrics.edit_distance import printable


def confusion_matrix(path: Target, table: np.ndarray, names: Sequence[str], title: str = "") -> None:
    """Draws `table` [L, L]: rows are correct labels, columns predicted ones. The colour is the share of the row."""
    labels = [shortened(printable(name), 24) for name in names]
    count = len(labels)
    cell = float(np.clip(6 / max(count, 1), 0.22, 0.6))
    points = float(np.clip(20 * cell, 5, 11))
    figure = new_figure()
    panel = figure.add_axes((0, 0, count * cell, count * cell))
    share = table / np.maximum(table.sum(1, keepdims=True), 1)
    panel.imshow(share, cmap=ATTENTION_COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for row, column in np.ndindex(*table.shape):
        if table[row, column]:
            colour = BACKGROUND if share[row, column] > 0.5 else TEXT
            text = style(0.85 * points) | {"color": colour}
            panel.text(column, row, f"{table[row, column]:,}", ha="center", va="center", **text)
    panel.xaxis.tick_top()
    panel.xaxis.set_label_position("top")
    for tick in panel.set_xticks(range(count), labels, **style(points)):
        tick.label2.set_rotation(90 if max(map(len, labels)) > 4 else 0)
    panel.set_yticks(range(count), labels, **style(points))
    panel.tick_params(length=0, pad=4)
    panel.spines[:].set_visible(False)
    panel.set_xlabel("predicted", labelpad=4, **style(0.9 * points) | {"color": GREY})
    panel.set_ylabel("correct", labelpad=4, **style(0.9 * points) | {"color": GREY})
    if title:
        panel.set_title(title, loc="left", pad=8, fontweight="bold", **style(1.1 * points))
    save(figure, path)


class ShadedText(NamedTuple):
    """A text whose words are shaded by their attention weights."""

    words: Sequence[str]
    weights: np.ndarray  # [len(words)]
    caption: str
    correct: bool = True


def shaded_texts(path: Target, texts: Sequence[ShadedText], inches: float = 9.0, points: float = 10.0) -> None:
    """Draws each text as lines of words. The colour of a word is its weight relative to the largest in the text."""
    figure = new_figure()
    line, gap = 1.9 * points / 72, 0.45 * points / 72
    with ignore_missing_glyphs():
        renderer = FigureCanvasAgg(figure).get_renderer()
        y = 0.0
        for text in texts:
            caption = style(0.85 * points) | {"color": GREY if text.correct else "#d1603d"}
            figure.text(0, y, text.caption, va="center", **caption)
            x, y = 0.0, y - line
            top = float(np.max(text.weights, initial=0.0)) or 1.0
            for word, weight in zip(text.words, text.weights, strict=True):
                share = float(weight) / top
                colour = style(points) | {"color": BACKGROUND if share > 0.55 else TEXT}
                box = {"boxstyle": "round,pad=0.15", "facecolor": ATTENTION_COLOURS(share), "edgecolor": "none"}
                drawn = figure.text(x, y, printable(word), va="center", bbox=box, **colour)
                width = drawn.get_window_extent(renderer).width / DPI
                if x > 0 and x + width > inches:
                    x, y = 0.0, y - line
                    drawn.set_position((x, y))
                x += width + gap + 0.3 * points / 72
            y -= 1.3 * line
    save(figure, path)
