"""What an encoder hands over and what a decoder asks for: the facts that decide which of them can be joined.

Each model configuration tells both, as `reader` and `writer`; s2sjax/models/contract.py builds the bridge between.
"""

from __future__ import annotations

from typing import NamedTuple

from s2sjax.config.settings import require


class Carries(NamedTuple):
    """The carries of a recurrent stack: one a layer, from the lowest."""

    cell: str
    widths: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.cell} {' + '.join(map(str, self.widths))}"


class Reader(NamedTuple):
    """What an encoder hands over: `Memory.states` [B, S, states] and `Memory.final`."""

    states: int
    """width of the memory, one vector a source position"""
    carries: Carries | None = None
    """where its recurrent layers end; None for an encoder without any"""


class Writer(NamedTuple):
    """What a decoder asks for."""

    states: int | None
    """width of the memory that it attends to; None for a decoder without attention"""
    carries: Carries | None = None
    """where its recurrent layers begin; None for a decoder without any"""
    alone: str = ""
    """why it writes for no encoder but its own family's; empty where it joins any"""


def check_tie(config, output: int) -> None:
    """Refuses to tie an output layer that reads vectors of width `output` to an embedding of another width."""
    if config.tie == "none":
        return
    require(config.embedding > 0, f"model.tie {config.tie!r} needs an embedding to tie: set model.embedding {output}")
    require(
        config.embedding == output,
        f"model.tie {config.tie!r}: the output layer reads {output} numbers and an embedding has {config.embedding}: "
        f"set model.embedding {output}, or model.tie 'none'",
    )
