"""Networks over time: the gates of a recurrent cell, and what one output of a stack of layers sees.

Letters: T time steps, H units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from s2sjax.errors import UserError
from s2sjax.evaluate.metrics.edit_distance import printable
from s2sjax.interactive.attention_figures import as_bytes
from s2sjax.interactive.figure import Figure, static_text

MOST_POSITIONS = 40
"""maximal length of a receptive field: more positions are too narrow to point at"""


def gates(tokens: Sequence[str], gates: Mapping[str, Any]) -> Figure:
    """The gates of a recurrent cell over time: a row for each unit, a column for each token.

    tokens: the T tokens that the cell has read
    gates: {name: [T, H] values}. Values between 0 and 1 are blue; negative ones, as of a tanh, are orange.
    """
    if not tokens or not gates:
        raise UserError("there are no tokens or no gates to draw: give at least one of each")
    maps, lines = [], []
    for name, values in gates.items():
        found = np.asarray(values, np.float32)
        if found.ndim != 2 or len(found) != len(tokens) or not found.size:
            raise UserError(f"gate {name!r} has shape {found.shape}, but there are {len(tokens)} tokens: give [T, H]")
        means = [round(float(mean), 3) for mean in np.nan_to_num(found).mean(1)]
        signed = bool(found.min() < 0)
        maps.append({"name": name, "units": found.shape[1], "signed": signed, "means": means,
                     "values": as_bytes((found.T + 1) / 2 if signed else found.T)})  # fmt: skip
        lines.append(f"{name}: " + ", ".join(f"{printable(token)} {mean:.2f}" for token, mean in zip(tokens, means)))
    view = {"tokens": [printable(token) for token in tokens], "gates": maps}
    static = static_text("\n".join(["mean of each gate after each token", *lines]))
    return Figure("gatesFilm", view, ("pixels.js", "film.js", "gates.js"), static, f"gates over {len(tokens)} steps")


@dataclass(frozen=True)
class Convolution:
    """A convolution of `width` positions, `dilation` apart; a causal one sees no later positions."""

    width: int = 3
    dilation: int = 1
    causal: bool = False

    def reads(self, t: int, length: int) -> list[tuple[int, int]]:
        """The nodes (layers down, position) that position t is computed from."""
        first = self.width - 1 if self.causal else (self.width - 1) // 2
        seen = (t + self.dilation * (k - first) for k in range(self.width))
        return [(1, s) for s in seen if 0 <= s < length]

    def __str__(self) -> str:
        dilated = f", dilation {self.dilation}" if self.dilation > 1 else ""
        return f"{'causal ' * self.causal}convolution of width {self.width}{dilated}"


@dataclass(frozen=True)
class Recurrence:
    """A recurrent layer, from left to right; with `reverse`, from right to left."""

    reverse: bool = False

    def reads(self, t: int, length: int) -> list[tuple[int, int]]:
        before = t + 1 if self.reverse else t - 1
        return [(1, t)] + ([(0, before)] if 0 <= before < length else [])

    def __str__(self) -> str:
        return f"recurrence{' from right to left' * self.reverse}"


@dataclass(frozen=True)
class SelfAttention:
    """Self-attention: over all positions, over the past if `causal`, over `window` positions to each side if not 0."""

    causal: bool = False
    window: int = 0

    def reads(self, t: int, length: int) -> list[tuple[int, int]]:
        near = lambda s: (not self.causal or s <= t) and (not self.window or abs(s - t) <= self.window)
        return [(1, s) for s in range(length) if near(s)]

    def __str__(self) -> str:
        within = f" within {self.window}" if self.window else ""
        return f"{'causal ' * self.causal}self-attention{within}"


Layer = Convolution | Recurrence | SelfAttention


def receptive_fields(length: int, layers: Sequence[Layer] | Mapping[str, Sequence[Layer]]) -> Figure:
    """What one output sees: from the output to the inputs, one hop at a time, as the gradient flows back.

    length: number of positions
    layers: the layers of a network from the bottom up; {name: layers} compares several networks
    """
    if not 1 <= length <= MOST_POSITIONS:
        raise UserError(f"length is {length}: choose a number of positions from 1 to {MOST_POSITIONS}")
    networks = dict(layers) if isinstance(layers, Mapping) else {"": layers}
    if not networks or not all(networks.values()):
        raise UserError("there are no layers to draw: give at least one for each network")
    view = {
        "length": length,
        "networks": [
            {
                "name": name,
                "layers": [str(layer) for layer in stack],
                "reads": [[layer.reads(t, length) for t in range(length)] for layer in stack],
            }
            for name, stack in networks.items()
        ],
    }
    lines = []
    for name, stack in networks.items():
        hops = _hops(stack, length)
        title = name or ", ".join(map(str, stack))
        lines.append(f"{title}: the last output sees {len(hops)} of {length} inputs, in at most {max(hops)} hops")
    static = static_text("\n".join(lines))
    return Figure("fieldsFilm", view, ("film.js", "fields.js"), static, f"receptive fields of {length} positions")


def _hops(stack: Sequence[Layer], length: int) -> list[int]:
    """The number of hops from the last output to each input that it sees."""
    hops = {(len(stack), length - 1): 0}
    waiting = [*hops]
    for layer, t in waiting:
        for down, s in stack[layer - 1].reads(t, length) if layer else ():
            if (layer - down, s) not in hops:
                hops[layer - down, s] = hops[layer, t] + 1
                waiting.append((layer - down, s))
    return [count for (layer, _), count in hops.items() if not layer]
