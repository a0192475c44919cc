"""Draws a beam search as a tree: every continuation that was ranked, which were pruned, and the best output.

Letters: G groups, W prefixes per group, L steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from s2sjax.core.hypotheses import Hypotheses, Tree
from s2sjax.core.tokens import EOS
from s2sjax.errors import UserError
from s2sjax.evaluate.edit import printable
from s2sjax.evaluate.style import DPI, TEXT, Target, ignore_missing_glyphs, new_figure, save, text_style

PRUNED, BEST = "#9aa3af", "#1f5a96"
ROW_HEIGHT = 0.24  # inches between leaves
FORK = 0.16  # inches from the end of a branch to its continuations
POINTS, SMALL = 8, 5.5


class Node(NamedTuple):
    """One continuation. The root, <sos>, is not a node: its children have parent -1."""

    parent: int  # index of its parent node
    token: int
    step: int
    log_prob: float  # of the whole prefix
    ended: bool  # a finished hypothesis


def nodes(tree: Tree) -> list[Node]:
    """Every possible continuation of one sentence, group by group and step by step; leaves of `tree` [G, L, ...]."""
    found: list[Node] = []
    for group in range(len(tree.tokens)):
        one = Tree(*(np.asarray(leaf)[group] for leaf in tree))
        before: dict[int, int] = {}  # live prefix -> its node
        for t in range(len(one.tokens)):
            numbers: dict[int, int] = {}  # continuation -> its node
            for j in np.flatnonzero(one.log_probs[t] > -1e20):
                numbers[int(j)] = len(found)
                parent = before[int(one.parents[t, j])] if t else -1
                found.append(Node(parent, int(one.tokens[t, j]), t, float(one.log_probs[t, j]), bool(one.ended[t, j])))
            before = {w: numbers[int(j)] for w, j in enumerate(one.lives[t]) if int(j) in numbers}
    return found


def search_tree(path: Target, tree: Tree, found: Hypotheses, pieces: Callable[[Sequence[int]], list[str]]) -> None:
    """Draws a search: each branch is a token, with the log-probability of the output up to it.

    `tree` [G, L, ...] and `found` [n, ...] are those of one sentence; `pieces` gives the text of tokens. The path of
    the best output is blue, finished outputs end in a dot with their rank, and pruned branches are grey.
    """
    all_nodes = nodes(tree)
    if not all_nodes:
        raise UserError("the search tree is empty: there is nothing to draw")
    outputs = [
        tuple(tokens[:length]) for tokens, length in zip(found.tokens.tolist(), found.lengths.tolist()) if length
    ]
    sentences = [_sentence(all_nodes, number) for number in range(len(all_nodes))]
    kept = _leads_to_end(all_nodes)
    heights, root = _heights(all_nodes)
    best_path = _best_path(all_nodes, sentences, outputs[0] if outputs else ())
    labels = [
        "<eos>" if node.token == EOS else printable(piece)
        for node, piece in zip(all_nodes, pieces([node.token for node in all_nodes]))
    ]
    figure = new_figure()
    steps = 1 + max(node.step for node in all_nodes)
    widths = _widths(figure, all_nodes, labels)
    begins = [0.0]  # inches from the left edge to the branches of each step
    for step in range(steps):
        begins.append(begins[-1] + FORK + widths[step])
    across, down = begins[-1] + 0.9, ROW_HEIGHT * (2 + max(heights))
    panel = figure.add_axes((0, -down, across, down))
    panel.set(xlim=(0, across), ylim=(max(heights) + 1, -1))
    panel.axis("off")
    panel.text(-0.05, root, "<sos>", ha="right", va="center", **text_style(POINTS))
    for number, node in enumerate(all_nodes):
        best = number in best_path
        colour = BEST if best else TEXT if kept[number] else PRUNED
        begin, end, height = begins[node.step], begins[node.step + 1], heights[number]
        from_height = heights[node.parent] if node.parent >= 0 else root
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
        if node.ended and sentences[number] in outputs:
            rank = f"#{outputs.index(sentences[number]) + 1}"
            panel.annotate(rank, (end + 0.07, height), **style | {"va": "center"})
    _draw_legend(figure, down)
    save(figure, path)


def _widths(figure: Figure, all_nodes: Sequence[Node], labels: Sequence[str]) -> list[float]:
    """The length of the branches of each step, in inches: room for the widest label and its log-probability."""
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
    """What the lines and the numbers mean, below the tree."""
    marks = [
        (Line2D([], [], color=BEST, linewidth=1.8), "best output"),
        (Line2D([], [], color=TEXT, linewidth=0.9), "leads to a finished output"),
        (Line2D([], [], color=PRUNED, linewidth=0.9), "pruned"),
        (Line2D([], [], color=TEXT, marker="o", markersize=3.5, linewidth=0), "finished; #1 has the best score"),
        (Line2D([], [], linewidth=0), "small numbers: log-probability of the output up to there"),
    ]
    legend = figure.legend(
        *zip(*marks), loc="upper left", bbox_to_anchor=(0, -down - 0.02), frameon=False, borderpad=0, handlelength=1.6,
        borderaxespad=0, labelspacing=0.35,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set(**text_style(POINTS - 1))


def _sentence(all_nodes: Sequence[Node], number: int) -> tuple[int, ...]:
    tokens = []
    while number >= 0:
        tokens.append(all_nodes[number].token)
        number = all_nodes[number].parent
    return tuple(reversed(tokens))


def _leads_to_end(all_nodes: Sequence[Node]) -> list[bool]:
    """Whether each node is finished or has a finished descendant."""
    kept = [node.ended for node in all_nodes]
    for number in reversed(range(len(all_nodes))):  # children come after their parents
        if kept[number] and all_nodes[number].parent >= 0:
            kept[all_nodes[number].parent] = True
    return kept


def _best_path(all_nodes: Sequence[Node], sentences: Sequence[tuple[int, ...]], best: tuple[int, ...]) -> set[int]:
    """The nodes on the path to the best output, in the first group that found it."""
    ends = [number for number, node in enumerate(all_nodes) if node.ended and sentences[number] == best]
    path, number = set(), ends[0] if ends else -1
    while number >= 0:
        path.add(number)
        number = all_nodes[number].parent
    return path


def _heights(all_nodes: Sequence[Node]) -> tuple[list[float], float]:
    """The row of each node, and that of the root: leaves in order, more likely ones first; a parent in the middle of
    its children.
    """
    children: dict[int, list[int]] = {}
    for number, node in enumerate(all_nodes):
        children.setdefault(node.parent, []).append(number)
    below = {number: sorted(found, key=lambda n: -all_nodes[n].log_prob) for number, found in children.items()}
    heights = {-1: 0.0}
    order, waiting = [], [-1]
    while waiting:  # depth first, without recursion: an output may have thousands of tokens
        number = waiting.pop()
        order.append(number)
        waiting += reversed(below.get(number, []))
    leaves = [number for number in order if number not in below]
    heights |= {number: float(row) for row, number in enumerate(leaves)}
    for number in reversed(order):  # children come after their parents
        if number in below:
            heights[number] = (heights[below[number][0]] + heights[below[number][-1]]) / 2
    return [heights[number] for number in range(len(all_nodes))], heights[-1]
