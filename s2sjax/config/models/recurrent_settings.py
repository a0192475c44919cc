"""Settings of recurrent models, one class a family. A combination that cannot work raises an error when it is built."""

from __future__ import annotations

from typing import Annotated, Literal

from s2sjax.config.choices import OneOf
from s2sjax.config.models.specs import (
    AttentionWindow,
    Carries,
    DecoderSpec,
    EmbeddedModel,
    EncoderSpec,
    Initial,
    Join,
    RecurrentSpec,
    Tie,
    check_even,
)
from s2sjax.config.settings import at_least, require, settings
from s2sjax.core import attention
from s2sjax.core.recurrence import cells

CellName = Annotated[str, OneOf(cells.CELLS)]
ScoreName = Annotated[str, OneOf(attention.SCORES)]


class RecurrentModel(EmbeddedModel):
    """Base class of families with recurrent layers. The decoder starts from the final states of the encoder."""

    cell: str
    layers: int = 1

    @property
    def recurrent_encoder(self) -> RecurrentSpec:
        return RecurrentSpec(self.cell, self.width, self.layers)

    @property
    def carries(self) -> Carries:
        return Carries(self.cell, (self.width,) * self.layers)

    @property
    def encoder_spec(self) -> EncoderSpec:
        return EncoderSpec(self.width, self.carries)

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(self.width, self.carries)


