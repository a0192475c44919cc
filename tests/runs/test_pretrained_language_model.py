"""A GPT-2 as a run of a language model: the logits, continuations and ids of transformers, fine-tuning, and export."""

import json
import shutil

import gpt2_folders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from conftest import refused

import s2sjax
from s2sjax import config
from s2sjax.core.special_tokens import EOS, PAD, SOS, UNK
from s2sjax.data.text import PretrainedVocabulary
from s2sjax.interop import safetensors_files
from s2sjax.runs import pretrained
from s2sjax.tasks import LanguageModel
from s2sjax.tasks.language_model import Continuation, Line, RecurrentLM
from s2sjax.training.checkpoints.fingerprints import named_leaves

each_model = pytest.mark.parametrize("name", gpt2_folders.NAMES)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """imported(name) -> the folder and the run, made once."""
    found = {}

    def make(name):
        if name not in found:
            parent, said = tmp_path_factory.mktemp(name), []
            there = gpt2_folders.write(name, parent)
            run = pretrained.import_pretrained(there, parent / "run", say=said.append)
            found[name] = there, run, said
        return found[name]

    return make


@pytest.fixture
def changed(tmp_path):
    """changed(name, file=entries, ...) -> a folder of its own; entries that are `...` are taken out."""

    def make(name, **files):
        folder = gpt2_folders.write(name, tmp_path)
        for stem, entries in files.items():
            path = folder / f"{stem}.json"
            page = (json.loads(path.read_text()) if path.exists() else {}) | entries
            path.write_text(json.dumps({key: value for key, value in page.items() if value is not ...}))
        return folder

    return make


def tensors(path) -> dict:
    found = safetensors_files.read(path)
    return {name: (found.dtype(name), found.shape(name), found[name].tobytes()) for name in found}


def same_files(one, other) -> None:
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    assert tensors(one) == tensors(other)
    assert json.loads((one / "config.json").read_text()) == json.loads((other / "config.json").read_text())
    others = [path for path in one.iterdir() if path.name not in ("config.json", "model.safetensors")]
    assert len(others) >= 3 and all(path.read_bytes() == (other / path.name).read_bytes() for path in others)


# ------------------------------------------------------------------------------------- the laws


@each_model
def test_ids_are_those_of_transformers(name, imported):
    _, run, _ = imported(name)
    vocabulary, never = run.task.vocabulary, {PAD, SOS, EOS, UNK}
    for text, theirs in zip(gpt2_folders.lines("texts"), gpt2_folders.lines(f"{name}/ids"), strict=True):
        ours = vocabulary.encode(text)
        assert vocabulary.foreign[ours].tolist() == theirs and never.isdisjoint(ours), text
        assert vocabulary.decode([*ours, EOS, *ours]) == text
    size = json.loads(gpt2_folders.stored()[f"{name}/files/config.json"].tobytes())["vocab_size"]
    assert sorted(vocabulary.foreign) == list(range(size + 3)), "every id of the model, and three more"
    assert vocabulary.foreign[[PAD, SOS, UNK]].tolist() == [size, size + 1, size + 2]
    assert vocabulary.spare == (PAD, SOS, UNK)


def logits_of(run, ids):
    """The logits for ids [B, T] of the model, in its order, and the log of their normalizer: [B, T, V], [B, T]."""
    foreign = run.task.vocabulary.foreign
    ours = np.argsort(foreign)
    found, _ = run.task.module.apply({"params": run.params()[0]}, jnp.asarray(ours[ids]), ())
    whole = np.concatenate([np.full((*ids.shape, EOS), -np.inf), found], axis=-1)
    return whole[..., ours][..., : len(foreign) - 3], np.logaddexp.reduce(whole, axis=-1)


@each_model
def test_logits_are_those_of_transformers(name, imported):
    _, run, _ = imported(name)
    expected = gpt2_folders.stored()[f"{name}/logits"]
    found, normalizer = logits_of(run, gpt2_folders.stored()[f"{name}/batch"])
    assert np.abs(found - expected).max() < 1e-4
    np.testing.assert_allclose(normalizer, np.logaddexp.reduce(expected, axis=-1), atol=1e-5)  # <unk> has no part


