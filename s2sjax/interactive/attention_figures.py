"""Attention in motion: the decoder step by step, and all heads side by side.

Letters: L layers, N heads, T target pieces, S source pieces.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from s2sjax.errors import UserError
from s2sjax.evaluate.metrics.edit_distance import printable, text_width
from s2sjax.evaluate.prediction.attention_heads import SIDES, AttentionHeads, Kind
from s2sjax.interactive.figure import Figure, static_text


def attention_view(
    source: Sequence[str], target: Sequence[str], weights: np.ndarray, of: Kind = "cross", numbers: Sequence[int] = ()
) -> dict[str, Any]:
    """The values that attention.js draws: weights [L, N, T, S] or [T, S] as bytes in base64, 255 for 1.

    numbers: the number of each layer, if some have no attention
    """
    layers, heads = weights.shape[:2] if weights.ndim == 4 else (1, 1)
    return {
        "sides": SIDES[of],
        "numbers": [*(numbers or range(1, layers + 1))],
        "source": [printable(piece) for piece in source],
        "target": [printable(piece) for piece in target],
        "layers": layers,
        "heads": heads,
        "weights": as_bytes(weights),
    }


def as_bytes(values: np.ndarray) -> str:
    """Values between 0 and 1 as bytes in base64, 255 for 1; what is not a number is 0."""
    coded = np.rint(np.clip(np.nan_to_num(values), 0, 1) * 255).astype(np.uint8)
    return base64.b64encode(coded.tobytes()).decode("ascii")


def decoding(
    source: Sequence[str],
    target: Sequence[str],
    attention: Any,
    candidates: Sequence[Sequence[tuple[str, float]]] | None = None,
) -> Figure:
    """The decoder step by step: the piece that it writes, and the source pieces that it attends to.

    source, target: the pieces of both sides
    attention: [T, S] weights
    candidates: for each step, the likeliest pieces and their probabilities
    """
    weights = _checked(source, target, attention, 2)
    if candidates is not None and len(candidates) != len(target):
        raise UserError(f"there are candidates for {len(candidates)} steps, but {len(target)} target pieces: give both")
    view = attention_view(source, target, weights)
    view["candidates"] = None
    if candidates is not None:
        view["candidates"] = [[[printable(piece), round(float(p), 3)] for piece, p in each] for each in candidates]
    lines = [
        f"{_left(piece, target)}  <-  {printable(source[best])} ({weights[t, best]:.0%})"
        for t, (piece, best) in enumerate(zip(target, weights.argmax(-1)))
    ]
    title = f"decoding, {len(target)} steps"
    static = static_text("\n".join([" ".join(map(printable, source)), "", *lines]))
    return Figure("decodingFilm", view, ("attention.js", "film.js", "decoding.js"), static, title)


def heads(source: Sequence[str] | AttentionHeads, target: Sequence[str] | None = None, weights: Any = None) -> Figure:
    """The attention of all heads side by side; a click, or Enter, enlarges one.

    Takes what `run.attention_heads` returns, or pieces and weights:

    source, target: the pieces that are attended to, and those that attend
    weights: [L, N, T, S], or [N, T, S] for one layer
    """
    found = source if isinstance(source, AttentionHeads) else AttentionHeads(source, target or (), weights)
    source, target = found.source, found.target
    checked = _checked(source, target, found.weights, 4)
    L, N, *_ = checked.shape
    numbers = found.layers or range(1, L + 1)
    view = attention_view(source, target, checked, found.of, numbers)
    strongest = [
        f"layer {numbers[layer]}, head {head + 1}: "
        + " ".join(printable(source[best]) for best in checked[layer, head].argmax(-1))
        for layer in range(L)
        for head in range(N)
    ]
    static = static_text("\n".join(["where each of " + " ".join(map(printable, target)) + " attends most", *strongest]))
    return Figure("headsFigure", view, ("attention.js", "pixels.js", "heads.js"), static, f"attention, {L} x {N} heads")


def _checked(source: Sequence[str], target: Sequence[str], weights: Any, rank: int) -> np.ndarray:
    """The weights as an array of this rank."""
    found = np.asarray(weights, dtype=np.float32)
    if rank == 4 and found.ndim == 3:
        found = found[None]
    T, S = len(target), len(source)
    if not T or not S:
        raise UserError(f"there are {T} target and {S} source pieces: give at least one of each")
    if found.ndim != rank or found.shape[-2:] != (T, S):
        form = "[layers, heads, target, source]" if rank == 4 else "[target, source]"
        raise UserError(
            f"attention weights have shape {found.shape}, but there are {T} target and {S} source pieces: "
            f"give weights {form}"
        )
    return found


def _left(piece: str, pieces: Sequence[str]) -> str:
    """A piece, padded to the width of the widest."""
    return printable(piece) + " " * (max(text_width(printable(each)) for each in pieces) - text_width(printable(piece)))