@settings
class Cho(RecurrentModel):
    """Cho et al. 2014: the source becomes one vector, which every decoder step reads."""

    width: int = 512
    """width of the states and of the context vector"""
    cell: CellName = "gru"
    """recurrent cell: see s2sjax/core/recurrence/cells.py"""
    readout: Literal["maxout", "tanh"] = "maxout"
    """nonlinearity of the hidden layer before the output layer"""
    readout_width: int = 0
    """width of the hidden layer before the output layer; 0 for `embedding`"""
    tie: Tie = "none"
    """tied matrices: target embedding and output layer, or also the source embedding (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(None, self.carries)

    def __post_init__(self):
        self.check(nonnegative=("readout_width",), output=_readout_width(self))


@settings
class Sutskever(RecurrentModel):
    """Sutskever, Vinyals and Le 2014: each decoder layer starts from the final state of its encoder layer."""

    layers: int = 2
    """number of recurrent layers of the encoder, and of the decoder"""
    cell: CellName = "lstm"
    """recurrent cell: see s2sjax/core/recurrence/cells.py"""
    reverse: bool = True
    """whether to reverse the source"""
    share: bool = False
    """whether encoder and decoder share one stack; with tie `all`, also the embeddings"""
    tie: Tie = "none"
    """tied matrices: target embedding and output layer, or also the source embedding (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(None, self.carries)

    def __post_init__(self):
        self.check("layers", output=self.width)
        require(
            not self.share or self.embedding_size > 0,
            "model.share requires tokens of one width on both sides: set model.embedding_size above 0",
        )


@settings
class RNNsearch(RecurrentModel):
    """Bahdanau, Cho and Bengio 2014: the previous state is the query, and the cell reads the context."""

    width: int = 512
    """width of the decoder state and of each direction of the encoder"""
    score: ScoreName = "additive"
    """attention score: see s2sjax/core/attention/scores.py"""
    attention_size: int = 0
    """width of the additive score's hidden layer; 0 for `width`"""
    encoder_layers: int = 1
    """number of bidirectional encoder layers"""
    cell: CellName = "gru"
    """recurrent cell: see s2sjax/core/recurrence/cells.py"""
    readout: Literal["maxout", "tanh"] = "maxout"
    """nonlinearity of the hidden layer before the output layer"""
    readout_width: int = 0
    """width of the hidden layer before the output layer; 0 for `embedding`"""
    tie: Tie = "none"
    """tied matrices: target embedding and output layer, or also the source embedding (needs a shared vocabulary)"""
    recurrent_init: Initial = "orthogonal"
    """initialization of the state-to-state matrices"""
    coverage: bool = False
    """whether the score depends on the attention each source position has received so far (See et al. 2017)"""
    dropout: float = 0.1
    """dropout rate"""
    variational_dropout: bool = False
    """variational dropout: one mask per sentence, also on the recurrent state (Gal and Ghahramani 2016)"""
    zoneout: float = 0.0
    """zoneout rate: fraction of each state that a step leaves unchanged (Krueger et al. 2017)"""

    @property
    def recurrent_encoder(self) -> RecurrentSpec:
        # Each direction has the full width: the memory is twice as wide as the decoder.
        deep = self.encoder_layers
        return RecurrentSpec(
            self.cell, 2 * self.width, deep, bidirectional=deep,
            initial=self.recurrent_init, variational=self.variational_dropout, zoneout=self.zoneout,
        )  # fmt: skip

    @property
    def encoder_spec(self) -> EncoderSpec:
        # Each direction has the full width; the decoder starts from the final backward state of the top layer.
        return EncoderSpec(2 * self.width, self.carries)

    @property
    def decoder_spec(self) -> DecoderSpec:
        return DecoderSpec(2 * self.width, self.carries)

    def __post_init__(self):
        self.check("encoder_layers", nonnegative=("attention_size", "readout_width"), output=_readout_width(self))
        require(
            not attention.SCORES[self.score].equal_widths,
            f"model.score {self.score!r} compares vectors of one width, but the state has width {self.width} and the "
            f"memory {2 * self.width}: set model.score to additive or general",
        )
        require(
            not self.coverage or self.score == "additive",
            f"model.coverage requires the additive score, not {self.score}: unset it, or set model.score to additive",
        )


@settings
class Luong(RecurrentModel):
    """Luong, Pham and Manning 2015: stacked cells; the current state is the query, and the output reads the context."""

    layers: int = 2
    """number of recurrent layers of the encoder, and of the decoder"""
    widths: tuple[int, ...] = ()
    """width of each layer, if they differ; the last must equal `width`"""
    cell: CellName = "lstm"
    """recurrent cell: see s2sjax/core/recurrence/cells.py"""
    score: ScoreName = "general"
    """attention score: see s2sjax/core/attention/scores.py"""
    window: Literal["global", "monotonic", "predictive"] = "global"
    """attention window: everything, or around the current or a predicted position (core/attention/local_window.py)"""
    radius: int = 0
    """radius of a local window (the paper's D)"""
    input_feeding: bool = True
    """whether the next step reads the attentional vector"""
    bidirectional: bool = False
    """whether the encoder is bidirectional"""
    join: Join = "concatenate"
    """combination of two directions: concatenated halves, or the mean or a learned projection of two full widths"""
    residual: bool = False
    """whether layers have residual connections, from the second layer on"""
    reverse: bool = False
    """whether to reverse the source"""
    tie: Tie = "none"
    """tied matrices: target embedding and output layer, or also the source embedding (needs a shared vocabulary)"""
    recurrent_init: Initial = "orthogonal"
    """initialization of the state-to-state matrices"""
    dropout: float = 0.1
    """dropout rate"""
    variational_dropout: bool = False
    """variational dropout: one mask per sentence, also on the recurrent state (Gal and Ghahramani 2016)"""
    zoneout: float = 0.0
    """zoneout rate: fraction of each state that a step leaves unchanged (Krueger et al. 2017)"""

    @property
    def recurrent_encoder(self) -> RecurrentSpec:
        return RecurrentSpec(
            self.cell, self.widths or self.width, self.layers, bidirectional=self.layers if self.bidirectional else 0,
            residual=self.residual, join=self.join,
            initial=self.recurrent_init, variational=self.variational_dropout, zoneout=self.zoneout,
        )  # fmt: skip

    @property
    def attention_window(self) -> AttentionWindow:
        return AttentionWindow("radius", self.radius, True, "0, and model.window global")

    @property
    def carries(self) -> Carries:
        return Carries(self.cell, self.widths or (self.width,) * self.layers)

    def __post_init__(self):
        self.check("layers", output=self.width)
        require(
            self.window != "global" or self.radius == 0,
            f"model.radius {self.radius} requires a local window: set model.window to monotonic or predictive",
        )
        require(
            self.window == "global" or self.radius >= 1,
            f"model.radius is {self.radius}: the {self.window} window must reach at least 1 to either side",
        )
        require(
            not (self.reverse and self.bidirectional),
            "model.reverse requires a unidirectional encoder: set model.reverse or model.bidirectional to False",
        )
        require(
            not self.widths or (len(self.widths) == self.layers and self.widths[-1] == self.width),
            f"model.widths is {self.widths}: give one for each of model.layers {self.layers}, "
            f"the last equal to model.width {self.width}",
        )
        require(min(self.widths, default=1) >= 1, f"model.widths is {self.widths}: each must be at least 1")
        require(
            not self.residual or len({*self.widths}) <= 1,
            f"model.widths is {self.widths}: model.residual requires layers of equal width",
        )
        require(
            self.bidirectional or self.join == "concatenate",
            f"model.join {self.join!r} requires two directions: set model.bidirectional to True",
        )
        if self.bidirectional and self.join == "concatenate":
            check_even(self, "width", self.width)
            check_even(self, "widths", *self.widths)


@settings
class GNMT(RecurrentModel):
    """Wu et al. 2016: deep residual stacks; all decoder layers read the context that the lowest one attends to."""

    width: int = 512
    """width of the states and of each direction of the lowest layer"""
    layers: int = 4
    """number of recurrent layers of the encoder, and of the decoder; residual from the third on"""
    score: ScoreName = "additive"
    """attention score: see s2sjax/core/attention/scores.py"""
    attention_size: int = 0
    """width of the additive score's hidden layer; 0 for `width`"""
    cell: CellName = "lstm"
    """recurrent cell: see s2sjax/core/recurrence/cells.py"""
    tie: Tie = "none"
    """tied matrices: target embedding and output layer, or also the source embedding (needs a shared vocabulary)"""
    dropout: float = 0.1
    """dropout rate"""

    def __post_init__(self):
        self.check(nonnegative=("attention_size",), output=self.width)
        at_least(2, self, "model", "layers")


def _readout_width(config) -> int:
    """The width of the hidden layer before the output layer."""
    require(
        config.embedding_size != 0 or config.readout_width != 0,
        "model.readout_width 0 means model.embedding_size, which is 0: set one of them",
    )
    return config.readout_width or config.embedding_size
