"""What learns: one class a family of models. A combination that cannot work is refused when it is built."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.settings import at_least, require, settings

CellName = Literal[
    "rnn", "lstm", "gru", "lstm_peephole", "lstm_coupled", "gru_after", "rnn_norm", "lstm_norm", "gru_norm", "mingru",
    "minlstm",
]  # fmt: skip
"""the rows of s2sjax/core/cells.py"""
Initial = Literal["orthogonal", "glorot"]
Join = Literal["concatenate", "mean", "project"]


@settings
class RNNsearch:
    """Bahdanau, Cho and Bengio 2014: the previous state asks, the context enters the cell."""

    width: int = 512
    """of the decoder state and of each direction of the encoder"""
    embedding: int = 256
    """width of a token"""
    attention: int = 0
    """width of the additive score's hidden layer; 0 takes `width`"""
    encoder_layers: int = 1
    """bidirectional layers, one upon the other"""
    cell: CellName = "gru"
    """how a state moves: see s2sjax/core/cells.py"""
    readout: Literal["maxout", "tanh"] = "maxout"
    """what stands between the state and the output layer"""
    initial: Initial = "orthogonal"
    """how matrices from state to state begin"""
    dropout: float = 0.1
    """share of activations dropped while training"""
    variational: bool = False
    """dropout draws one mask a sentence, and hides the recurrent state too (Gal and Ghahramani 2016)"""
    zoneout: float = 0.0
    """share of each state that a step leaves as it was (Krueger et al. 2017)"""

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding", "encoder_layers")
        at_least(0, self, "model", "attention")
        _check_rates(self)


@settings
class Luong:
    """Luong, Pham and Manning 2015: stacked cells, the current state asks, the context is read out."""

    width: int = 512
    """of the states"""
    embedding: int = 256
    """width of a token"""
    layers: int = 2
    """cells stacked, in encoder and decoder each"""
    widths: tuple[int, ...] = ()
    """of each layer, where they differ; the last is `width`"""
    cell: CellName = "lstm"
    """how a state moves: see s2sjax/core/cells.py"""
    score: Literal["dot", "scaled_dot", "general", "additive"] = "general"
    """how a state asks: see s2sjax/core/attention.py"""
    input_feeding: bool = True
    """the attentional state enters the next step"""
    bidirectional: bool = False
    """read the source both ways"""
    join: Join = "concatenate"
    """of two directions: each has half of the width, or all of it and they are averaged or mapped by learned weights"""
    residual: bool = False
    """each layer above the first adds to what it read"""
    initial: Initial = "orthogonal"
    """how matrices from state to state begin"""
    dropout: float = 0.1
    """share of activations dropped while training"""
    variational: bool = False
    """dropout draws one mask a sentence, and hides the recurrent state too (Gal and Ghahramani 2016)"""
    zoneout: float = 0.0
    """share of each state that a step leaves as it was (Krueger et al. 2017)"""

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding", "layers")
        _check_rates(self)
        require(
            not self.widths or (len(self.widths) == self.layers and self.widths[-1] == self.width),
            f"model.widths is {self.widths}: name one for each of model.layers {self.layers}, "
            f"the last of them model.width {self.width}",
        )
        require(min(self.widths, default=1) >= 1, f"model.widths is {self.widths}: each must be at least 1")
        require(
            not self.residual or len({*self.widths}) <= 1,
            f"model.widths is {self.widths}: layers must be equally wide to be added by model.residual",
        )
        require(
            self.bidirectional or self.join == "concatenate",
            f"model.join {self.join!r} is of two directions: set model.bidirectional",
        )
        halved = self.bidirectional and self.join == "concatenate"
        require(
            not halved or self.width % 2 == 0,
            f"model.width is {self.width}: it must be even to be halved between two directions",
        )
        require(
            not halved or not any(width % 2 for width in self.widths),
            f"model.widths is {self.widths}: each must be even to be halved between two directions",
        )


@settings
class Transformer:
    """Vaswani et al. 2017."""

    width: int = 512
    """of the residual stream"""
    heads: int = 8
    """of each attention; they share `width`"""
    feedforward: int = 2048
    """width of the inner layer of a block"""
    encoder_layers: int = 6
    """blocks that read"""
    decoder_layers: int = 6
    """blocks that write"""
    norm: Literal["post", "pre"] = "post"
    """layer norm after each sub-layer, as published, or before it"""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """how a token knows its place"""
    max_length: int = 512
    """longest sequence that learned positions can address"""
    tie: Literal["all", "output", "none"] = "output"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    def __post_init__(self):
        at_least(1, self, "model", "width", "heads", "feedforward", "encoder_layers", "decoder_layers", "max_length")
        _check_dropout(self)
        require(
            self.width % self.heads == 0,
            f"model.width {self.width} does not divide into model.heads {self.heads}: "
            f"try width {self.heads * max(1, round(self.width / self.heads))}",
        )
        require(
            self.positions == "learned" or self.width % 2 == 0,
            f"model.width {self.width} must be even for sinusoidal positions",
        )


ModelConfig = RNNsearch | Luong | Transformer


def _check_rates(config) -> None:
    _check_dropout(config)
    require(0 <= config.zoneout < 1, f"model.zoneout is {config.zoneout}: it must be in [0, 1)")


def _check_dropout(config) -> None:
    require(0 <= config.dropout < 1, f"model.dropout is {config.dropout}: it must be in [0, 1)")
