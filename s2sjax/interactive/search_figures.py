"""A beam search, frame by frame: its continuations, those that are pruned, and at the end the best output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from s2sjax.core.search.hypotheses import Hypotheses, Tree
from s2sjax.errors import UserError
from s2sjax.evaluate.figures.search_tree_layout import arrange, labels, path
from s2sjax.interactive.figure import Figure, static_text

if TYPE_CHECKING:  # imports Matplotlib
    from s2sjax.evaluate.figures.search_trees import SearchTree

MOST_NODES = 3000
"""maximal number of nodes of a tree: larger ones are unreadable"""


def tree_view(tree: Tree, found: Hypotheses, pieces: Callable[[Sequence[int]], list[str]]) -> dict[str, Any] | None:
    """The values that tree.js draws; None if the tree has no or too many nodes.

    A node is [parent, piece, log-probability, row, marks, rank]; the parent of the first nodes is -1. marks: 1 for a
    finished output, 2 if a finished output follows, 4 on the path of the best output. rank: rank of an output, or 0.
    """
    nodes, rows, _, kept, best, ranks = arrange(tree, found)
    if not 0 < len(nodes) <= MOST_NODES:
        return None
    texts = labels(nodes, pieces)
    marks = [node.ended + 2 * kept[n] + 4 * (n in best) for n, node in enumerate(nodes)]
    return {
        "nodes": [
            [node.parent, texts[n], round(node.log_prob, 3), rows[n], marks[n], ranks.get(n, 0)]
            for n, node in enumerate(nodes)
        ]
    }


def beam_search(tree: SearchTree) -> Figure:
    """A beam search, frame by frame. At each step the continuations appear, then all but the best are pruned.

    tree: what `run.tree(line, beam_size=3)` returns, or `SearchTree(tree, found, pieces)` of
    s2sjax/evaluate/figures/search_trees.py
    """
    view = tree_view(*tree)
    if view is None:
        raise UserError(f"the search tree is empty or has more than {MOST_NODES} nodes: choose a smaller beam_size")
    nodes = arrange(tree.tree, tree.found).nodes
    ranked = sorted((rank, n, log_prob) for n, (*_, log_prob, _, _, rank) in enumerate(view["nodes"]) if rank)
    lines = [
        f"{rank}. {' '.join(view['nodes'][each][1] for each in path(nodes, n))}  (log-probability {log_prob:.2f})"
        for rank, n, log_prob in ranked
    ]
    static = static_text("\n".join(["the outputs of the beam search, best first", *lines]))
    return Figure("beamFilm", view, ("tree.js", "film.js", "beam.js"), static, f"beam search, {len(nodes)} nodes")
