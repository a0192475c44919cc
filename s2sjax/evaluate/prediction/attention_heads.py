"""Attention by layer and head: of the decoder to the source, and of the encoder and the decoder to themselves.

Letters: L layers, N heads, T positions that attend, S positions that are attended to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from s2sjax.errors import UserError

if TYPE_CHECKING:  # Matplotlib is slow to import
    from s2sjax.evaluate.figures.attention_maps import AttentionMap
    from s2sjax.evaluate.figures.style import Drawing

Kind = Literal["cross", "encoder", "decoder"]
"""cross: the output attends to the source; encoder: the source to itself; decoder: its own input to itself"""
SIDES: dict[Kind, tuple[str, str]] = {
    "cross": ("source", "output"),
    "encoder": ("source", "source"),
    "decoder": ("decoder input", "decoder input"),
}
"""names of what is attended to, and of what attends"""


class AttentionHeads(NamedTuple):
    """The weights [L, N, T, S] of each layer and head. Notebooks display them as small maps, one row for each layer.

    A decoder's own input is `<sos>` and the output before the last piece: at each position it has read a piece, and
    writes the next one.
    """

    source: Sequence[str]
    """the pieces that are attended to"""
    target: Sequence[str]
    """the pieces that attend"""
    weights: np.ndarray
    of: Kind = "cross"
    layers: Sequence[int] = ()
    """the number of each layer, from 1; layers without attention have no weights"""
    title: str | None = None

    def map(self, layer: int | None = None, head: int | None = None) -> AttentionMap:
        """The map of one layer and head, counted from 1; without a number, the mean of all."""
        from s2sjax.evaluate.figures.attention_maps import AttentionMap

        chosen = self.weights[self._places("layer", layer, self.layers)]
        chosen = chosen[:, self._places("head", head, range(1, self.weights.shape[1] + 1))]
        return AttentionMap(self.source, self.target, chosen.mean((0, 1)), self.title, self.of)

    def _places(self, name: str, number: int | None, numbers: Sequence[int]) -> Any:
        if number is None:
            return slice(None)
        if number not in numbers:
            listed = ", ".join(map(str, numbers))
            raise UserError(f"{name} is {number!r}: this attention has the {name}s {listed}, choose one of them")
        return [list(numbers).index(number)]

    def save(self, path: str | Path) -> Path:
        """Saves the maps as a .png, .svg or .pdf file."""
        return self._drawing().save(path)

    def _repr_png_(self) -> bytes:
        return self._drawing()._repr_png_()

    def _drawing(self) -> Drawing:
        from s2sjax.evaluate.figures.attention_maps import attention_grid
        from s2sjax.evaluate.figures.style import Drawing

        heads = range(1, self.weights.shape[1] + 1)
        maps = [self.map(layer, head)._replace(title=f"{layer}.{head}") for layer in self.layers for head in heads]
        return Drawing(lambda target: attention_grid(target, maps, columns=len(heads)))


def check_kind(of: str) -> None:
    if of not in get_args(Kind):
        raise UserError(f"of is {of!r}: choose {', '.join(get_args(Kind)[:-1])} or {get_args(Kind)[-1]}")


def no_self_attention(of: Kind) -> UserError:
    return UserError(f"this model has no self-attention in its {of}: choose another model, or another value of `of`")


def self_attention(of: Kind, pieces: Sequence[str], weights: Mapping[int, Any]) -> AttentionHeads:
    """Self-attention of T pieces from the weights [N, T, T] of each layer, counted from 0; padding is cut off.

    Raises if there are none.
    """
    if not weights:
        raise no_self_attention(of)
    layers, T = sorted(weights), len(pieces)
    stacked = np.stack([np.asarray(weights[layer])[:, :T, :T] for layer in layers])
    return AttentionHeads(pieces, pieces, stacked, of, [layer + 1 for layer in layers])


def of_one_row(of: Kind, pieces: Sequence[str], weights: Mapping[int, Any]) -> AttentionHeads:
    """`self_attention` of a batch of one row, with weights [1, N, T, T]."""
    return self_attention(of, pieces, {layer: each[0] for layer, each in weights.items()})
