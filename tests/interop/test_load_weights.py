"""An imported model computes what transformers computes, and its export is what transformers saved."""

import jax
import numpy as np
import pytest
from interop.folders import (
    IMPORTED,
    add_aliases,
    build,
    change_config,
    change_tensors,
    hf_config,
    load,
    sizes,
    stored,
    write_folder,
)
from references.pretrained_cases import foreign_ids

from s2sjax import config, interop
from s2sjax.core.special_tokens import PAD
from s2sjax.interop import safetensors_files
from s2sjax.testing.model_laws import LAWS, PureModel

VOCABULARY = 40


def logits(imported: interop.Imported, source, target, *sizes: int) -> np.ndarray:
    model = build(imported.settings, *(sizes or (VOCABULARY,)))
    return np.asarray(jax.jit(model.apply)({"params": imported.params}, source, target))


def expect_logits(name: str, imported: interop.Imported) -> None:
    case = stored(name)
    source, target = case["source"].astype(np.int32), case["target"].astype(np.int32)
    real = target != PAD
    found = logits(imported, source, target, *sizes(name))
    np.testing.assert_allclose(found[real], case["logits"][real], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", IMPORTED)
def test_the_logits_are_those_of_transformers(name, tmp_path):
    imported = load(name, tmp_path)
    expect_logits(name, imported)
    assert np.ptp(stored(name)["logits"]) > 1, "logits that hardly differ test nothing"
    assert imported.dtype == ("bfloat16" if name.endswith("bfloat16") else "float32")


@pytest.mark.parametrize("name", ["marian", "bart-untied", "m2m_100", "t5", "t5-v1.1", "umt5"])
def test_single_steps_equal_teacher_forcing(name, tmp_path):
    imported = load(name, tmp_path)
    model = PureModel(imported.settings, VOCABULARY)
    model.params = {"params": jax.tree.map(jax.numpy.asarray, imported.params)}
    next(law for law in LAWS if law.__name__ == "steps_equal_teacher_forcing")(model)


@pytest.mark.parametrize("name", IMPORTED)
def test_the_parameters_are_those_of_the_model(name, tmp_path):
    imported = load(name, tmp_path)
    ids = np.ones((1, 2), np.int32)
    expected = jax.eval_shape(build(imported.settings, *sizes(name)).init, jax.random.key(0), ids, ids)["params"]
    shapes = jax.tree.map(lambda leaf: leaf.shape, expected)
    assert jax.tree.map(lambda leaf: leaf.shape, imported.params) == shapes
    assert {leaf.dtype for leaf in jax.tree.leaves(imported.params)} == {np.dtype("float32")}


@pytest.mark.parametrize("name", IMPORTED)
def test_the_export_of_an_import_is_the_original_bit_for_bit(name, tmp_path):
    imported = load(name, tmp_path / "original")
    again = dict(safetensors_files.read(tmp_path / "original"))
    page, tensors = interop.dump(imported.settings, imported.params, foreign_ids(hf_config(name)), imported.origin)
    assert page == hf_config(name)
    assert tensors.keys() == again.keys()
    [path] = safetensors_files.write(tmp_path / "exported", tensors)
    assert path.read_bytes() == stored(name)["model.safetensors"].tobytes()


@pytest.mark.parametrize("name", ["marian", "bart-untied", "t5-v1.1"])
def test_permuting_the_ids_changes_nothing(name, tmp_path):
    """Another order of the ordinary ids: the same logits, in that order."""
    imported = load(name, tmp_path / "original")
    foreign = foreign_ids(hf_config(name))
    order = np.concatenate([np.arange(4), 4 + np.random.default_rng(0).permutation(VOCABULARY - 4)])
    other = interop.load(tmp_path / "original", foreign[order])
    case = stored(name)
    source, target = case["source"].astype(np.int32), case["target"].astype(np.int32)
    place = np.argsort(order)
    np.testing.assert_allclose(
        logits(other, place[source], place[target])[..., place], logits(imported, source, target), atol=1e-5, rtol=0
    )
    tensors = interop.dump(other.settings, other.params, foreign[order], other.origin)[1]
    [path] = safetensors_files.write(tmp_path / "exported", tensors)
    assert path.read_bytes() == case["model.safetensors"].tobytes()


def test_settings_of_each_family(tmp_path):
    """What tells the families apart, by hand."""
    of = lambda name: load(name, tmp_path / name).settings
    tiny = dict(width=16, heads=2, feedforward=24, encoder_layers=2, decoder_layers=3, max_length=12, epsilon=1e-5)
    gelu = dict(**tiny, activation="gelu", tie="all", dropout=0.1)
    assert of("marian") == config.Transformer(**{**gelu, "activation": "swish"}, output_bias=True, decoder_start="pad")
    assert of("bart") == config.Transformer(
        **gelu, norm_embedding=True, positions="learned", scale_embedding=False, output_bias=True, decoder_start="eos"
    )
    assert of("m2m_100") == config.Transformer(
        **{**gelu, "activation": "relu"}, norm="pre", sinusoids="tensor2tensor", first_position=2, output_bias=False,
        decoder_start="eos",
    )  # fmt: skip
    assert of("blenderbot") == config.Transformer(
        **gelu, norm="pre", positions="learned", scale_embedding=False, output_bias=True, decoder_start="sos"
    )
    t5 = dict(
        width=16, heads=3, head_width=4, feedforward=24, encoder_layers=2, decoder_layers=3, norm="pre", biases=False,
        normalization="rms", positions="relative", scale_embedding=False, output_bias=False, decoder_start="pad",
    )  # fmt: skip
    assert of("t5") == config.Transformer(**t5, tie="all", scale_output=True)
    assert of("t5-v1.1") == config.Transformer(**t5, tie="embeddings", activation="gelu_tanh", gated=True)
    umt5 = config.Transformer(**t5, share_positions=False, activation="gelu_tanh", gated=True, scale_output=True)
    assert of("umt5") == config.replace(umt5, tie="all")
    assert of("umt5-untied") == config.replace(umt5, tie="embeddings", scale_output=False)
    assert of("marian-two") == config.replace(of("marian"), tie="output")


# -------------------------------------------------------------------- other spellings of the same model


def expect_identity(folder, name) -> None:
    """The model of a folder computes the same, and its export has the folder's tensors."""
    imported = interop.load(folder, foreign_ids(hf_config(name)))
    expect_logits(name, imported)
    tensors = interop.dump(imported.settings, imported.params, foreign_ids(hf_config(name)), imported.origin)[1]
    original = dict(safetensors_files.read(folder))
    assert tensors.keys() == original.keys()
    for tensor, value in original.items():
        assert tensors[tensor].dtype == value.dtype and tensors[tensor].tobytes() == value.tobytes(), tensor


def rename_shared(tensors) -> None:
    tensors["lm_head.weight"] = tensors.pop("model.shared.weight")


def add_ignored(tensors) -> None:
    tensors["model.encoder.version"] = np.array([3.0], np.float32)


@pytest.mark.parametrize("change", [add_aliases, rename_shared, add_ignored])
def test_files_may_name_tied_tensors_otherwise(change, tmp_path):
    expect_identity(change_tensors(write_folder("bart", tmp_path), change), "bart")


def test_a_t5_of_an_older_version(tmp_path):
    """Without scale_decoder_outputs, and with an output layer of its own that tie_word_embeddings announces."""
    folder = change_config(write_folder("t5-v1.1", tmp_path), tie_word_embeddings=False, scale_decoder_outputs=...)
    extra = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    change_tensors(folder, lambda tensors: tensors.update({extra: np.zeros((32, 3), np.float32)}))
    expect_identity(folder, "t5-v1.1")
    # One of v1.0 leaves out what its class has as defaults.
    left_out = dict.fromkeys(("tie_word_embeddings", "scale_decoder_outputs", "feed_forward_proj", "dropout_rate"), ...)
    expect_identity(change_config(write_folder("t5", tmp_path / "v1.0"), **left_out), "t5")


def test_a_model_that_was_saved_without_its_output_layer(tmp_path):
    """Such files of BART have no bias of the logits, and no prefix."""

    def strip(tensors):
        del tensors["final_logits_bias"]
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    whole = load("bart", tmp_path / "whole")
    folder = change_tensors(write_folder("bart", tmp_path / "stripped"), strip)
    imported = interop.load(folder, foreign_ids(hf_config("bart")))
    assert not imported.settings.output_bias
    del whole.params["decoder"]["output"]
    jax.tree.map(np.testing.assert_array_equal, imported.params, whole.params)
    tensors = interop.dump(imported.settings, imported.params, foreign_ids(hf_config("bart")), imported.origin)[1]
    assert tensors.keys() == safetensors_files.read(folder).keys()


def test_a_bias_of_zeros_is_no_parameter(tmp_path):
    zero = lambda tensors: tensors.update(final_logits_bias=np.zeros((1, VOCABULARY), np.float32))
    folder = change_tensors(write_folder("marian", tmp_path), zero)
    imported = interop.load(folder, foreign_ids(hf_config("marian")))
    assert imported.settings.output_bias is False and "output" not in imported.params["decoder"]
    tensors = interop.dump(imported.settings, imported.params, foreign_ids(hf_config("marian")), imported.origin)[1]
    np.testing.assert_array_equal(tensors["final_logits_bias"], np.zeros((1, VOCABULARY)))


def test_shards_are_one_model(tmp_path):
    tensors = dict(safetensors_files.read(write_folder("m2m_100", tmp_path / "one")))
    paths = safetensors_files.write(tmp_path / "shards", tensors, shard_bytes=20_000)
    assert len(paths) > 2
    (tmp_path / "shards/config.json").write_bytes((tmp_path / "one/config.json").read_bytes())
    expect_identity(tmp_path / "shards", "m2m_100")
