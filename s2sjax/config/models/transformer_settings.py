"""Settings of the Transformer."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.models.specs import AttentionWindow, DecoderSpec, EncoderSpec, ModelSettings, Tie
from s2sjax.config.settings import at_least, must_be, require, settings


@settings
class Transformer(ModelSettings):
    """Vaswani et al. 2017: self-attention, all positions in parallel."""

    scans_time = False

    width: int = 512
    """width of the residual stream"""
    heads: int = 8
    """number of attention heads, each of width `width` / `heads`"""
    feedforward: int = 2048
    """width of the hidden layer of the feed-forward networks"""
    encoder_layers: int = 6
    """number of encoder blocks"""
    decoder_layers: int = 6
    """number of decoder blocks"""
    norm: Literal["post", "pre"] = "post"
    """position of the layer norm: after each sub-layer, as published, or before it"""
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "sinusoidal"
    """kind of position encoding: see s2sjax/core/attention/position_encodings.py"""
    join_positions: Literal["sum", "concat"] = "sum"
    """use of sinusoidal or learned positions: added to the embedding, or concatenated and projected to `width`"""
    max_length: int = 512
    """maximum sequence length for learned positions"""
    window: int = 0
    """reach of self-attention to either side, in positions; 0 for no limit"""
    tie: Tie = "output"
    """tied matrices: target embedding and output layer, or also the source embedding (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def embedding_size(self) -> int:  # type: ignore[override]
        return self.width

    @property
    def takes_segments(self) -> bool:  # type: ignore[override]
        return self.window == 0

    @property
    def max_positions(self) -> int | None:
        return self.max_length if self.positions == "learned" else None

    @property
    def attention_window(self) -> AttentionWindow:
        return AttentionWindow("window", self.window, False, "0")

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.width)

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(self.width)

    def __post_init__(self):
        at_least(1, self, "model", "width", "heads", "feedforward", "encoder_layers", "decoder_layers", "max_length")
        at_least(0, self, "model", "window")
        must_be("in [0, 1)", self, "model", "dropout")
        require(
            self.width % self.heads == 0,
            f"model.width {self.width} is not divisible by model.heads {self.heads}: "
            f"try width {self.heads * max(1, round(self.width / self.heads))}",
        )
        require(
            self.positions != "sinusoidal" or self.width % 2 == 0,
            f"model.width {self.width} must be even for sinusoidal positions",
        )
        require(
            self.positions != "rotary" or self.width // self.heads % 2 == 0,
            f"model.width {self.width} / model.heads {self.heads} must be even for rotary positions",
        )
        require(
            self.join_positions == "sum" or self.positions in ("sinusoidal", "learned"),
            f"model.join_positions '{self.join_positions}' requires one vector per position: "
            f"set model.positions to sinusoidal or learned, not {self.positions}",
        )
