"""Tables of the models of s2sjax. A new model is a row of FAMILIES, and of tests/zoo.py, which tests its laws.

A user's model needs no row: its settings class names its modules, as `encoder_type` and `decoder_type`. See
docs/extending.md and encoder_decoder.py.

Parameters that match no rule of the class's `tensor_rules` are not split over the tensor axis of a mesh.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from s2sjax import config
from s2sjax.config.settings import require
from s2sjax.core.tables import Table
from s2sjax.layers.embedding import Spelling
from s2sjax.models.encoder_decoder import EncoderDecoder
from s2sjax.models.families.cho import ChoDecoder
from s2sjax.models.families.convs2s import ConvDecoder, ConvEncoder
from s2sjax.models.families.dense import DenseDecoder, WindowEncoder
from s2sjax.models.families.gnmt import GNMTDecoder, GNMTEncoder
from s2sjax.models.families.hybrid import HybridDecoder, HybridEncoder
from s2sjax.models.families.luong import LuongDecoder
from s2sjax.models.families.rctm import ConvolutionalEncoder, RCTMDecoder
from s2sjax.models.families.recurrent_parts import RecurrentEncoder
from s2sjax.models.families.rnnsearch import BidirectionalEncoder, RNNsearchDecoder
from s2sjax.models.families.sutskever import SutskeverDecoder
from s2sjax.models.families.transformer import TransformerDecoder, TransformerEncoder

Rules = tuple[tuple[str, tuple[str | None, ...]], ...]
FAMILIES: Table[type, tuple[type[nn.Module], type[nn.Module]]] = Table({
    config.Cho: (RecurrentEncoder, ChoDecoder),
    config.Sutskever: (RecurrentEncoder, SutskeverDecoder),
    config.RNNsearch: (BidirectionalEncoder, RNNsearchDecoder),
    config.Luong: (RecurrentEncoder, LuongDecoder),
    config.GNMT: (GNMTEncoder, GNMTDecoder),
    config.Transformer: (TransformerEncoder, TransformerDecoder),
    config.Hybrid: (HybridEncoder, HybridDecoder),
    config.RCTM: (ConvolutionalEncoder, RCTMDecoder),
    config.ConvS2S: (ConvEncoder, ConvDecoder),
    config.LSTMDense: (RecurrentEncoder, DenseDecoder),
    config.DenseDense: (WindowEncoder, DenseDecoder),
})  # fmt: skip

# Dimensions of parameters that a tensor-parallel mesh splits: see s2sjax/training/mesh.py. A rule for only one side
# starts with "encoder" or "decoder".
_RECURRENT_RULES = (
    (r"encoder/.*(forward|backward)_\d+/(input|state)$", (None, "tensor")),
    (r"decoder/(cell|first|upper_\d+)/(input|state|context|fed)$", (None, "tensor")),
    (r"decoder/(readout|combine)/kernel$", (None, "tensor")),
)
_CONVOLUTION_RULES = (
    (r"encoder/stack/convolution_\d+/kernel$", (None, "tensor")),
    (r"encoder/stack/convolution_\d+/bias$", ("tensor",)),
)
TENSOR_RULES: Table[type, Rules] = Table({
    config.Cho: _RECURRENT_RULES,
    config.Sutskever: ((r"(forward|layer)_\d+/(input|state)$", (None, "tensor")),),  # a shared decoder has none
    config.RNNsearch: _RECURRENT_RULES,
    config.Luong: _RECURRENT_RULES,
    config.GNMT: (
        _RECURRENT_RULES[0],
        (r"decoder/(lowest|upper_\d+)/(input|state|context)$", (None, "tensor")),
    ),
    config.Transformer: (
        (r"(query|key_value|inner|gate)/(kernel|bias)$", ("tensor",)),
        (r"blocks/stack/(attention|cross)/output/kernel$", ("tensor", None)),
        (r"outer/kernel$", ("tensor", None)),
    ),
    config.Hybrid: (  # a rule matches the feed-forward networks too: a side need not have every mixer
        (r"((query|key_value|inner|gate)/(kernel|bias)|(mixer|backward)/(query|key|value|gate))$", ("tensor",)),
        (r"((mixer|backward)/output|(attention|cross|outer)(/output)?/kernel)$", ("tensor", None)),
    ),
    config.RCTM: (*_CONVOLUTION_RULES, (r"decoder/cell/(input|state|context)$", (None, "tensor"))),
    config.ConvS2S: (
        (r"(convolution|ask|answer|enter)/(kernel|direction)$", (None, "tensor")),
        (r"(convolution|ask|answer|enter)/(bias|length)$", ("tensor",)),
    ),
    config.LSTMDense: _RECURRENT_RULES[:1],
    config.DenseDense: _CONVOLUTION_RULES,
})  # fmt: skip


def build_encoder(family: config.Family, inputs: int, dtype=jnp.float32, remat_policy: str = "none") -> nn.Module:
    """The encoder of a family without its decoder: encoder(xs [B, S, inputs], mask [B, S], train) -> EncoderOutput.

    Its states have width `family.encoder_spec.states`.
    """
    return _module_of(family, "encoder_type")(family, inputs, jnp.dtype(dtype), remat_policy)


def encoder_rules(family: config.Family) -> Rules:
    """The rules of only the encoder, whose parameters are below `encoder/`."""
    return _rules_of_side(family, "encoder", "(^|/)")


def tensor_rules(model: config.ModelConfig) -> Rules:
    """The rules of a model. Those of a pair are the rules of each side's family, restricted to that side."""
    if not isinstance(model, config.Pair):
        return _rules(model)
    return _rules_of_side(model.encoder, "encoder", "^") + _rules_of_side(model.decoder, "decoder", "^")


