"""Draws a beam search as a tree: all continuations that were ranked, which of them were pruned, and the best output.

Letters: G groups, W prefixes per group, L steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from s2sjax.core.search.hypotheses import Hypotheses, Tree
from s2sjax.errors import UserError
from s2sjax.evaluate.figures import search_tree_layout
from s2sjax.evaluate.figures.search_tree_layout import Node, arrange
from s2sjax.evaluate.figures.search_tree_layout import nodes as nodes
from s2sjax.evaluate.figures.style import (
    DPI,
    TEXT,
    Drawing,
    PathLike,
    Target,
    ignore_missing_glyphs,
    new_figure,
    save,
    text_style,
)

PRUNED, BEST = "#9aa3af", "#1f5a96"
ROW_HEIGHT = 0.24  # inches between leaves
FORK = 0.16  # inches from the end of a branch to its continuations
POINTS, SMALL = 8, 5.5


class SearchTree(NamedTuple):
    """The beam search of one sentence. Notebooks draw it; `s2sjax.interactive.beam_search` shows it step by step."""

    tree: Tree
    """[G, L, ...] search tree of one sentence"""
    found: Hypotheses
    """[n, ...] hypotheses of the sentence"""
    pieces: Callable[[Sequence[int]], list[str]]
    """function from tokens to their texts"""

    def save(self, path: PathLike) -> Path:
        """Saves the tree as a .png, .svg or .pdf file."""
        return self._drawing().save(path)

    def _repr_png_(self) -> bytes:
        return self._drawing()._repr_png_()

    def _drawing(self) -> Drawing:
        return Drawing(lambda target: search_tree(target, *self))


def search_tree(path: Target, tree: Tree, found: Hypotheses, pieces: Callable[[Sequence[int]], list[str]]) -> None:
    """Draws a search: each branch is a token, with the log-probability of the output up to this token.

    tree: [G, L, ...] search tree of one sentence
    found: [n, ...] hypotheses of the sentence
    pieces: function from tokens to their texts

    The path of the best output is blue, finished outputs end in a dot with their rank, and pruned branches are grey.
    """
    all_nodes, rows, root, kept, path_of_best, ranks = arrange(tree, found)
    if not all_nodes:
        raise UserError("the search tree is empty: there is nothing to draw")
    labels = search_tree_layout.labels(all_nodes, pieces)
    figure = new_figure()
    widths = _widths(figure, all_nodes, labels)
    # inches from the left edge to the branches of each step
    begins = list(accumulate(widths, lambda begin, width: begin + FORK + width, initial=0.0))
    across, down = begins[-1] + 0.9, ROW_HEIGHT * (2 + max(rows))
    panel = figure.add_axes((0, -down, across, down))
    panel.set(xlim=(0, across), ylim=(max(rows) + 1, -1))
    panel.axis("off")
    panel.text(-0.05, root, "<sos>", ha="right", va="center", **text_style(POINTS))
    for number, node in enumerate(all_nodes):
        best = number in path_of_best
        colour = BEST if best else TEXT if kept[number] else PRUNED
        begin, end, height = begins[node.step], begins[node.step + 1], rows[number]
        from_height = rows[node.parent] if node.parent >= 0 else root
        panel.plot(
            [begin, begin + FORK, end], [from_height, height, height], color=colour, linewidth=1.8 if best else 0.9,
            zorder=4 if best else 3 if kept[number] else 1, solid_capstyle="round", solid_joinstyle="round",
        )  # fmt: skip
        style = text_style(POINTS) | {"color": colour, "fontweight": "bold" if best else "normal", "va": "bottom"}
        panel.annotate(labels[number], (begin + FORK + 0.03, height), (0, 1.5), textcoords="offset points", **style)
        log_prob = text_style(SMALL) | {"color": colour, "va": "bottom", "ha": "right"}
        panel.annotate(f"{node.log_prob:.2f}", (end - 0.04, height), (0, 1.5), textcoords="offset points", **log_prob)
        if node.ended:
            panel.plot([end], [height], marker="o", markersize=3.5, color=colour, zorder=5)
        if number in ranks:
            panel.annotate(f"#{ranks[number]}", (end + 0.07, height), **style | {"va": "center"})
    _draw_legend(figure, down)
    save(figure, path)


def _widths(figure: Figure, all_nodes: Sequence[Node], labels: Sequence[str]) -> list[float]:
    """The length of the branches of each step, in inches, with room for the widest label and its log-probability."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    measured: dict[str, float] = {}
    found: list[float] = [0.0] * (1 + max(node.step for node in all_nodes))
    with ignore_missing_glyphs():
        for node, label in zip(all_nodes, labels):
            if label not in measured:
                text = figure.text(0, 0, label, fontweight="bold", **text_style(POINTS))
                measured[label] = text.get_window_extent(renderer).width / DPI
                text.remove()
            number = 0.055 * len(f"{node.log_prob:.2f}")  # inches of small digits
            found[node.step] = max(found[node.step], measured[label] + number + 0.18)
    return found


def _draw_legend(figure: Figure, down: float) -> None:
    """Draws the legend below the tree."""
    marks = [
        (Line2D([], [], color=BEST, linewidth=1.8), "best output"),
        (Line2D([], [], color=TEXT, linewidth=0.9), "leads to a finished output"),
        (Line2D([], [], color=PRUNED, linewidth=0.9), "pruned"),
        (Line2D([], [], color=TEXT, marker="o", markersize=3.5, linewidth=0), "finished; #1 has the best score"),
        (Line2D([], [], linewidth=0), "small numbers: log-probability of the output so far"),
    ]
    legend = figure.legend(
        *zip(*marks), loc="upper left", bbox_to_anchor=(0, -down - 0.02), frameon=False, borderpad=0, handlelength=1.6,
        borderaxespad=0, labelspacing=0.35,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set(**text_style(POINTS - 1))
