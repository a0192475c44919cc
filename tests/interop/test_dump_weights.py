"""Transformers of s2sjax as models of transformers, and imported models that were trained on."""

import hashlib
import json

import jax
import numpy as np
import pytest
from interop.folders import add_aliases, build, change_tensors, hf_config, load, write_folder
from references import of_transformers
from references.pretrained_cases import EXPORTED, TINY, draw_parameters, foreign_ids, own_foreign

from s2sjax import config, interop
from s2sjax.core.special_tokens import PAD
from s2sjax.errors import UserError
from s2sjax.interop import safetensors_files


@pytest.mark.parametrize("name", EXPORTED)
def test_transformers_computes_the_logits_of_an_export(name, tmp_path):
    """The stored logits are those of transformers, from the files that `dump` still writes."""
    settings, sizes = EXPORTED[name]
    case, params = of_transformers(f"exported/{name}"), draw_parameters(settings, sizes)
    page, tensors = interop.dump(settings, params, own_foreign(sizes))
    [path] = safetensors_files.write(tmp_path, tensors)
    assert page == json.loads(str(case["config.json"]))
    assert page["model_type"] == name.partition("-")[0]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == str(case["digest"])
    real = case["target"] != PAD
    found = np.asarray(jax.jit(build(settings, *sizes).apply)({"params": params}, case["source"], case["target"]))
    assert np.ptp(found[real]) > 1
    np.testing.assert_allclose(found[real], case["logits"][real], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", EXPORTED)
def test_an_export_is_imported_again(name, tmp_path):
    settings, sizes = EXPORTED[name]
    params = draw_parameters(settings, sizes)
    page, tensors = interop.dump(settings, params, own_foreign(sizes))
    safetensors_files.write(tmp_path, tensors)
    (tmp_path / "config.json").write_text(json.dumps(page))
    again = interop.load(tmp_path, own_foreign(sizes))
    known = {"epsilon", "output_bias", "head_width"}  # the epsilon is theirs, and the others are spelled out
    differing = {field for field in vars(settings) if getattr(settings, field) != getattr(again.settings, field)}
    assert differing - known == ({"max_length"} if settings.positions in ("sinusoidal", "relative") else set())
    rounding = 1.2e-7 if name == "t5" else 0  # the square root of its head width is no float
    for found, expected in zip(jax.tree.leaves(again.params), jax.tree.leaves(params)):
        np.testing.assert_allclose(found, expected, rtol=rounding, atol=0)


FITTING = config.Transformer(**TINY, tie="all")
REFUSED = {
    "rotary": (dict(positions="rotary"), "model.positions 'rotary'"),
    "none": (dict(positions="none"), "model.positions 'none'"),
    "window": (dict(window=2), "model.window 2"),
    "concat": (dict(join_positions="concat"), "model.join_positions 'concat'"),
    "gated": (dict(gated=True), "model.gated True"),
    "rms": (dict(normalization="rms"), "model.normalization 'rms'"),
    "biases": (dict(biases=False), "model.biases False"),
    "head_width": (dict(head_width=3), "model.head_width 3"),
    "scale_output": (dict(scale_output=True), "model.scale_output True"),
    "epsilon": (dict(epsilon=1e-3), "model.epsilon 0.001 (where it has 1e-05)"),
    "first_position": (dict(first_position=5), "model.first_position 5"),
    "post-learned": (dict(positions="learned"), "model.positions 'learned'"),
    "tensor2tensor": (
        dict(norm="pre", sinusoids="tensor2tensor", first_position=4, output_bias=False), "model.first_position is 4",
    ),
    "relative": (dict(norm="pre", positions="relative", biases=False), "model.biases False"),
}  # fmt: skip


@pytest.mark.parametrize("change, named", REFUSED.values(), ids=REFUSED)
def test_what_no_format_holds_is_refused_by_name(change, named):
    with pytest.raises(UserError) as error:
        interop.dump(config.replace(FITTING, **change), {}, np.arange(40))
    assert named in str(error.value) and "\n" not in str(error.value)


def test_only_marian_has_two_vocabularies():
    with pytest.raises(UserError, match=r"vocabularies of their own, and pegasus has one.*data\.shared True"):
        interop.dump(config.Transformer(**TINY, norm="pre"), {}, (np.arange(40), np.arange(36)))


def test_there_are_only_formats_of_transformers():
    with pytest.raises(UserError, match=r"'gpt2' is none of the formats.*marian"):
        interop.dump(FITTING, {}, np.arange(40), model_type="gpt2")
    with pytest.raises(UserError, match=r"the nearest, bart.*model\.norm_embedding False"):
        interop.dump(FITTING, {}, np.arange(40), model_type="bart")
    with pytest.raises(UserError, match="the dtype 'int8' is none of float32"):
        interop.dump(FITTING, {}, np.arange(40), dtype="int8")


# -------------------------------------------------------------------- after training


@pytest.mark.parametrize("name", ["bart", "t5-inexact", "t5-v1.1"])
def test_trained_parameters_are_in_every_tensor_of_the_export(name, tmp_path):
    """Tied tensors that a file has twice both change, and so do the settings in config.json."""
    folder = write_folder(name, tmp_path / "original")
    if name == "bart":
        change_tensors(folder, add_aliases)
    foreign = foreign_ids(hf_config(name))
    imported = interop.load(folder, foreign)
    random = np.random.default_rng(0)
    move = lambda leaf: leaf + random.normal(size=leaf.shape).astype(np.float32) / 8
    params, settings = jax.tree.map(move, imported.params), config.replace(imported.settings, dropout=0.3)
    page, tensors = interop.dump(settings, params, foreign, imported.origin)
    entry = "dropout" if name == "bart" else "dropout_rate"
    assert page[entry] == 0.3 and {**page, entry: 0.1} | {"activation_dropout": 0.0} == hf_config(name) | {
        "activation_dropout": 0.0
    }
    safetensors_files.write(tmp_path / "trained", tensors)
    (tmp_path / "trained/config.json").write_text(json.dumps(page))
    again = interop.load(tmp_path / "trained", foreign)
    assert again.settings == settings
    for found, expected in zip(jax.tree.leaves(again.params), jax.tree.leaves(params)):
        np.testing.assert_allclose(found, expected, rtol=3e-7)


def test_an_inexact_factor_keeps_its_rounding_errors(tmp_path):
    """sqrt(8) is no float: without them, some of the weights would differ in the last bit."""
    imported = load("t5-inexact", tmp_path)
    kept = [name for name in imported.unused if name.endswith("[ulps]")]
    assert kept and all(name.endswith("q.weight[ulps]") for name in kept)
    assert {int(abs(imported.unused[name]).max()) for name in kept} == {1}
    assert not load("t5", tmp_path / "exact").unused


def test_the_dtype_can_be_chosen(tmp_path):
    imported = load("mbart", tmp_path / "original")
    foreign = foreign_ids(hf_config("mbart"))
    page, tensors = interop.dump(imported.settings, imported.params, foreign, imported.origin, dtype="bfloat16")
    assert page == hf_config("mbart") | {"dtype": "bfloat16"}
    assert {value.dtype.name for value in tensors.values()} == {"bfloat16"}
    safetensors_files.write(tmp_path / "half", tensors)
    (tmp_path / "half/config.json").write_text(json.dumps(page))
    again = interop.load(tmp_path / "half", foreign)
    for found, expected in zip(jax.tree.leaves(again.params), jax.tree.leaves(imported.params)):
        np.testing.assert_allclose(found, expected, rtol=2**-8)


def test_numbers_that_float16_cannot_hold_are_refused():
    params = draw_parameters(FITTING, (40, 40))
    params["decoder"]["blocks"]["stack"]["feedforward"]["inner"]["bias"][1, 2] = 7e4
    interop.dump(FITTING, params, np.arange(40), dtype="bfloat16")
    with pytest.raises(UserError, match=r"tensor model\.decoder\.layers\.1\.fc1\.bias has numbers above 65,504"):
        interop.dump(FITTING, params, np.arange(40), dtype="float16")