def _rules_of_side(family: config.Family, side: str, start: str) -> Rules:
    """The rules of a family, restricted to parameters below `side`, whose path begins as `start` says."""
    other = "decoder" if side == "encoder" else "encoder"
    rules = [
        (pattern.removeprefix(f"{side}/"), axes) for pattern, axes in _rules(family) if not pattern.startswith(other)
    ]
    return tuple((f"{start}{side}/.*{pattern}", axes) for pattern, axes in rules)


def _rules(side: config.ModelSettings) -> Rules:
    own_modules = side.encoder_type or side.decoder_type
    return side.tensor_rules if side.tensor_rules or own_modules else _of_family(TENSOR_RULES, side, ())


def _module_of(side: config.ModelSettings, name: str) -> Any:
    """The Flax module of a side: `encoder_type` or `decoder_type` of its class, or of its family."""
    module = getattr(side, name) or _of_family(FAMILIES, side, (None, None))[name == "decoder_type"]
    require(
        module is not None,
        f"model {type(side).__name__} has no {name}: set it on the class, see s2sjax/models/registry.py",
    )
    return module


def _of_family(table: Mapping[type, Any], side: config.ModelSettings, default: Any) -> Any:
    """The row of a settings class, or of its nearest base class, in a table."""
    return next((table[kind] for kind in type(side).__mro__ if kind in table), default)


def build(
    model: config.ModelConfig, source_size: int, target_size: int, dtype=jnp.float32,
    source_spelling: Spelling | None = None, target_spelling: Spelling | None = None,
    remat_policy: str = "none", source_frontend: nn.Module | None = None,
) -> EncoderDecoder:  # fmt: skip
    """Builds the Flax module of a model. `source_frontend` is for sources that are not ids: see encoder_decoder.py."""
    encodes, decodes = config.encoder_and_decoder(model)
    require(
        not decodes.ties_embeddings or source_frontend is None,
        f"model.tie '{decodes.tie}' requires a source of words: set it to 'output' or 'none'",
    )
    require(
        not decodes.ties_embeddings or source_size == target_size,
        f"model.tie '{decodes.tie}' requires a shared vocabulary, but the source has {source_size} entries and the "
        f"target {target_size}: set data.shared to True, or use another model.tie",
    )
    encoder, decoder = _module_of(encodes, "encoder_type"), _module_of(decodes, "decoder_type")
    return EncoderDecoder(
        model, encoder, decoder, source_size, target_size, jnp.dtype(dtype),
        source_spelling, target_spelling, remat_policy, source_frontend,
    )  # fmt: skip