@each_model
def test_one_token_at_a_time_equals_all_at_once(name, imported):
    _, run, _ = imported(name)
    task, variables = run.task, {"params": run.params()[0]}
    batch = np.argsort(task.vocabulary.foreign)[gpt2_folders.stored()[f"{name}/batch"]]
    whole, _ = task.module.apply(variables, jnp.asarray(batch), ())
    read = np.where(np.arange(8) < [[8], [3]], batch[:, :8], PAD)
    for more in (None, 8):
        state = task.module.apply(variables, jnp.asarray(read), more, method="begin")
        assert state.caches[0][0].shape[2] == (16 if more else 24)
        for t in range(8):
            places = np.array([8 + t, 3 + t])
            token = jnp.asarray(batch[[0, 1], places])
            state, logits = task.module.apply(variables, state, token, method="advance")
            np.testing.assert_allclose(logits[:, EOS:], whole[np.arange(2), places], atol=1e-5)
            assert (np.asarray(logits)[:, [PAD, SOS, UNK]] < -1e29).all()


@each_model
def test_continuations_are_those_of_generate(name, imported):
    _, run, _ = imported(name)
    if name == "released":
        assert run.experiment.search == Continuation(top_k=50, top_p=0.9, after_eos=False)
    else:
        assert run.experiment.search == Continuation(temperature=0.0, after_eos=False)
    written, prompts = gpt2_folders.lines(f"{name}/written"), gpt2_folders.lines("prompts")
    vocabulary = run.task.vocabulary
    expected = [vocabulary.decode(np.argsort(vocabulary.foreign)[ids]) for ids in written]
    # Our maximum counts <eos>, that of `generate` does not.
    assert run.decode(prompts, max_length=9, temperature=0.0) == expected
    assert run.decode(prompts[0], max_length=9, temperature=0.0) == expected[0], "neighbours change nothing"


def test_an_output_may_end_and_a_text_may_be_longer_than_the_model_reads(imported):
    encode = imported("untied")[1].task.vocabulary.encode
    read, written = map(encode, gpt2_folders.lines("prompts")), gpt2_folders.lines("untied/written")
    assert any(0 < len(after) - len(before) < 8 for before, after in zip(read, written))
    _, run, _ = imported("gpt2")
    text = "a house and " * 20
    long, short = run.decode([text, "a"], max_length=30, temperature=0.0)
    assert long.startswith(text) and len(long) > len(text) and short == run.decode("a", max_length=30, temperature=0.0)


@each_model
def test_an_export_is_the_original(name, imported, tmp_path):
    there, run, said = imported(name)
    assert said[0].endswith(f"weights, stored as {'float16' if name == 'released' else 'float32'}") and said[1:-1] == []
    same_files(there, pretrained.export(run, tmp_path / "out"))
    pretrained.export(run, tmp_path / "half", dtype="bfloat16")
    assert {kind for kind, _, _ in tensors(tmp_path / "half").values()} == {"bfloat16"}


# ------------------------------------------------------------------------------------ as a user does it


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "untied"])
def test_a_fine_tuned_model_is_exported_with_its_logits(name, imported, tmp_path):
    _, run, _ = imported(name)
    lines = ["the house is blue", "  two blanks", "", "a house"] * 4
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    data = config.PlainText(train=str(tmp_path / "text.txt"), steps=16, batch_size=2)
    experiment = LanguageModel(
        "tuned", data=data, init=str(run.folder), train=config.Train(steps=3, warmup_steps=0, evaluate_every=0, ema=0.5)
    )
    tuned = s2sjax.train(experiment, tmp_path / "tuned")
    assert tuned.experiment.data.unit == "pretrained" and tuned.experiment.model == run.experiment.model
    before, after = run.params()[0], tuned.params()[0]
    moved = np.abs(before["embedding"]["table"] - after["embedding"]["table"]).max(axis=1)
    assert (moved[[PAD, SOS, UNK]] == 0).all() and (moved[EOS] > 0 or name == "untied")
    out = pretrained.export(tuned, tmp_path / "out")
    again = pretrained.import_pretrained(out, tmp_path / "again", say=lambda line: None)
    batch = gpt2_folders.stored()[f"{name}/batch"]
    np.testing.assert_allclose(logits_of(again, batch)[0], logits_of(tuned, batch)[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "untied"])
