"""Settings of convolutional models."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.models.recurrent_settings import CellName
from s2sjax.config.models.specs import Carries, DecoderSpec, EmbeddedModel, EncoderSpec, ModelSettings, Tie
from s2sjax.config.settings import at_least, must_be, require, settings

Shapes = tuple[tuple[int, int], ...]


@settings
class RCTM(EmbeddedModel):
    """Kalchbrenner and Blunsom 2013, translation model I: a convolutional encoder and a recurrent decoder."""

    width: int = 256
    """width of the convolutions and of the decoder state"""
    kernels: tuple[int, ...] = (2, 3, 4)
    """kernel width of each convolution, from the lowest"""
    activation: Literal["tanh", "relu", "gated"] = "tanh"
    """activation function of each convolution; `gated` is the gated linear unit"""
    residual: bool = False
    """whether layers have residual connections, where the widths agree"""
    pool: Literal["mean", "max"] = "mean"
    """pooling of all positions into the sentence vector"""
    cell: CellName = "rnn"
    """recurrent cell: see s2sjax/core/recurrence/cells.py"""
    tie: Tie = "none"
    """tied matrices: target embedding and output layer, or also the source embedding (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def encoder_is_products(self) -> bool:
        return self.activation != "gated"

    @property
    def decoder_is_products(self) -> bool:
        return self.cell == "rnn"

    @property
    def encoder_spec(self) -> EncoderSpec:
        # The sentence vector takes the place of the final carry of a plain cell.
        return EncoderSpec(self.width, Carries("rnn", (self.width,)))

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(None, Carries("rnn", (self.width,)))

    def __post_init__(self):
        self.check(output=self.width)
        require(len(self.kernels) > 0, "model.kernels is empty: give at least one width")
        require(min(self.kernels) >= 1, f"model.kernels is {self.kernels}: each must be at least 1")


@settings
class ConvS2S(ModelSettings):
    """Gehring et al. 2017: convolutions with gated linear units, and attention in every layer of the decoder."""

    embedding_size: int = 256
    """width of the token embedding, of queries and keys, and of the output layer's input"""
    encoder_layers: Shapes = ((256, 3),) * 4
    """(width, kernel) of each encoder block"""
    decoder_layers: Shapes = ((256, 3),) * 3
    """(width, kernel) of each decoder block"""
    max_length: int = 512
    """maximum sequence length for the learned positions"""
    weight_norm: bool = True
    """whether to use weight normalization (Salimans and Kingma 2016)"""
    scale_gradient: bool = True
    """whether to divide the encoder's gradient by twice the number of attention layers"""
    tie: Tie = "none"
    """tied matrices: target embedding and output layer, or also the source embedding (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def max_positions(self) -> int:
        return self.max_length

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.embedding_size)

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(self.embedding_size)

    def __post_init__(self):
        at_least(1, self, "model", "embedding_size", "max_length")
        must_be("in [0, 1)", self, "model", "dropout")
        for name in ("encoder_layers", "decoder_layers"):
            shapes = getattr(self, name)
            require(len(shapes) > 0, f"model.{name} is empty: give at least one (width, kernel) pair")
            require(
                all(width >= 1 and kernel >= 1 for width, kernel in shapes),
                f"model.{name} is {shapes}: every width and kernel must be at least 1",
            )
