"""Draws a beam search as a tree: every continuation that was ranked, which were pruned, and the best output.

Letters: G groups, W prefixes per group, L steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from s2sjax.core.hypotheses import Hypotheses, Tree
from s2sjax.core.tokens import EOS
from s2sjax.errors import UserError
from s2sjax.evaluate.edit import printable
from s2sjax.evaluate.style import TEXT, PathLike, new_figure, save, text_style

PRUNED, BEST = "#b8bec8", "#1f5a96"
ROW_HEIGHT = 0.21  # inches between leaves


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


def search_tree(path: PathLike, tree: Tree, found: Hypotheses, pieces: Callable[[Sequence[int]], list[str]]) -> None:
    """Draws a search: its tokens, the log-probability of each prefix, the score of each output.

    `tree` [G, L, ...] and `found` [n, ...] are those of one sentence; `pieces` gives the text of tokens. The path of
    the best output is blue, and pruned prefixes are grey.
    """
    all_nodes = nodes(tree)
    if not all_nodes:
        raise UserError("the search tree is empty: there is nothing to draw")
    outputs = [
        tuple(tokens[:length]) for tokens, length in zip(found.tokens.tolist(), found.lengths.tolist()) if length
    ]
    sentences = [_sentence(all_nodes, number) for number in range(len(all_nodes))]
    kept = _leads_to_end(all_nodes)
    heights = _heights(all_nodes)
    best_path = _best_path(all_nodes, sentences, outputs[0] if outputs else ())
    labels = [printable(piece) for piece in pieces([node.token for node in all_nodes])]
    column = 1.1 + 0.08 * max(map(len, labels))  # inches from step to step
    figure = new_figure()
    across, down = column * (2 + max(node.step for node in all_nodes)), ROW_HEIGHT * (1 + max(heights))
    panel = figure.add_axes((0, -down, across, down))
    panel.set(xlim=(0, across / column), ylim=(max(heights) + 1, -1))
    panel.axis("off")
    root = (heights[_most_likely_start(all_nodes)] + heights[_least_likely_start(all_nodes)]) / 2
    panel.text(0.62, root, "<sos>", ha="right", va="center", **text_style(8))
    for number, node in enumerate(all_nodes):
        colour = BEST if number in best_path else TEXT if kept[number] else PRUNED
        from_height = heights[node.parent] if node.parent >= 0 else root
        begin = node.step + 0.65
        panel.plot(
            [begin, begin + 0.1, begin + 0.22, begin + 0.3],
            [from_height, from_height, heights[number], heights[number]],
            color=colour, linewidth=1.6 if number in best_path else 0.8, zorder=3 if kept[number] else 1,
            solid_capstyle="round", solid_joinstyle="round",
        )  # fmt: skip
        score = f"{node.log_prob:.2f}"
        if sentences[number] in outputs and node.ended:
            place = outputs.index(sentences[number])
            score = f"{found.scores[place]:.3f}  #{place + 1}"
        style = text_style(8) | {"color": colour}
        weight = "bold" if number in best_path else "normal"
        word = "<eos>" if node.token == EOS else labels[number]
        at = (begin + 0.33, heights[number])
        label = panel.annotate(word, at, va="center", ha="left", fontweight=weight, **style)
        panel.annotate(
            score, (1, 0.5), xycoords=label, xytext=(3, 0), textcoords="offset points", va="center", ha="left",
            **style | {"fontsize": 5.5},
        )  # fmt: skip
    save(figure, path)


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


def _heights(all_nodes: Sequence[Node]) -> list[float]:
    """The row of each node: leaves in order, more likely ones first; a parent in the middle of its children."""
    children: dict[int, list[int]] = {}
    for number, node in enumerate(all_nodes):
        children.setdefault(node.parent, []).append(number)
    heights, next_leaf = [0.0] * len(all_nodes), 0

    def place(number: int) -> None:
        nonlocal next_leaf
        below = sorted(children.get(number, ()), key=lambda child: -all_nodes[child].log_prob)
        for child in below:
            place(child)
        if below and number >= 0:
            heights[number] = (heights[below[0]] + heights[below[-1]]) / 2
        elif number >= 0:
            heights[number] = next_leaf
            next_leaf += 1

    place(-1)
    return heights


def _most_likely_start(all_nodes: Sequence[Node]) -> int:
    return max((n for n, node in enumerate(all_nodes) if node.parent < 0), key=lambda n: all_nodes[n].log_prob)


def _least_likely_start(all_nodes: Sequence[Node]) -> int:
    return min((n for n, node in enumerate(all_nodes) if node.parent < 0), key=lambda n: all_nodes[n].log_prob)
