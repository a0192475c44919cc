"""Model configurations, one class a family. A combination that cannot work is refused when it is built."""

from __future__ import annotations

from typing import Annotated, Literal

from s2sjax.config.choices import OneOf
from s2sjax.config.settings import at_least, require, settings
from s2sjax.config.specs import (
    AttentionWindow,
    Carries,
    DecoderSpec,
    EncoderSpec,
    Initial,
    Join,
    ModelSettings,
    RecurrentSpec,
    Tie,
    check_tie,
)
from s2sjax.core import attention, cells

CellName = Annotated[str, OneOf(cells.CELLS)]
ScoreName = Annotated[str, OneOf(attention.SCORES)]


@settings
class Cho(ModelSettings):
    """Cho et al. 2014: the source becomes one vector, given to every step of the decoder."""

    width: int = 512
    """of the states and of the vector between"""
    embedding: int = 256
    """width of the token embedding; 0: one-hot vectors"""
    cell: CellName = "gru"
    """the recurrent cell: see s2sjax/core/cells.py"""
    readout: Literal["maxout", "tanh"] = "maxout"
    """the hidden layer before the output layer"""
    readout_width: int = 0
    """width of that hidden layer; 0: `embedding`"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def recurrent_encoder(self) -> RecurrentSpec:
        return RecurrentSpec(self.cell, self.width, 1)

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.width, Carries(self.cell, (self.width,)))

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(None, Carries(self.cell, (self.width,)))

    def __post_init__(self):
        at_least(1, self, "model", "width")
        at_least(0, self, "model", "embedding", "readout_width")
        check_dropout(self)
        _check_readout(self)


@settings
class Sutskever(ModelSettings):
    """Sutskever, Vinyals and Le 2014: the decoder begins where the encoder ends, layer by layer."""

    width: int = 512
    """of the states"""
    embedding: int = 256
    """width of the token embedding; 0: one-hot vectors"""
    layers: int = 2
    """recurrent layers, in encoder and decoder each"""
    cell: CellName = "lstm"
    """the recurrent cell: see s2sjax/core/cells.py"""
    reverse: bool = True
    """reverse the source"""
    share: bool = False
    """encoder and decoder share one stack; with tie `all`, the embeddings too"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def recurrent_encoder(self) -> RecurrentSpec:
        return RecurrentSpec(self.cell, self.width, self.layers)

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.width, Carries(self.cell, (self.width,) * self.layers))

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(None, Carries(self.cell, (self.width,) * self.layers))

    def __post_init__(self):
        at_least(1, self, "model", "width", "layers")
        at_least(0, self, "model", "embedding")
        check_dropout(self)
        check_tie(self, self.width)
        require(
            not self.share or self.embedding > 0,
            "model.share needs tokens of one width on both sides: set model.embedding above 0",
        )


@settings
class RNNsearch(ModelSettings):
    """Bahdanau, Cho and Bengio 2014: the previous state is the query, the context enters the cell."""

    width: int = 512
    """of the decoder state and of each direction of the encoder"""
    embedding: int = 256
    """width of the token embedding; 0: one-hot vectors"""
    score: ScoreName = "additive"
    """how a state is compared with the memory: see s2sjax/core/attention.py"""
    attention: int = 0
    """width of the additive score's hidden layer; 0: `width`"""
    encoder_layers: int = 1
    """bidirectional encoder layers"""
    cell: CellName = "gru"
    """the recurrent cell: see s2sjax/core/cells.py"""
    readout: Literal["maxout", "tanh"] = "maxout"
    """the hidden layer before the output layer"""
    readout_width: int = 0
    """width of that hidden layer; 0: `embedding`"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (needs a shared vocabulary)"""
    initial: Initial = "orthogonal"
    """initialization of the state-to-state matrices"""
    coverage: bool = False
    """the score depends on the attention each source position has received so far (See et al. 2017)"""
    dropout: float = 0.1
    """dropout rate"""
    variational: bool = False
    """variational dropout: one mask a sentence, on the recurrent state too (Gal and Ghahramani 2016)"""
    zoneout: float = 0.0
    """zoneout rate: share of each state that a step leaves unchanged (Krueger et al. 2017)"""

    @property
    def recurrent_encoder(self) -> RecurrentSpec:
        # Each direction has the full width: the memory is twice as wide as the decoder.
        deep = self.encoder_layers
        return RecurrentSpec(
            self.cell, 2 * self.width, deep, bidirectional=deep,
            initial=self.initial, variational=self.variational, zoneout=self.zoneout,
        )  # fmt: skip

    @property
    def encoder_spec(self) -> EncoderSpec:
        # Each direction has the full width; the decoder begins where the backward reading of the top layer ends.
        return EncoderSpec(2 * self.width, Carries(self.cell, (self.width,)))

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(2 * self.width, Carries(self.cell, (self.width,)))

    def __post_init__(self):
        at_least(1, self, "model", "width", "encoder_layers")
        at_least(0, self, "model", "embedding", "attention", "readout_width")
        _check_rates(self)
        _check_readout(self)
        require(
            not attention.SCORES[self.score].equal_widths,
            f"model.score {self.score!r} compares vectors of one width, but the state has {self.width} numbers and the "
            f"memory {2 * self.width}: set model.score additive or general",
        )
        require(
            not self.coverage or self.score == "additive",
            f"model.coverage is a term of the additive score: set it False, or model.score additive, not {self.score}",
        )


