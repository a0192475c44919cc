"""Attention and search trees as plain values, for the report and for live input.

Letters: L layers, N heads, T target pieces, S source pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from s2sjax.core.special_tokens import EOS
from s2sjax.evaluate.prediction.attention_heads import Kind
from s2sjax.evaluate.prediction.translator import Translator
from s2sjax.interactive.attention_figures import attention_view
from s2sjax.interactive.search_figures import tree_view

View = dict[str, Any]


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


def heads(
    translator: Translator, params: Any, sources: Sequence[str], targets: Sequence[Sequence[int]], kinds: Sequence[Kind]
) -> list[dict[Kind, View]]:
    """For each source and its output, the attention of these kinds by layer and head; {} for an empty source."""
    ids = [translator.source.encode(source) for source in sources]
    found: list[dict[Kind, View]] = [{} for _ in sources]
    for of in kinds:
        for index, one in translator.heads(params, ids, [list(each) for each in targets], of):
            found[index][of] = attention_view(one.source, one.target, one.weights, of, one.layers)
    return found


def _map(translator: Translator, source: Sequence[int], target: Sequence[int], weights: np.ndarray) -> View:
    """The view of weights [L, N, T, S] or [T, S]. Truncated pieces are left out."""
    *_, T, S = weights.shape
    source, target = [*source[: S - 1], EOS], [*target[: T - 1], EOS]
    return attention_view(translator.source.pieces(source), translator.target.pieces(target), weights)


def tree(translator: Translator, params: Any, line: str) -> View | None:
    """The beam search of a line; None if the line is blank or the tree has too many nodes."""
    if not line.strip():
        return None
    return tree_view(*translator.tree(params, line), translator.target.pieces)