def test_low_rank_adapters_are_trained_and_nothing_else(name, imported, tmp_path):
    """Continuations token by token and the export have the merged matrices."""
    _, run, _ = imported(name)
    (tmp_path / "text.txt").write_text("the house is blue\na house\n" * 6)
    model = config.replace(run.experiment.model, adapter_rank=2, adapter_scale=0.5)
    train = config.Train(steps=3, warmup_steps=0, learning_rate=0.05, evaluate_every=0)
    data = config.PlainText(train=str(tmp_path / "text.txt"), steps=16, batch_size=2)
    experiment = LanguageModel("tuned", data=data, model=model, init=str(run.folder), train=train)
    tuned = s2sjax.train(experiment, tmp_path / "tuned")
    template = jax.eval_shape(tuned.task.init, jax.random.key(0))
    stored, merged = tuned.checkpoints(read_only=True).restore_params(template)[0], tuned.params()[0]
    found, before, after = (dict(named_leaves(tree)) for tree in (stored, run.params()[0], merged))
    adapters = {path for path in found if path.endswith(("adapter_a", "adapter_b"))}
    assert len(adapters) == 2 * 5 and found.keys() - adapters == before.keys() == after.keys()
    for path in before:
        np.testing.assert_array_equal(found[path], before[path])
    assert all(np.abs(found[path]).max() > 0 for path in adapters)
    ids = gpt2_folders.stored()[f"{name}/batch"]
    batch = jnp.asarray(np.argsort(run.task.vocabulary.foreign)[ids])
    whole, _ = tuned.task.module.apply({"params": stored}, batch, ())
    np.testing.assert_allclose(tuned.task.module.apply({"params": merged}, batch, ())[0], whole, atol=1e-4)
    state = tuned.task.module.apply({"params": stored}, batch[:, :8], None, method="begin")
    _, logits = tuned.task.module.apply({"params": stored}, state, batch[:, 8], method="advance")
    np.testing.assert_allclose(logits[:, EOS:], whole[:, 8], atol=1e-4)
    out = pretrained.export(tuned, tmp_path / "out")
    again = pretrained.import_pretrained(out, tmp_path / "again", say=lambda line: None)
    found, expected = (logits_of(each, ids)[0] for each in (again, tuned))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    check_adapters(pretrained.export(tuned, tmp_path / "adapters", "peft"), run.folder.parent / name, out)


def check_adapters(adapters, original, merged):
    """W + lora_alpha / r * B A, as PEFT adds them, is the merged matrix: W is transposed in GPT-2 (fan_in_fan_out)."""
    page = json.loads((adapters / "adapter_config.json").read_text())
    assert (page["r"], page["lora_alpha"], page["fan_in_fan_out"]) == (2, 1.0, True)
    found = safetensors.numpy.load_file(adapters / "adapter_model.safetensors")
    before, after = safetensors_files.read(original), safetensors_files.read(merged)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert len(changed) == len(found) // 2
    for name in changed:
        module = name.split(".")[-2]
        start = f"base_model.model.{name.removesuffix('.weight')}"
        a, b = (found[f"{start}.lora_{letter}.weight"] for letter in "AB")
        rank = page["rank_pattern"].get(module, page["r"])
        alpha = page["alpha_pattern"].get(module, page["lora_alpha"])
        assert len(a) == rank and module in page["target_modules"]
        np.testing.assert_allclose(before[name] + alpha / rank * (b @ a).T, after[name], atol=1e-5)


