"""A folder that does not fit is one line, which names the entry of config.json or the tensor."""

import numpy as np
import pytest
from interop.folders import change_config, change_tensors, hf_config, write_folder
from references.pretrained_cases import foreign_ids

from s2sjax import interop
from s2sjax.errors import UserError

QUERY = "model.decoder.layers.1.self_attn.q_proj.weight"
SHARED, NORM = "model.shared.weight", "model.decoder.layer_norm.weight"
PLACES = "model.encoder.embed_positions.weight"


def expect_error(name, folder, named: str, foreign=None) -> None:
    with pytest.raises(UserError) as error:
        interop.load(folder, foreign_ids(hf_config(name)) if foreign is None else foreign)
    assert named in str(error.value) and "\n" not in str(error.value), str(error.value)


def changed(name, shape):
    return lambda tensors: tensors.update({name: np.ones(shape, np.float32)})


TENSORS = {
    "missing": ("marian", lambda tensors: tensors.pop(QUERY), f"tensor {QUERY} is missing"),
    "missing table": ("marian", lambda tensors: tensors.pop(SHARED), f"tensor {SHARED} is missing"),
    "missing in t5": (
        "t5", lambda tensors: tensors.pop("decoder.block.2.layer.2.DenseReluDense.wo.weight"),
        "tensor decoder.block.2.layer.2.DenseReluDense.wo.weight is missing",
    ),
    "extra": ("marian", changed(QUERY.replace("1", "3"), (16, 16)), "layers.3.self_attn.q_proj.weight has no place"),
    "extra norm": ("marian", changed(NORM, (16,)), f"tensor {NORM} has no place"),
    "shape": ("bart", changed(QUERY, (16, 8)), f"tensor {QUERY} has shape [16, 8], but by config.json"),
    "rank": ("bart", changed("final_logits_bias", (40,)), "tensor final_logits_bias has shape [40]"),
    "vocabulary": ("pegasus", changed(SHARED, (41, 16)), f"tensor {SHARED} has shape [41, 16]"),
    "dtype": (
        "bart", lambda tensors: tensors.update({QUERY: tensors[QUERY].astype(np.int8)}),
        f"tensor {QUERY} has dtype int8",
    ),
    "float64": (
        "t5", lambda tensors: tensors.update({"shared.weight": tensors["shared.weight"].astype(np.float64)}),
        "tensor shared.weight has dtype float64: save the model as float32",
    ),
    "untied": ("bart", changed("lm_head.weight", (40, 16)), "tensor lm_head.weight differs from model.shared.weight"),
    "untied embedding": (
        "t5", changed("decoder.embed_tokens.weight", (40, 16)), "tensor decoder.embed_tokens.weight differs from shared"
    ),
    "no table of sources": (
        "marian-two", lambda tensors: tensors.pop("model.encoder.embed_tokens.weight"),
        "tensor model.encoder.embed_tokens.weight is missing",
    ),
    "no table of targets": (
        "marian-two", lambda tensors: tensors.pop("model.decoder.embed_tokens.weight"),
        "tensor model.decoder.embed_tokens.weight is missing",
    ),
    "other sinusoids": ("pegasus", changed(PLACES, (12, 16)), f"tensor {PLACES} has no place"),
}  # fmt: skip


@pytest.mark.parametrize("name, change, named", TENSORS.values(), ids=TENSORS)
def test_a_tensor_that_does_not_fit_is_named(name, change, named, tmp_path):
    expect_error(name, change_tensors(write_folder(name, tmp_path), change), named)


