"""Settings of stacks whose layers mix positions by recurrences, attention, or both."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from s2sjax.config.choices import OneOf
from s2sjax.config.models.specs import AttentionWindow
from s2sjax.config.models.transformer_settings import Transformer
from s2sjax.config.settings import at_least, require, settings
from s2sjax.core import tables
from s2sjax.core.mixers import MIXERS, Sizes

ATTENTION = {"attention": "every position", "local_attention": "positions within `window`"}
"""mixers that are attention, and what they see"""


class _Mixers(tables.Table):
    """The rows of `MIXERS`, those that a run has added among them, and the kinds of attention."""

    def __init__(self) -> None:
        super().__init__({})

    def __getitem__(self, name: str) -> Any:
        return ATTENTION[name] if name in ATTENTION else MIXERS[name]

    def __iter__(self) -> Iterator[str]:
        yield from (*ATTENTION, *MIXERS)

    def bind(self, name: Any) -> Any:
        return MIXERS.bind(name)


MixerName = Annotated[str, OneOf(_Mixers())]


@settings
class Hybrid(Transformer):
    """Blocks as in the Transformer, whose self-attention is replaced by a recurrence: linear attention, retention, the
    delta rule, Mamba-2, Griffin, xLSTM. The decoder attends to the source as in the Transformer."""

    mixers: tuple[MixerName, ...] = ("gated_delta",)
    """mixer of each layer: attention, local_attention, or a recurrence of s2sjax/core/mixers/layers.py; the pattern
    repeats up to the last layer"""
    decoder_mixers: tuple[MixerName, ...] = ()
    """mixer of each decoder layer; () for those of `mixers`"""
    directions: Literal["both", "alternate"] = "both"
    """directions in which the recurrences of an encoder read: both in each layer, added; or one, which alternates from
    layer to layer"""
    short_convolution: int = 4
    """positions of the short convolution before a recurrence; 1 for its own position alone"""
    state_width: int = 64
    """number of rows of the state of ssd; those of other recurrences follow from `width` and `heads`"""
    expand: int = 2
    """ratio of the inner width of ssd to `width`"""
    activation: Literal["relu", "gelu", "gelu_tanh", "swish"] = "swish"
    """activation of the feed-forward networks; gelu_tanh is the approximation of gelu by tanh"""
    gated: bool = True
    """whether the feed-forward networks are gated: W_2 (activation(W_3 x) * W_1 x) (Shazeer 2020)"""
    norm: Literal["post", "pre"] = "pre"
    """position of the norm: after each sub-layer, or before it"""
    normalization: Literal["layer", "rms"] = "rms"
    """kind of norm: layer norm, or RMS norm, which does not subtract the mean and has no bias"""
    biases: bool = False
    """whether attention and feed-forward networks have biases"""
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "rotary"
    """kind of position encoding; rotary positions rotate the queries and keys of attention alone, and recurrences need
    none"""
    window: int = 128
    """reach of local_attention to either side, in positions"""

    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The mixer of each layer of the encoder, and of the decoder."""
        patterns = (self.mixers, self.decoder_mixers or self.mixers)
        depths = (self.encoder_layers, self.decoder_layers)
        return tuple(tuple(p[i % len(p)] for i in range(depth)) for p, depth in zip(patterns, depths))  # type: ignore

    @property
    def used(self) -> set[str]:
        """The mixers that occur."""
        return set().union(*self.sides())

    @property
    def rotates(self) -> bool:
        return super().rotates and not self.used.isdisjoint(ATTENTION)

    def attention_settings(self, kind: str) -> Transformer:
        """The settings of self-attention: `window` is for local_attention alone."""
        inherited = {field.name: getattr(self, field.name) for field in dataclasses.fields(Transformer)}
        return Transformer(**inherited | {"window": self.window if kind == "local_attention" else 0})

    @property
    def sizes(self) -> Sizes:
        """The sizes of the recurrences."""
        return Sizes(self.width, self.heads, self.state_width, self.short_convolution, self.expand)

    @property
    def takes_segments(self) -> bool:  # type: ignore[override]
        return "local_attention" not in self.used

    @property
    def attention_window(self) -> AttentionWindow | None:  # type: ignore[override]
        return None

    def __post_init__(self):
        at_least(1, self, "model", "heads", "short_convolution", "state_width", "expand", "window")
        require(len(self.mixers) > 0, "model.mixers is empty: name at least one, such as gated_delta")
        require(
            self.head_width == 0,
            f"model.head_width {self.head_width}: the heads of a recurrence divide model.width; set it to 0",
        )
        require(
            self.width % self.heads == 0,
            f"model.width {self.width} is not divisible by model.heads {self.heads}: the heads of a recurrence divide "
            f"it; try width {self.heads * max(1, round(self.width / self.heads))}",
        )
        super().__post_init__()
        of_decoder = "decoder_mixers" if self.decoder_mixers else "mixers"
        for field, depth in (("mixers", "encoder_layers"), (of_decoder, "decoder_layers")):
            names, layers = len(getattr(self, field)), getattr(self, depth)
            require(
                names <= layers,
                f"model.{field} names {names} mixers for {layers} layers: name fewer, or raise model.{depth}",
            )
        require(
            self.positions != "relative",
            "model.positions 'relative' is one table for all layers, which do not all have attention here: use rotary, "
            "sinusoidal, learned or none",
        )
        require(
            "retention" not in self.used or self.width // self.heads % 2 == 0,
            f"model.width {self.width} / model.heads {self.heads} must be even for retention, which rotates its keys",
        )
        require(
            self.adapter_rank == 0,
            f"model.adapter_rank {self.adapter_rank}: low-rank adapters are for the Transformer; set it to 0",
        )
