"""Any encoder with any decoder, where their specs allow it: see s2sjax/config/specs.py."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from s2sjax.config.models import RNNsearch, Transformer
from s2sjax.config.settings import require, settings
from s2sjax.config.specs import DecoderSpec, EncoderSpec, ModelSettings

Family = ModelSettings


@settings
class Pair:
    """One family's encoder with another's decoder, as in the hybrids of Chen et al. 2018."""

    encoder: Family = field(default_factory=Transformer)
    """the encoder's family; its decoder settings are not used"""
    decoder: Family = field(default_factory=RNNsearch)
    """the decoder's family; its encoder settings are not used"""
    bridge: Literal["identity", "linear", "tanh"] = "tanh"
    """from the encoder's last states to the decoder's first: as they are, W h + b, or tanh(W h + b)"""

    @property
    def encoder_spec(self) -> EncoderSpec:
        return self.encoder.encoder_spec

    @property
    def decoder_spec(self) -> DecoderSpec:
        return self.decoder.decoder_spec

    @property
    def tie(self) -> str:
        return self.decoder.tie

    def __post_init__(self):
        for side in ("encoder", "decoder"):
            require(
                not getattr(self, side).share,
                f"model.{side}.share is for an encoder and a decoder of one family: set it False",
            )
        require(
            self.tie != "all" or self.encoder.embedding == self.decoder.embedding,
            f"model.decoder.tie 'all': the encoder's embedding has {self.encoder.embedding} numbers, "
            f"the decoder's {self.decoder.embedding}: make them equal, or set it 'output'",
        )
        if self.bridge == "identity":
            self._check_identity()

    def _check_identity(self) -> None:
        remedy = "set model.bridge 'linear' or 'tanh', or make them equal"
        given, asked = self.encoder_spec, self.decoder_spec
        require(
            asked.states in (None, given.states),
            f"model.bridge 'identity': the encoder's memory is {given.states} wide, the decoder reads {asked.states}: "
            + remedy,
        )
        require(
            asked.carries in (None, given.carries),
            f"model.bridge 'identity': the encoder ends in {given.carries or 'no carry'}, "
            f"the decoder begins with {asked.carries}: {remedy}",
        )


ModelConfig = Family | Pair


def encoder_and_decoder(model: ModelConfig) -> tuple[Family, Family]:
    """(encoder, decoder) configurations: the two of a pair, or one family twice."""
    return (model.encoder, model.decoder) if isinstance(model, Pair) else (model, model)


def model_name(model: ModelConfig) -> str:
    """What a model is called: "Luong"; of a pair, "Transformer + RNNsearch"."""
    return " + ".join(
        type(side).__name__ for side in ((model,) if not isinstance(model, Pair) else encoder_and_decoder(model))
    )
