"""What learns: one class a family of models. A combination that cannot work is refused when it is built."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.settings import at_least, require, settings


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
    cell: Literal["rnn", "lstm", "gru"] = "gru"
    """plain recurrent, LSTM or GRU"""
    readout: Literal["maxout", "tanh"] = "maxout"
    """what stands between the state and the output layer"""
    coverage: bool = False
    """the score sees how much attention each source position has had (See et al. 2017)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding", "encoder_layers")
        at_least(0, self, "model", "attention")
        _check_dropout(self)


@settings
class Luong:
    """Luong, Pham and Manning 2015: stacked cells, the current state asks, the context is read out."""

    width: int = 512
    """of the states"""
    embedding: int = 256
    """width of a token"""
    layers: int = 2
    """cells stacked, in encoder and decoder each"""
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    """plain recurrent, LSTM or GRU"""
    score: Literal["dot", "scaled_dot", "general", "additive", "cosine"] = "general"
    """how a state asks: see s2sjax/core/attention.py"""
    window: Literal["global", "monotonic", "predictive"] = "global"
    """where it looks: everywhere, near its own place, or near a place that it predicts: see s2sjax/core/local.py"""
    radius: int = 0
    """positions that a local window reaches to either side (the paper's D)"""
    input_feeding: bool = True
    """the attentional state enters the next step"""
    bidirectional: bool = False
    """read the source both ways; each direction has half of `width`"""
    residual: bool = False
    """each layer above the first adds to what it read"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding", "layers")
        _check_dropout(self)
        require(
            not self.bidirectional or self.width % 2 == 0,
            f"model.width is {self.width}: it must be even to be halved between two directions",
        )
        require(
            self.window != "global" or self.radius == 0,
            f"model.radius {self.radius} is of local windows: set model.window to monotonic or predictive",
        )
        require(
            self.window == "global" or self.radius >= 1,
            f"model.radius is {self.radius}: the {self.window} window must reach at least 1 to either side",
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
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "sinusoidal"
    """how a token knows its place: see s2sjax/core/positions.py"""
    join_positions: Literal["sum", "concat"] = "sum"
    """sinusoidal or learned ones are added to the embedding, or set beside it and both projected to `width`"""
    max_length: int = 512
    """longest sequence that learned positions can address"""
    window: int = 0
    """a position sees so many others to either side, at the cost of those alone; 0: all"""
    tie: Literal["all", "output", "none"] = "output"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    def __post_init__(self):
        at_least(1, self, "model", "width", "heads", "feedforward", "encoder_layers", "decoder_layers", "max_length")
        at_least(0, self, "model", "window")
        _check_dropout(self)
        require(
            self.width % self.heads == 0,
            f"model.width {self.width} does not divide into model.heads {self.heads}: "
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
            f"model.join_positions '{self.join_positions}' needs a vector a position: "
            f"set model.positions to sinusoidal or learned, not {self.positions}",
        )


ModelConfig = RNNsearch | Luong | Transformer


def _check_dropout(config) -> None:
    require(0 <= config.dropout < 1, f"model.dropout is {config.dropout}: it must be in [0, 1)")
