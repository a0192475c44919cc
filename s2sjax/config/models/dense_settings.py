"""Settings of decoders that attend without recurrence."""

from __future__ import annotations

from s2sjax.config.models.recurrent_settings import CellName, RecurrentModel
from s2sjax.config.models.specs import DecoderSpec, EmbeddedModel, EncoderSpec, RecurrentSpec, Tie, check_even
from s2sjax.config.settings import require, settings


@settings
class LSTMDense(RecurrentModel):
    """A bidirectional LSTM encoder and a dense decoder, which predicts each token from the state at its position.

    Suits sources and targets of matched lengths. The tokens of the output do not depend on each other.
    """

    attends_own_position = True

    width: int = 512
    """width of the states; each direction has half of it"""
    layers: int = 1
    """number of recurrent layers"""
    cell: CellName = "lstm"
    """recurrent cell: see s2sjax/core/recurrence/cells.py"""
    decoder_layers: int = 1
    """number of hidden layers between a state and the output layer"""
    tie: Tie = "none"
    """tied matrices: target embedding and output layer, or also the source embedding (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def recurrent_encoder(self) -> RecurrentSpec:
        return RecurrentSpec(self.cell, self.width, self.layers, bidirectional=self.layers)

    @property
    def decoder_is_products(self) -> bool:
        return True

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(self.width)

    def __post_init__(self):
        self.check("layers", nonnegative=("decoder_layers",), output=self.width)
        check_even(self, "width", self.width)


@settings
class DenseDense(EmbeddedModel):
    """A dense encoder that reads a window around each position, and a dense decoder: a network without recurrence."""

    attends_own_position = True

    width: int = 512
    """width of the hidden layers"""
    window: int = 7
    """number of tokens in the window around a position; odd"""
    encoder_layers: int = 1
    """number of hidden layers of the encoder; the first reads the window"""
    decoder_layers: int = 1
    """number of hidden layers of the decoder, before the output layer"""
    tie: Tie = "none"
    """tied matrices: target embedding and output layer, or also the source embedding (needs a shared vocabulary)"""
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
        self.check("window", "encoder_layers", nonnegative=("decoder_layers",), output=self.width)
        require(self.window % 2 == 1, f"model.window is {self.window}: it must be odd, try {self.window + 1}")