@pytest.mark.slow
def test_the_commands(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gpt2_folders.write("gpt2", tmp_path)
    (tmp_path / "text.txt").write_text("the house\n two  blanks\n")
    code, out, err = call("import", "gpt2", "runs/gpt2", "--test", "text.txt")
    assert (code, err) == (0, "") and "imported gpt2: " in out
    code, out, err = call("decode", "runs/gpt2", "--search.max_length", 8, stdin=b"a\n blau und\n\n")
    assert (code, err, out.count("\n")) == (0, "", 3) and out.splitlines()[1].startswith(" blau und")
    code, out, err = call("evaluate", "runs/gpt2")
    assert (code, err) == (0, "") and "perplexity" in out and "unit:pretrained|vocabulary:341|tokens:" in out
    code, out, err = call("results", "runs/gpt2")
    assert (code, err) == (0, "") and "perplexity" in out
    code, out, err = call("export", "runs/gpt2", "out")
    assert (code, err) == (0, "")
    same_files(tmp_path / "gpt2", tmp_path / "out")
    for arguments, message in (
        (
            ("export", "runs/gpt2", "ct2", "--format", "ctranslate2"),
            "is a TransformerLM, and ctranslate2 is for translation: use hf",
        ),
        (("import", "gpt2", "x", "--test", "a", "b"), "--test has 2 files, and a language model is evaluated on one"),
        (("import", "gpt2", "x", "--source-language", "de"), "the model has no languages to choose from"),
    ):
        code, out, err = call(*arguments)
        assert code == 2 and err.startswith("error: ") and message in err and err.count("\n") == 1, err
    assert not (tmp_path / "ct2").exists() and not (tmp_path / "x").exists()


def test_perplexity_has_blanks_as_they_are_and_no_unknown_words(imported):
    _, run, _ = imported("gpt2")
    task, params = run.task, run.params()[0]
    lines = ["the house", " two  blanks ", ""]
    found = task.predictor()(params, [Line(line) for line in lines])
    ids = [np.array([*task.vocabulary.encode(line), EOS]) for line in lines]
    assert [each.tokens for each in found] == [len(each) for each in ids]
    whole = np.concatenate(ids)
    logits, normalizer = logits_of(run, task.vocabulary.foreign[np.r_[EOS, whole[:-1]]][None])
    nats = normalizer[0] - logits[0][np.arange(len(whole)), task.vocabulary.foreign[whole]]
    np.testing.assert_allclose(sum(each.nats for each in found), nats.sum(), rtol=1e-5)


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config": {"add_cross_attention": True}}, "add_cross_attention is true, which s2sjax does not have"),
        ({"config": {"scale_attn_by_inverse_layer_idx": True}}, "scale_attn_by_inverse_layer_idx is true"),
        ({"config": {"scale_attn_weights": False}}, "scale_attn_weights is false"),
        ({"config": {"activation_function": "tanh"}}, "activation_function 'tanh' is none of"),
        ({"config": {"n_inner": 30}}, "by config.json it should have [16, 30]"),
        ({"config": {"n_layer": 1}}, "h.1.attn.c_attn.bias has no place in the gpt2 model of config.json"),
        ({"config": {"n_layer": 3}}, "h.2.attn.c_attn.weight is missing"),
        ({"config": {"n_positions": 25}}, "by config.json it should have [25, 16]"),
        ({"config": {"vocab_size": 400}}, "by config.json it should have [400, 16]"),
        ({"config": {"vocab_size": 300}}, "the tokenizer has more pieces than the 300 of vocab_size"),
        ({"config": {"vocab_size": "big"}}, "vocab_size in config.json is 'big'"),
        ({"config": {"eos_token_id": 5}}, "eos_token_id in config.json is 5, but 340 in the tokenizer"),
        ({"tokenizer_config": {"eos_token": "<end>"}}, "the tokenizer has no piece '<end>', its eos_token"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(changed, files, message, tmp_path):
    folder = changed("gpt2", **files)
    assert message in refused(lambda: pretrained.import_pretrained(folder, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_merges_that_are_damaged_are_refused(tmp_path):
    folder = gpt2_folders.write("released", tmp_path)
    whole = (folder / "merges.txt").read_text()
    (folder / "merges.txt").write_text(whole + "one two three\n")
    read = lambda: PretrainedVocabulary.from_folder(folder, "target")
    assert "merges.txt does not have two pieces in each line" in refused(read)
    (folder / "merges.txt").unlink()
    assert "merges.txt is missing" in refused(read)


def test_another_language_model_is_not_exported(imported, tmp_path):
    _, run, _ = imported("gpt2")
    shutil.copytree(run.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "pretrained")
    other = s2sjax.load(tmp_path / "run")
    message = refused(lambda: pretrained.export(other, tmp_path / "out"))
    assert message.startswith("only a language model that was imported")
    longer = lambda: config.replace(run.experiment, data=config.replace(run.experiment.data, steps=25))
    assert "data.steps 25 is more than model.max_length 24" in refused(longer)


def test_a_model_of_ones_own_can_have_the_vocabulary(imported):
    """A new model does not predict <unk> either, since no text has it."""
    _, run, _ = imported("gpt2")
    experiment = config.replace(run.experiment, model=RecurrentLM(4, 4, 1))
    task = experiment.task().replace(assets=run.task.assets)
    assert task.module.words == task.vocabulary.size - 3
    params = task.init(jax.random.key(0))
    found, _ = task.module.apply({"params": params}, jnp.full((1, 2), EOS), task.carry(1))
    assert (np.asarray(found)[..., UNK - EOS] < -1e29).all() and (np.asarray(found)[..., UNK - EOS + 1 :] > -9).all()
