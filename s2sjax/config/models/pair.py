"""Pairs of an encoder and a decoder of different families, if their specs allow it: see specs.py."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from s2sjax.config.models.recurrent_settings import RNNsearch
from s2sjax.config.models.specs import DecoderSpec, EncoderSpec, ModelSettings
from s2sjax.config.models.transformer_settings import Transformer
from s2sjax.config.settings import require, settings

Family = ModelSettings


@settings
class Pair:
    """One family's encoder with another's decoder, as in the hybrids of Chen et al. 2018."""

    encoder: Family = field(default_factory=Transformer)
    """family of the encoder; its decoder settings are not used"""
    decoder: Family = field(default_factory=RNNsearch)
    """family of the decoder; its encoder settings are not used"""
    bridge: Literal["identity", "linear", "tanh"] = "tanh"
    """map from the encoder's final states to the decoder's initial ones: h, W h + b, or tanh(W h + b)"""

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
                f"model.{side}.share requires an encoder and a decoder of the same family: set it to False",
            )
        require(
            not self.decoder.ties_embeddings or self.encoder.embedding_size == self.decoder.embedding_size,
            f"model.decoder.tie {self.tie!r}: the encoder's embedding has width {self.encoder.embedding_size}, "
            f"the decoder's {self.decoder.embedding_size}: make them equal, or set model.decoder.tie to 'output'",
        )
        if self.bridge == "identity":
            self._check_identity()

    def _check_identity(self) -> None:
        remedy = "set model.bridge 'linear' or 'tanh', or make them equal"
        given, asked = self.encoder_spec, self.decoder_spec
        require(
            asked.states in (None, given.states),
            f"model.bridge 'identity': the encoder's memory has width {given.states}, "
            f"the decoder reads {asked.states}: {remedy}",
        )
        require(
            asked.carries in (None, given.carries),
            f"model.bridge 'identity': the encoder ends with {given.carries or 'no carry'}, "
            f"the decoder begins with {asked.carries}: {remedy}",
        )


ModelConfig = Family | Pair


def encoder_and_decoder(model: ModelConfig) -> tuple[Family, Family]:
    """The configurations of the encoder and the decoder: the two of a pair, or one family twice."""
    return (model.encoder, model.decoder) if isinstance(model, Pair) else (model, model)


def model_name(model: ModelConfig) -> str:
    """The display name of a model: "Luong", or "Transformer + RNNsearch" for a pair."""
    sides = encoder_and_decoder(model) if isinstance(model, Pair) else (model,)
    return " + ".join(type(side).__name__ for side in sides)
