"""Whisper: two convolutions, and a pre-LN Transformer whose encoder and decoder have different positions.

The encoder reads frames at half their rate, with the sinusoids of Tensor2Tensor. The decoder has learned positions, and
its embedding is the output layer. Queries and values have a bias, keys have none: here it is zero, which changes
nothing, because a bias of the keys adds the same number to all scores of a query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from s2sjax import config
from s2sjax.config import require
from s2sjax.interop.correspondence import Row
from s2sjax.interop.families.bart import EPSILON, Bart
from s2sjax.interop.families.family import activation

DEFAULTS = {
    "vocab_size": 51865, "num_mel_bins": 80, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536,
    "activation_function": "gelu", "dropout": 0.0, "max_source_positions": 1500, "max_target_positions": 448,
    "decoder_start_token_id": 50257, "eos_token_id": 50256,
}  # fmt: skip
FAMILY = Bart("whisper", "WhisperForConditionalGeneration", DEFAULTS, "pre", "learned", has_bias=False)
WITHOUT_BIAS = "k_proj.bias"
"""end of the names of tensors that no file has: they are zero"""
OUTPUT = "proj_out.weight"
"""output layer in files that repeat the embedding"""
PLACES = "encoder.embed_positions.weight"
"""positions of the encoder, without the start of the names"""
STRIDE = 2
"""number of frames that the encoder reads as one"""


class Sizes(NamedTuple):
    """What a config.json says about the frames."""

    features: int
    places: int
    """number of positions of the encoder"""


def settings_of(c: Mapping[str, Any], sinusoidal: bool) -> tuple[config.Pair, Sizes]:
    """The settings of a config.json. sinusoidal: whether the positions of the encoder are sinusoids."""
    require(
        "quantization_config" not in c,
        "config.json has a quantization_config: import the model that was not quantized",
    )
    c = FAMILY.complete(c)
    encoder, decoder = (_side(c, side) for side in ("encoder", "decoder"))
    encoder = config.replace(encoder, max_length=c["max_source_positions"])
    if sinusoidal:
        encoder = config.replace(encoder, positions="sinusoidal", sinusoids="tensor2tensor")
    return config.Pair(encoder, decoder, "identity"), Sizes(c["num_mel_bins"], c["max_source_positions"])


def _side(c: Mapping[str, Any], side: str) -> config.Transformer:
    """The Transformer of the encoder or the decoder, with learned positions."""
    return config.Transformer(
        width=c["d_model"],
        heads=c[f"{side}_attention_heads"],
        feedforward=c[f"{side}_ffn_dim"],
        encoder_layers=c["encoder_layers"],
        decoder_layers=c["decoder_layers"],
        activation=activation(c["activation_function"], "activation_function"),
        norm="pre",
        epsilon=EPSILON,
        positions="learned",
        max_length=c["max_target_positions"],
        scale_embedding=False,
        tie="output",
        output_bias=False,
        dropout=float(c["dropout"]),
    )


def table_row(settings: config.Pair, prefix: str, size: int) -> Row:
    """The correspondence of the embedding, which is also the output layer."""
    name = f"{prefix}decoder.embed_tokens.weight"
    return Row("target_embedding/table", (name,), (size, settings.decoder.embedding_size), vocabulary="target")


def rows(settings: config.Pair, features: int, prefix: str) -> list[Row]:
    """The correspondences of all parameters but the embedding."""
    width = settings.encoder.embedding_size
    found = []
    for ours, theirs, inputs in (("first", "conv1", features), ("second", "conv2", width)):
        name = f"{prefix}encoder.{theirs}"
        kernel = Row(f"source_frontend/{ours}/kernel", (f"{name}.weight",), (width, inputs, 3), transpose=True)
        found += [kernel, Row(f"source_frontend/{ours}/bias", (f"{name}.bias",), (width,))]
    for side in ("encoder", "decoder"):
        both = FAMILY.rows(getattr(settings, side), prefix)
        found += [row for row in both if row.ours.startswith(f"{side}/")]
    return found