@settings
class Luong(ModelSettings):
    """Luong, Pham and Manning 2015: stacked cells, the current state is the query, the context enters the output."""

    width: int = 512
    """of the states"""
    embedding: int = 256
    """width of the token embedding; 0: one-hot vectors"""
    layers: int = 2
    """recurrent layers, in encoder and decoder each"""
    widths: tuple[int, ...] = ()
    """of each layer, where they differ; the last is `width`"""
    cell: CellName = "lstm"
    """the recurrent cell: see s2sjax/core/cells.py"""
    score: ScoreName = "general"
    """how a state is compared with the memory: see s2sjax/core/attention.py"""
    window: Literal["global", "monotonic", "predictive"] = "global"
    """where it attends: everywhere, near its own position, or near a predicted one: see s2sjax/core/local.py"""
    radius: int = 0
    """radius of a local window (the paper's D)"""
    input_feeding: bool = True
    """feed the attentional vector to the next step"""
    bidirectional: bool = False
    """bidirectional encoder"""
    join: Join = "concatenate"
    """of two directions: concatenated halves, or the mean or a learned projection of two full widths"""
    residual: bool = False
    """residual connections from the second layer on"""
    reverse: bool = False
    """reverse the source"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (needs a shared vocabulary)"""
    initial: Initial = "orthogonal"
    """initialization of the state-to-state matrices"""
    dropout: float = 0.1
    """dropout rate"""
    variational: bool = False
    """variational dropout: one mask a sentence, on the recurrent state too (Gal and Ghahramani 2016)"""
    zoneout: float = 0.0
    """zoneout rate: share of each state that a step leaves unchanged (Krueger et al. 2017)"""

    @property
    def recurrent_encoder(self) -> RecurrentSpec:
        return RecurrentSpec(
            self.cell, self.widths or self.width, self.layers, bidirectional=self.layers if self.bidirectional else 0,
            residual=self.residual, join=self.join,
            initial=self.initial, variational=self.variational, zoneout=self.zoneout,
        )  # fmt: skip

    @property
    def attention_window(self) -> AttentionWindow:
        return AttentionWindow("radius", self.radius, True, "0, and model.window global")

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.width, Carries(self.cell, self.widths or (self.width,) * self.layers))

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(self.width, Carries(self.cell, self.widths or (self.width,) * self.layers))

    def __post_init__(self):
        at_least(1, self, "model", "width", "layers")
        at_least(0, self, "model", "embedding")
        _check_rates(self)
        check_tie(self, self.width)
        require(
            self.window != "global" or self.radius == 0,
            f"model.radius {self.radius} is of local windows: set model.window to monotonic or predictive",
        )
        require(
            self.window == "global" or self.radius >= 1,
            f"model.radius is {self.radius}: the {self.window} window must reach at least 1 to either side",
        )
        require(
            not (self.reverse and self.bidirectional),
            "model.reverse is for reading one way: set it False, or model.bidirectional False",
        )
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
class GNMT(ModelSettings):
    """Wu et al. 2016: a deep residual stack over one bidirectional layer; the lowest decoder layer attends for all."""

    width: int = 512
    """of the states, and of each direction of the lowest layer"""
    embedding: int = 256
    """width of the token embedding; 0: one-hot vectors"""
    layers: int = 4
    """recurrent layers, in encoder and decoder each; residual from the third on"""
    score: ScoreName = "additive"
    """how a state is compared with the memory: see s2sjax/core/attention.py"""
    attention: int = 0
    """width of the additive score's hidden layer; 0: `width`"""
    cell: CellName = "lstm"
    """the recurrent cell: see s2sjax/core/cells.py"""
    tie: Tie = "none"
    """`output`: target embedding = output layer; `all`: the source embedding too (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.width, Carries(self.cell, (self.width,) * self.layers))

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(self.width, Carries(self.cell, (self.width,) * self.layers))

    def __post_init__(self):
        at_least(1, self, "model", "width")
        at_least(2, self, "model", "layers")
        at_least(0, self, "model", "embedding", "attention")
        check_dropout(self)
        check_tie(self, self.width)


@settings
class Transformer(ModelSettings):
    """Vaswani et al. 2017."""

    scans_time = False

    width: int = 512
    """of the residual stream"""
    heads: int = 8
    """attention heads; they share `width`"""
    feedforward: int = 2048
    """width of the inner layer of a block"""
    encoder_layers: int = 6
    """encoder blocks"""
    decoder_layers: int = 6
    """decoder blocks"""
    norm: Literal["post", "pre"] = "post"
    """layer norm after each sub-layer, as published, or before it"""
    positions: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "sinusoidal"
    """kind of position encoding: see s2sjax/core/positions.py"""
    join_positions: Literal["sum", "concat"] = "sum"
    """sinusoidal or learned positions are added to the embedding, or concatenated and projected to `width`"""
    max_length: int = 512
    """longest sequence that learned positions can address"""
    window: int = 0
    """self-attention reaches this many positions to either side; 0: all"""
    tie: Tie = "output"
    """`output`: target embedding = output layer; `all`: the source embedding too (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def embedding(self) -> int:  # type: ignore[override]
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
        check_dropout(self)
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


def _check_rates(config) -> None:
    check_dropout(config)
    require(0 <= config.zoneout < 1, f"model.zoneout is {config.zoneout}: it must be in [0, 1)")


def check_dropout(config) -> None:
    require(0 <= config.dropout < 1, f"model.dropout is {config.dropout}: it must be in [0, 1)")


def _check_readout(config) -> None:
    """Of a family whose output layer reads a hidden layer."""
    require(
        config.embedding > 0 or config.readout_width > 0,
        "model.readout_width 0 takes model.embedding, which is 0: set one of them",
    )
    check_tie(config, config.readout_width or config.embedding)
