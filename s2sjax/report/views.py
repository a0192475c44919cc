"""Attention and search trees as plain values, for the report and for live input.

Letters: L layers, N heads, T target pieces, S source pieces.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from s2sjax.core.special_tokens import EOS
from s2sjax.evaluate.figures.search_tree_layout import arrange, labels
from s2sjax.evaluate.metrics.edit_distance import printable
from s2sjax.evaluate.prediction.translator import Translator

View = dict[str, Any]
MOST_NODES = 3000
"""maximal number of nodes of a tree: larger ones are unreadable"""


def attention(
    translator: Translator, params: Any, sources: Sequence[str], targets: Sequence[Sequence[int]], *, heads: bool
) -> list[View | None]:
    """The attention of each source and its output; None for an empty source.

    targets: ids of the outputs, without <eos>. heads: whether to return the weights of each layer and head, if the
    model has several, instead of their mean, which takes less memory.
    """
    ids = [translator.source.encode(source) for source in sources]
    several = heads and translator.has_heads
    found: list[View | None] = [None] * len(sources)
    for index, weights in translator.attention_of(params, ids, [list(each) for each in targets], several, eos=True):
        found[index] = _map(translator, ids[index], targets[index], weights)
    return found


def _map(translator: Translator, source: Sequence[int], target: Sequence[int], weights: np.ndarray) -> View:
    """The view of weights [L, N, T, S] or [T, S], as bytes in base64, 255 for 1. Truncated pieces are left out."""
    *_, T, S = weights.shape
    source, target = [*source[: S - 1], EOS], [*target[: T - 1], EOS]
    layers, heads = weights.shape[:2] if weights.ndim == 4 else (1, 1)
    coded = np.rint(np.clip(np.nan_to_num(weights), 0, 1) * 255).astype(np.uint8)
    return {
        "source": [printable(piece) for piece in translator.source.pieces(source)],
        "target": [printable(piece) for piece in translator.target.pieces(target)],
        "layers": layers,
        "heads": heads,
        "weights": base64.b64encode(coded.tobytes()).decode("ascii"),
    }


def tree(translator: Translator, params: Any, line: str) -> View | None:
    """The beam search of a line; None if the line is blank or the tree has too many nodes.

    A node is [parent, piece, log-probability, row, marks, rank]; the parent of the first nodes is -1. marks: 1 for a
    finished output, 2 if a finished output follows, 4 on the path of the best output. rank: rank of an output, or 0.
    """
    if not line.strip():
        return None
    nodes, rows, _, kept, best, ranks = arrange(*translator.tree(params, line))
    if not 0 < len(nodes) <= MOST_NODES:
        return None
    pieces = labels(nodes, translator.target.pieces)
    marks = [node.ended + 2 * kept[n] + 4 * (n in best) for n, node in enumerate(nodes)]
    return {
        "nodes": [
            [node.parent, pieces[n], round(node.log_prob, 3), rows[n], marks[n], ranks.get(n, 0)]
            for n, node in enumerate(nodes)
        ]
    }
