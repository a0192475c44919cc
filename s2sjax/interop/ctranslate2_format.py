"""Transformers in the format of CTranslate2, an inference engine for CPUs and GPUs.

The specification of CTranslate2 is filled from arrays, without PyTorch. Its ids are those of s2sjax, and its tokens are
the pieces of the vocabularies:

    pieces = run.task.assets["source"].pieces(run.task.assets["source"].encode("a line"))
    ctranslate2.Translator(folder).translate_batch([pieces])     adds <eos> itself
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from s2sjax import config
from s2sjax.config import require
from s2sjax.core.attention import position_encodings
from s2sjax.core.special_tokens import EOS, SOS, UNK
from s2sjax.data.text.vocabulary import AnyVocabulary
from s2sjax.errors import UserError

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "swish": "SWISH"}
POSITIONS = 1024
"""positions of a table of sinusoids: the longest source and output"""
Params = Mapping[str, Any]


def write(
    out: Path, model: config.Transformer, params: Params, source: AnyVocabulary, target: AnyVocabulary,
    dtype: str = "float32",
) -> Path:  # fmt: skip
    """Writes a folder that `ctranslate2.Translator` opens, and returns it."""
    check(model)
    try:
        from ctranslate2 import specs
    except ImportError:
        raise UserError("the format of CTranslate2 requires its package: pip install ctranslate2") from None
    spec = specs.TransformerSpec.from_config(
        (model.encoder_layers, model.decoder_layers),
        model.heads,
        pre_norm=model.norm == "pre",
        activation=getattr(specs.Activation, ACTIVATIONS[model.activation]),
        layernorm_embedding=model.norm_embedding,
        relative_attention_bias=model.positions == "relative",
        ffn_glu=model.gated,
        rms_norm=model.normalization == "rms",
    )
    table = params["target_embedding"]["table"]
    own = table if model.ties_embeddings else params["source_embedding"]["table"]
    _fill_stack(spec.encoder, model, params["encoder"])
    _fill_stack(spec.decoder, model, params["decoder"])
    spec.encoder.embeddings[0].weight, spec.decoder.embeddings.weight = own, table
    _fill_output(spec.decoder, model, params["decoder"].get("output", {}), table)
    _name_tokens(spec, model, source, target)
    spec.validate()
    spec.optimize(quantization=None if dtype == "float32" else dtype)
    out.mkdir(parents=True, exist_ok=True)
    spec.save(str(out))
    return out


def check(model: config.Transformer) -> None:
    """Raises a UserError for what the format cannot hold."""
    for field, value, held in (
        ("positions", model.positions, model.positions != "rotary"),
        ("window", model.window, model.window == 0),
        ("join_positions", model.join_positions, model.join_positions == "sum"),
    ):
        require(held, f"CTranslate2's format cannot hold model.{field} {value}: keep the model in s2sjax")


def _name_tokens(spec: Any, model: config.Transformer, source: AnyVocabulary, target: AnyVocabulary) -> None:
    """The vocabularies, the special tokens and the epsilon of the norms."""
    spec.register_source_vocabulary(list(source.all_pieces))
    spec.register_target_vocabulary(list(target.all_pieces))
    pieces = target.all_pieces
    spec.config.unk_token, spec.config.eos_token, spec.config.bos_token = pieces[UNK], pieces[EOS], pieces[SOS]
    spec.config.decoder_start_token = pieces[model.start_token]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = float(model.epsilon)


def _fill_stack(spec: Any, model: config.Transformer, params: Params) -> None:
    """The blocks of an encoder or a decoder, its positions and its norms."""
    positions = params.get("positions", {})
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = _positions(model, positions)
    if model.norm_embedding:
        _fill_norm(spec.layernorm_embedding, positions["norm"])
    if model.norm == "pre":
        _fill_norm(spec.layer_norm, params["final_norm"])
    spec.scale_embeddings = bool(model.scale_embedding)
    for layer, block in enumerate(spec.layer):
        own = _layer(params["blocks"]["stack"], layer)
        _fill_attention(block.self_attention, model, own["attention"], own["around_attention"], joined=True)
        if model.positions == "relative":
            table = positions["relative"] if model.share_positions else own["attention"]["relative"]
            block.self_attention.relative_attention_bias = table
            furthest = np.dtype("int32").type(position_encodings.FURTHEST)
            block.self_attention.relative_attention_max_distance = furthest
        if "cross" in own:
            _fill_attention(block.attention, model, own["cross"], own["around_cross"], joined=False)
        _fill_feedforward(block.ffn, own["feedforward"], own["around_feedforward"])


def _positions(model: config.Transformer, params: Params) -> np.ndarray:
    """The table of positions [n, width]."""
    if model.positions == "learned":
        return params["table"]
    if model.positions == "none":
        return np.zeros((POSITIONS, model.width), np.float32)
    place = jnp.arange(POSITIONS) + model.first_position
    return np.asarray(position_encodings.sinusoidal(place, model.width, model.sinusoids), np.float32)


def _fill_attention(spec: Any, model: config.Transformer, own: Params, around: Params, joined: bool) -> None:
    """Self-attention has one product for queries, keys and values; cross-attention one for queries, and another."""
    spec.queries_scale = np.dtype("float32").type((model.attention_width // model.heads) ** -0.5)
    _fill_norm(spec.layer_norm, around["norm"])
    parts = [own["query"], own["key_value"]]
    if joined:
        parts = [{name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}]
    for linear, part in zip(spec.linear, [*parts, own["output"]], strict=True):
        _fill_linear(linear, part)


def _fill_feedforward(spec: Any, own: Params, around: Params) -> None:
    _fill_norm(spec.layer_norm, around["norm"])
    if "gate" in own:
        _fill_linear(spec.linear_0, own["gate"])
        _fill_linear(spec.linear_0_noact, own["inner"])
    else:
        _fill_linear(spec.linear_0, own["inner"])
    _fill_linear(spec.linear_1, own["outer"])


def _fill_output(spec: Any, model: config.Transformer, own: Params, table: np.ndarray) -> None:
    """The output layer, whose matrix may be the embedding."""
    spec.projection.weight = table if model.ties_output else np.ascontiguousarray(own["kernel"].T)
    if "bias" in own:
        spec.projection.bias = own["bias"]
    if model.scale_output:
        spec.scale_outputs = np.dtype("float32").type(model.width**-0.5)


def _fill_linear(spec: Any, own: Params) -> None:
    spec.weight = np.ascontiguousarray(own["kernel"].T)
    if "bias" in own:
        spec.bias = own["bias"]


def _fill_norm(spec: Any, own: Params) -> None:
    spec.gamma = own["scale"]
    if "bias" in own:
        spec.beta = own["bias"]


def _layer(stack: Params, layer: int) -> Params:
    """The parameters of one layer of a stack."""
    return {
        name: _layer(leaf, layer) if isinstance(leaf, Mapping) else np.ascontiguousarray(leaf[layer])
        for name, leaf in stack.items()
    }
