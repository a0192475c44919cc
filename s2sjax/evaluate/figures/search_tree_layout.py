"""The nodes of a beam search tree: which continuations lead to an output, and where to draw them.

Letters: G groups, W prefixes per group, L steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from s2sjax.core.search.hypotheses import Hypotheses, Tree
from s2sjax.core.special_tokens import EOS
from s2sjax.evaluate.metrics.edit_distance import printable


class Node(NamedTuple):
    """One continuation. The root, <sos>, is not a node: its children have parent -1."""

    parent: int  # index of the parent node
    token: int
    step: int
    log_prob: float  # log-probability of the whole prefix
    ended: bool  # whether the node finishes a hypothesis


def nodes(tree: Tree) -> list[Node]:
    """Lists all possible continuations of one sentence by group and step; the leaves of `tree` are [G, L, ...]."""
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


class Arranged(NamedTuple):
    """The nodes of a search, and how to draw each of them."""

    nodes: list[Node]
    rows: list[float]
    """row of each node, counted from the top; a parent is in the middle of its children"""
    root: float
    """row of <sos>"""
    kept: list[bool]
    """whether each node leads to a finished output"""
    best: set[int]
    """nodes of the best output"""
    ranks: dict[int, int]
    """{finished node: rank of its output}; 1 is the best"""


def arrange(tree: Tree, found: Hypotheses) -> Arranged:
    """Arranges the `tree` [G, L, ...] and the hypotheses `found` [n, ...] of one sentence for drawing."""
    every = nodes(tree)
    outputs = [
        tuple(tokens[:length]) for tokens, length in zip(found.tokens.tolist(), found.lengths.tolist()) if length
    ]
    sentences = {number: sentence(every, number) for number, node in enumerate(every) if node.ended}
    ranks = {number: outputs.index(tokens) + 1 for number, tokens in sentences.items() if tokens in outputs}
    best = next((path(every, number) for number, rank in ranks.items() if rank == 1), [])  # of the first group
    return Arranged(every, *heights(every), leads_to_end(every), set(best), ranks)


def path(all_nodes: Sequence[Node], number: int) -> list[int]:
    """The nodes from the root to a node."""
    found = []
    while number >= 0:
        found.append(number)
        number = all_nodes[number].parent
    return found[::-1]


def sentence(all_nodes: Sequence[Node], number: int) -> tuple[int, ...]:
    """The tokens from the root to a node."""
    return tuple(all_nodes[each].token for each in path(all_nodes, number))


def labels(all_nodes: Sequence[Node], pieces: Callable[[Sequence[int]], list[str]]) -> list[str]:
    """The text of the token of each node. pieces: function from tokens to their texts."""
    texts = pieces([node.token for node in all_nodes])
    return ["<eos>" if node.token == EOS else printable(text) for node, text in zip(all_nodes, texts)]


def leads_to_end(all_nodes: Sequence[Node]) -> list[bool]:
    """Whether each node is finished or has a finished descendant."""
    kept = [node.ended for node in all_nodes]
    for number in reversed(range(len(all_nodes))):  # children come after their parents
        if kept[number] and all_nodes[number].parent >= 0:
            kept[all_nodes[number].parent] = True
    return kept


def heights(all_nodes: Sequence[Node]) -> tuple[list[float], float]:
    """Computes the row of each node, and the row of the root.

    Leaves have consecutive rows, more likely ones first; a parent is in the middle of its children.
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
