"""Configurations of convolutional and dense models. See s2sjax/config/models.py for the others."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.models import CellName, check_dropout
from s2sjax.config.settings import at_least, require, settings
from s2sjax.config.specs import Carries, DecoderSpec, EncoderSpec, ModelSettings, RecurrentSpec, Tie, check_tie

Shapes = tuple[tuple[int, int], ...]


@settings
class RCTM(ModelSettings):
    """Kalchbrenner and Blunsom 2013, the recurrent continuous translation model I: convolutions read, a cell writes."""

    width: int = 256
    """of the convolutions and of the decoder state"""
    embedding: int = 256
    """width of the token embedding; 0: one-hot vectors"""
    kernels: tuple[int, ...] = (2, 3, 4)
    """kernel width of each convolution, from the lowest"""
    activation: Literal["tanh", "relu", "gated"] = "tanh"
    """of each convolution; `gated` is the gated linear unit"""
    residual: bool = False
    """residual connections where the widths agree"""
    pool: Literal["mean", "max"] = "mean"
    """how the vectors of all positions become the sentence vector"""
    cell: CellName = "rnn"
    """the recurrent cell: see s2sjax/core/cells.py"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (needs a shared vocabulary)"""
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
        # The vector of the whole sentence stands for the last carry of a plain cell.
        return EncoderSpec(self.width, Carries("rnn", (self.width,)))

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(None, Carries("rnn", (self.width,)))

    def __post_init__(self):
        at_least(1, self, "model", "width")
        at_least(0, self, "model", "embedding")
        require(len(self.kernels) > 0, "model.kernels is empty: name at least one")
        require(min(self.kernels) >= 1, f"model.kernels is {self.kernels}: each must be at least 1")
        check_dropout(self)
        check_tie(self, self.width)


@settings
class ConvS2S(ModelSettings):
    """Gehring et al. 2017: convolutions with gated linear units, and attention in every layer of the decoder."""

    scans_time = False

    embedding: int = 256
    """width of a token, of what attention compares, and of what the output layer reads"""
    encoder_layers: Shapes = ((256, 3),) * 4
    """(width, kernel) of each encoder block"""
    decoder_layers: Shapes = ((256, 3),) * 3
    """(width, kernel) of each decoder block"""
    max_length: int = 512
    """longest sequence that the learned positions can address"""
    weight_norm: bool = True
    """weight normalization (Salimans and Kingma 2016)"""
    scale_gradient: bool = True
    """divide the encoder's gradient by twice the number of attentions"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def max_positions(self) -> int:
        return self.max_length

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.embedding)

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(self.embedding)

    def __post_init__(self):
        at_least(1, self, "model", "embedding", "max_length")
        _check_shapes(self, "encoder_layers", "decoder_layers")
        check_dropout(self)


@settings
class LSTMDense(ModelSettings):
    """An LSTM reads both ways, dense layers write: each token from the state of its own position, all at once.

    For sources and targets of matched lengths. The decoder is no language model: no token knows another.
    """

    attends_own_position = True

    width: int = 512
    """of the states; each direction has half of it"""
    embedding: int = 256
    """width of the token embedding; 0: one-hot vectors"""
    layers: int = 1
    """recurrent layers"""
    cell: CellName = "lstm"
    """the recurrent cell: see s2sjax/core/cells.py"""
    decoder_layers: int = 1
    """hidden layers between a state and the output layer"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def recurrent_encoder(self) -> RecurrentSpec:
        return RecurrentSpec(self.cell, self.width, self.layers, bidirectional=self.layers)

    @property
    def decoder_is_products(self) -> bool:
        return True

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.width, Carries(self.cell, (self.width,) * self.layers))

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(self.width)

    def __post_init__(self):
        at_least(1, self, "model", "width", "layers")
        at_least(0, self, "model", "embedding", "decoder_layers")
        check_dropout(self)
        check_tie(self, self.width)
        require(
            self.width % 2 == 0,
            f"model.width is {self.width}: it must be even to be halved between two directions",
        )


@settings
class DenseDense(ModelSettings):
    """Dense layers read a window around each position, dense layers write its token: a network without recurrence."""

    scans_time = False
    attends_own_position = True

    width: int = 512
    """of the hidden layers"""
    embedding: int = 256
    """width of the token embedding; 0: one-hot vectors"""
    window: int = 7
    """tokens that a position sees, itself in their middle"""
    encoder_layers: int = 1
    """hidden layers; the first reads the window"""
    decoder_layers: int = 1
    """hidden layers between those and the output layer"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def encoder_is_products(self) -> bool:
        return True

    @property
    def decoder_is_products(self) -> bool:
        return True

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.width)

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(self.width)

    def __post_init__(self):
        at_least(1, self, "model", "width", "window", "encoder_layers")
        at_least(0, self, "model", "embedding", "decoder_layers")
        check_dropout(self)
        check_tie(self, self.width)
        require(
            self.window % 2 == 1,
            f"model.window is {self.window}: it must be odd to have a middle, try {self.window + 1}",
        )


def _check_shapes(config, *names: str) -> None:
    for name in names:
        shapes = getattr(config, name)
        require(len(shapes) > 0, f"model.{name} is empty: name at least one (width, kernel) pair")
        require(
            all(width >= 1 and kernel >= 1 for width, kernel in shapes),
            f"model.{name} is {shapes}: every width and kernel must be at least 1",
        )