ENTRIES = {
    "no type": ("bart", dict(model_type=...), "config.json has no model_type"),
    "another type": ("bart", dict(model_type="llama"), "a model of type 'llama' cannot be imported; marian, "),
    "a type like ours": ("t5", dict(model_type="longt5"), "longt5 cannot be imported: its attention is local"),
    "umt5": ("t5", dict(model_type="umt5"), "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight is"),
    "no umt5": ("umt5", dict(model_type="mt5"), "tensor decoder.block.1.layer.0.SelfAttention.relative_attention_bias"),
    "quantized": ("bart", dict(quantization_config={}), "has a quantization_config"),
    "activation": ("bart", dict(activation_function="mish"), "activation_function 'mish' is none of relu"),
    "t5 activation": ("t5", dict(feed_forward_proj="gated-mish"), "feed_forward_proj 'gated-mish' is none of"),
    "contradiction": ("t5", dict(dense_act_fn="gelu"), "dense_act_fn 'gelu' contradicts feed_forward_proj 'relu'"),
    "heads": ("bart", dict(decoder_attention_heads=4), "heads 2 and decoder_attention_heads 4 differ"),
    "ffn": ("bart", dict(encoder_ffn_dim=32), "encoder_ffn_dim 32 and decoder_ffn_dim 24 differ"),
    "buckets": ("t5", dict(relative_attention_num_buckets=16), "relative_attention_num_buckets is 16"),
    "distance": ("t5", dict(relative_attention_max_distance=64), "relative_attention_max_distance is 64"),
    "start": ("mbart", dict(decoder_start_token_id=None), "decoder_start_token_id of the mbart model is None"),
    "other start": ("bart", dict(decoder_start_token_id=9), "decoder_start_token_id of the bart model is 9"),
    "pad": ("bart", dict(pad_token_id=None), "pad_token_id is null, and must be a whole number"),
    "several ends": ("bart", dict(eos_token_id=[2, 3]), "eos_token_id is [2, 3], and must be a whole number"),
    "other pad": ("pegasus", dict(pad_token_id=9, decoder_start_token_id=9), "pad_token_id is 9, and that of the tok"),
    "vocabulary": ("bart", dict(vocab_size=41), "vocab_size is 41, and the vocabulary has 40 ids"),
    "width": ("bart", dict(d_model="16"), "d_model is \"16\", and must be a whole number"),
    "no width": ("t5", dict(d_model=None), "d_model is null, and must be a whole number"),
    "lists": ("t5", dict(feed_forward_proj=["relu"]), "feed_forward_proj is [\"relu\"], and must be a string"),
    "list of types": ("t5", dict(model_type=["t5"]), "a model of type \"['t5']\" cannot be imported"),
    "list of activations": ("t5", dict(dense_act_fn=["relu"]), "dense_act_fn ['relu'] is none of"),
    "list of starts": ("bart", dict(decoder_start_token_id=[2]), "decoder_start_token_id is [2], and must be a"),
    "no flag": ("bart", dict(scale_embedding=1), "scale_embedding is 1, and must be true or false"),
    "all dropped": ("bart", dict(dropout=1.0), "model.dropout is 1.0: it must be in [0, 1)"),
    "no heads": ("t5", dict(num_heads=0), "model.heads is 0: it must be at least 1"),
    "many layers": ("bart", dict(decoder_layers=10**9), "tensor model.decoder.layers.3.self_attn.q_proj.weight is"),
    "many words": ("t5", dict(vocab_size=10**15), "vocab_size is 1000000000000000, and the vocabulary has 40 ids"),
    "layers": ("bart", dict(decoder_layers=4), "tensor model.decoder.layers.3.self_attn.q_proj.weight is missing"),
    "fewer layers": ("bart", dict(decoder_layers=2), "layers.2.encoder_attn.k_proj.bias has no place"),
    "two vocabularies": ("marian", dict(share_encoder_decoder_embeddings=False), "has two vocabularies: give the ids"),
    "another family": ("marian", dict(model_type="m2m_100"), "tensor model.encoder.layer_norm.weight is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name, entries, named", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_that_does_not_fit_is_named(name, entries, named, tmp_path):
    expect_error(name, change_config(write_folder(name, tmp_path), **entries), named)


def test_two_vocabularies_are_those_of_config_json(tmp_path):
    source, target = foreign_ids(hf_config("marian-two"))
    named = "config.json: decoder_vocab_size is 40, and the vocabulary has 44 ids"
    expect_error("marian-two", write_folder("marian-two", tmp_path / "two"), named, (source, source))
    two = foreign_ids(hf_config("marian")), target
    named = "the tokenizer has two vocabularies, and the marian model of config.json one for both"
    expect_error("marian", write_folder("marian", tmp_path / "one"), named, two)


def test_the_vocabulary_has_each_id_once(tmp_path):
    foreign = foreign_ids(hf_config("bart"))
    foreign[7] = foreign[8]
    expect_error("bart", write_folder("bart", tmp_path), "vocab_size is 40, and the vocabulary has", foreign)


def test_a_folder_without_config_json(tmp_path):
    expect_error("bart", tmp_path, "config.json is missing")
    (tmp_path / "config.json").write_text("{")
    expect_error("bart", tmp_path, "config.json is not JSON")
