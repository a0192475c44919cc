"""What learns: one class a family of models. A combination that cannot work is refused when it is built."""

from __future__ import annotations

from typing import Literal

from s2sjax.config.joints import Carries, Reader, Writer, check_tie
from s2sjax.config.settings import at_least, require, settings

Tie = Literal["all", "output", "none"]


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
    readout_width: int = 0
    """width of what the output layer reads; 0 takes `embedding`"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    @property
    def reader(self) -> Reader:
        # Each direction has the full width; the decoder begins where the backward reading of the top layer ends.
        return Reader(2 * self.width, Carries(self.cell, (self.width,)))

    @property
    def writer(self) -> Writer:
        return Writer(2 * self.width, Carries(self.cell, (self.width,)))

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding", "encoder_layers")
        at_least(0, self, "model", "attention", "readout_width")
        _check_dropout(self)
        check_tie(self, self.readout_width or self.embedding)


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
    score: Literal["dot", "scaled_dot", "general", "additive"] = "general"
    """how a state asks: see s2sjax/core/attention.py"""
    input_feeding: bool = True
    """the attentional state enters the next step"""
    bidirectional: bool = False
    """read the source both ways; each direction has half of `width`"""
    residual: bool = False
    """each layer above the first adds to what it read"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    @property
    def reader(self) -> Reader:
        return Reader(self.width, Carries(self.cell, (self.width,) * self.layers))

    @property
    def writer(self) -> Writer:
        return Writer(self.width, Carries(self.cell, (self.width,) * self.layers))

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding", "layers")
        _check_dropout(self)
        check_tie(self, self.width)
        require(
            not self.bidirectional or self.width % 2 == 0,
            f"model.width is {self.width}: it must be even to be halved between two directions",
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
    tie: Tie = "output"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    @property
    def embedding(self) -> int:
        return self.width

    @property
    def reader(self) -> Reader:
        return Reader(self.width)

    @property
    def writer(self) -> Writer:
        return Writer(self.width)

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


Shapes = tuple[tuple[int, int], ...]


@settings
class RCTM:
    """Kalchbrenner and Blunsom 2013, the recurrent continuous translation model I: convolutions read, a cell writes."""

    width: int = 256
    """of the convolutions and of the decoder state"""
    embedding: int = 256
    """width of a token"""
    kernels: tuple[int, ...] = (2, 3, 4)
    """how many positions each convolution sees, from the lowest"""
    activation: Literal["tanh", "relu", "gated"] = "tanh"
    """of each convolution; `gated` is the gated linear unit"""
    residual: bool = False
    """each convolution adds to what it read, where that is as wide"""
    pool: Literal["mean", "max"] = "mean"
    """how the vectors of all positions become the one that every step of the decoder is given"""
    cell: Literal["rnn", "lstm", "gru"] = "rnn"
    """plain recurrent, LSTM or GRU"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    @property
    def reader(self) -> Reader:
        # The vector of the whole sentence stands for the last carry of a plain cell.
        return Reader(self.width, Carries("rnn", (self.width,)))

    @property
    def writer(self) -> Writer:
        return Writer(None, Carries("rnn", (self.width,)))

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding")
        require(len(self.kernels) > 0, "model.kernels is empty: name at least one")
        require(min(self.kernels) >= 1, f"model.kernels is {self.kernels}: each must be at least 1")
        _check_dropout(self)
        check_tie(self, self.width)


@settings
class ConvS2S:
    """Gehring et al. 2017: convolutions with gated linear units, and attention in every layer of the decoder."""

    embedding: int = 256
    """width of a token, of what attention compares, and of what the output layer reads"""
    encoder_layers: Shapes = ((256, 3),) * 4
    """(width, kernel) of each block that reads"""
    decoder_layers: Shapes = ((256, 3),) * 3
    """(width, kernel) of each block that writes"""
    max_length: int = 512
    """longest sequence that the learned positions can address"""
    weight_norm: bool = True
    """learn the length and the direction of each output's weights apart (Salimans and Kingma 2016)"""
    scale_gradient: bool = True
    """divide the encoder's gradient by twice the number of attentions, which all add to it"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    @property
    def reader(self) -> Reader:
        return Reader(self.embedding)

    @property
    def writer(self) -> Writer:
        return Writer(self.embedding)

    def __post_init__(self):
        at_least(1, self, "model", "embedding", "max_length")
        _check_shapes(self, "encoder_layers", "decoder_layers")
        _check_dropout(self)


@settings
class LSTMDense:
    """An LSTM reads both ways, dense layers write: each token from the state of its own position, all at once.

    For sources and targets of matched lengths. The decoder is no language model: no token knows another.
    """

    width: int = 512
    """of the states; each direction has half of it"""
    embedding: int = 256
    """width of a token"""
    layers: int = 1
    """cells stacked"""
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    """plain recurrent, LSTM or GRU"""
    decoder_layers: int = 1
    """hidden layers between a state and the output layer"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    @property
    def bidirectional(self) -> bool:
        return True

    @property
    def reader(self) -> Reader:
        return Reader(self.width, Carries(self.cell, (self.width,) * self.layers))

    @property
    def writer(self) -> Writer:
        return Writer(self.width)

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding", "layers")
        at_least(0, self, "model", "decoder_layers")
        _check_dropout(self)
        check_tie(self, self.width)
        require(
            self.width % 2 == 0,
            f"model.width is {self.width}: it must be even to be halved between two directions",
        )


@settings
class DenseDense:
    """Dense layers read a window around each position, dense layers write its token: a network without recurrence."""

    width: int = 512
    """of the hidden layers"""
    embedding: int = 256
    """width of a token"""
    window: int = 7
    """tokens that a position sees, itself in their middle"""
    encoder_layers: int = 1
    """hidden layers; the first reads the window"""
    decoder_layers: int = 1
    """hidden layers between those and the output layer"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (one vocabulary)"""
    dropout: float = 0.1
    """share of activations dropped while training"""

    @property
    def reader(self) -> Reader:
        return Reader(self.width)

    @property
    def writer(self) -> Writer:
        return Writer(self.width)

    def __post_init__(self):
        at_least(1, self, "model", "width", "embedding", "window", "encoder_layers")
        at_least(0, self, "model", "decoder_layers")
        _check_dropout(self)
        check_tie(self, self.width)
        require(
            self.window % 2 == 1,
            f"model.window is {self.window}: it must be odd to have a middle, try {self.window + 1}",
        )


Family = RNNsearch | Luong | Transformer | RCTM | ConvS2S | LSTMDense | DenseDense


def _check_dropout(config) -> None:
    require(0 <= config.dropout < 1, f"model.dropout is {config.dropout}: it must be in [0, 1)")


def _check_shapes(config, *names: str) -> None:
    for name in names:
        shapes = getattr(config, name)
        require(len(shapes) > 0, f"model.{name} is empty: name at least one (width, kernel) pair")
        require(
            all(width >= 1 and kernel >= 1 for width, kernel in shapes),
            f"model.{name} is {shapes}: every width and kernel must be at least 1",
        )
