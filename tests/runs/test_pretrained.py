"""Import of Hugging Face folders as runs, fine-tuning, and export, as a user does it."""

import json
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pretrained_folders
import pytest
import safetensors.numpy

import s2sjax
from s2sjax import config, interop, models
from s2sjax.errors import UserError
from s2sjax.interop import safetensors_files
from s2sjax.runs import pretrained
from s2sjax.runs.pretrained import translation
from s2sjax.tasks.translation import Translation

LINES = ["Das Haus ist blau.", "Hello <pad> </s> world", "x"]


@pytest.fixture
def folder(tmp_path):
    return lambda name, seed=0: pretrained_folders.make(name, tmp_path, seed)


def tensors(path) -> dict[str, bytes]:
    found = safetensors_files.read(path)
    return {name: (found.dtype(name), found[name].tobytes()) for name in found}


def same_files(one, other) -> None:
    assert tensors(one) == tensors(other)
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    for path in one.glob("*.*"):
        if path.suffix == ".json":
            assert json.loads(path.read_text()) == json.loads((other / path.name).read_text()), path.name
        elif path.suffix != ".safetensors":
            assert path.read_bytes() == (other / path.name).read_bytes()


@pytest.mark.parametrize("name", [*pretrained_folders.SETTINGS])
def test_an_import_decodes_scores_and_is_exported_as_it_was(name, folder, tmp_path):
    there, said = folder(name), []
    options = pretrained_folders.languages(name)
    run = pretrained.import_pretrained(there, tmp_path / "run", **options, say=said.append)
    assert said[0].startswith("imported ") and said[0].endswith("weights, stored as float32")
    remarks = ["do_sample True of generate is not taken: set search.sampling.count for random outputs"]
    remarks += [translation.DIVIDED] if name == "umt5" else []
    assert said[1:-1] == [f"  {line}" for line in remarks]

    search = run.experiment.search
    assert (search.beam_size, search.length_penalty, search.alpha) == (3, "power", 0.6)
    assert (search.stop, search.forced, search.max_length) == ("heuristic", "free", 29)

    run = s2sjax.load(tmp_path / "run")
    tag = ">>deu<< " if name.startswith("marian") else ""
    lines = [tag + line for line in LINES]
    outputs = run.nbest(lines, max_length=8)
    assert all(isinstance(output.text, str) and np.isfinite(output.score) for (output,) in outputs)
    forced = run.task.assets["target"].forced_begin
    assert all(tuple(output.ids[: len(forced)]) == forced for (output,) in outputs)

    source, target = (run.task.assets[side] for side in ("source", "target"))
    found = interop.load(there, (source.foreign, target.foreign))
    module = models.build(found.settings, source.size, target.size)
    assert run.experiment.data.shared == (name != "marian-two")
    read, written = [*source.encode(lines[0]), 2], [*target.encode("Hallo Welt"), 2]
    logits = module.apply({"params": found.params}, jnp.asarray([read]), jnp.asarray([written]))[0]
    log_probs = logits - np.logaddexp.reduce(np.asarray(logits), axis=-1, keepdims=True)
    expected = sum(float(row[token]) for row, token in zip(log_probs, written))
    ((log_prob, tokens),) = run.score([(lines[0], "Hallo Welt")])
    assert tokens == len(written)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5)

    same_files(there, pretrained.export(run, tmp_path / "out"))


PAIRS = "a house\tein Haus\nthe blue house\tdas blaue Haus\nhello\thallo\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "bart", "nllb", "marian-two", "umt5"])
def test_a_fine_tuned_import_is_exported_with_its_logits(name, folder, tmp_path):
    there, options = folder(name), pretrained_folders.languages(name)
    pretrained.import_pretrained(there, tmp_path / "run", **options, say=lambda line: None)
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    train = config.Train(steps=3, warmup_steps=0, evaluate_every=0, label_smoothing=0.1, r_drop=1.0, ema=0.5)
    data = config.Data(config.TextFiles((str(tmp_path / "pairs.tsv"),)))
    experiment = Translation("tuned", init=str(tmp_path / "run"), data=data, train=train)
    run = s2sjax.train(experiment, tmp_path / "tuned")
    assert run.experiment.model == s2sjax.load(tmp_path / "run").experiment.model
    losses = [json.loads(line) for line in (tmp_path / "tuned/metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(line["loss"]) and line["loss"] < 40 for line in losses if "loss" in line)

    out = pretrained.export(run, tmp_path / "out")
    source, target = (run.task.assets[side] for side in ("source", "target"))
    foreign = source.foreign, target.foreign
    again, params = interop.load(out, foreign), run.params()[0]
    before = interop.load(there, foreign)
    module = models.build(again.settings, source.size, target.size)
    ids = np.arange(target.size, dtype=np.int32).reshape(1, -1)[:, :60]
    logits = [module.apply({"params": each}, ids, ids) for each in (params, again.params, before.params)]
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-4)
    assert np.abs(logits[2] - logits[0]).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["umt5", "bart"])
def test_adapters_alone_give_the_merged_matrices(name, folder, tmp_path):
    """W + lora_alpha / r * B A, as PEFT adds them."""
    there = folder(name)
    pretrained.import_pretrained(there, tmp_path / "run", say=lambda line: None)
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    model = config.replace(s2sjax.load(tmp_path / "run").experiment.model, adapter_rank=2, adapter_scale=0.5)
    train = config.Train(steps=2, warmup_steps=0, learning_rate=1e-2, evaluate_every=0)
    data = config.Data(config.TextFiles((str(tmp_path / "pairs.tsv"),)), shared=True)
    experiment = Translation("tuned", init=str(tmp_path / "run"), data=data, model=model, train=train)
    run = s2sjax.train(experiment, tmp_path / "tuned")
    out = pretrained.export(run, tmp_path / "adapters", "peft")
    page = json.loads((out / "adapter_config.json").read_text())
    assert (page["peft_type"], page["r"], page["lora_alpha"]) == ("LORA", 2, 1.0)
    adapters = safetensors.numpy.load_file(out / "adapter_model.safetensors")
    before = safetensors_files.read(there)
    merged = safetensors_files.read(pretrained.export(run, tmp_path / "merged"))
    changed = {name for name in before if not np.array_equal(before[name], merged[name])}
    assert len(changed) == len(adapters) // 2
    for full in changed:
        start = f"base_model.model.{full.removesuffix('.weight')}"
        a, b = (adapters[f"{start}.lora_{letter}.weight"] for letter in "AB")
        assert full.split(".")[-2] in page["target_modules"]
        np.testing.assert_allclose(before[full] + page["lora_alpha"] / page["r"] * b @ a, merged[full], atol=1e-5)
    assert page["base_model_name_or_path"] == str(tmp_path / "run")
    more = config.replace(experiment, name="more", init=str(tmp_path / "tuned"))
    longer = s2sjax.train(more, tmp_path / "more")
    page = json.loads((pretrained.export(longer, tmp_path / "longer", "peft") / "adapter_config.json").read_text())
    assert page["base_model_name_or_path"] == str(tmp_path / "run"), "its adapters continue those of tuned"
    shutil.rmtree(tmp_path / "tuned")
    page = json.loads((pretrained.export(longer, tmp_path / "alone", "peft") / "adapter_config.json").read_text())
    assert page["base_model_name_or_path"] == str(tmp_path / "tuned"), "what that run had continued is unknown"
    frozen = config.replace(experiment, train=config.replace(train, frozen=("^encoder/",)))
    with pytest.raises(
        UserError, match=r"frozen has trained more than its adapters, because train[.]frozen is set: use"
    ):
        pretrained.export(s2sjax.train(frozen, tmp_path / "frozen"), tmp_path / "none", "peft")
    with pytest.raises(UserError, match="the run has no low-rank adapters"):
        pretrained.export(s2sjax.load(tmp_path / "run"), tmp_path / "none", "peft")


@pytest.mark.slow
def test_two_imports_are_an_ensemble(call, folder, tmp_path):
    for seed, name in enumerate(("one", "two")):
        there = folder("bart", seed)
        assert call("import", there, tmp_path / name)[0] == 0
        (there / "model.safetensors").unlink()
    stdin = b"a line\n"
    each = [call("decode", tmp_path / name, "--scores", stdin=stdin) for name in ("one", "two")]
    both = call("decode", tmp_path / "one", "--also", tmp_path / "two", "--scores", stdin=stdin)
    assert [code for code, *_ in (*each, both)] == [0, 0, 0]
    assert len({out for _, out, _ in (*each, both)}) == 3


def test_the_commands(call, folder, tmp_path):
    there = folder("nllb")
    (tmp_path / "test.tsv").write_text("a house\tein Haus\n")
    languages = "--source-language", "eng_Latn", "--target-language", "deu_Latn"
    code, out, err = call("import", there, tmp_path / "run", *languages, "--test", tmp_path / "test.tsv")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].endswith("run: translate lines with s2sjax decode " + out.split()[-1])
    code, out, err = call("decode", tmp_path / "run", stdin=b"a house\n\nfra_Latn a house\n")
    assert (code, err, len(out.splitlines())) == (0, "", 3)
    assert call("evaluate", tmp_path / "run")[0] == 0
    assert call("export", tmp_path / "run", tmp_path / "out", "--dtype", "bfloat16")[0] == 0
    stored = safetensors_files.read(tmp_path / "out")
    assert {stored.dtype(name) for name in stored} == {"bfloat16"}
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"


def test_mistakes_are_one_line(call, folder, tmp_path):
    there = folder("nllb")

    def refused(*arguments) -> str:
        code, out, err = call(*arguments)
        assert code != 0 and out == "" and err.startswith("error: ") and len(err.splitlines()) == 1
        return err

    assert "is not a folder: name one with config.json" in refused("import", tmp_path / "none", tmp_path / "run")
    assert "by --target-language, one of ace_Arab" in refused("import", there, tmp_path / "run")
    wrong = "--source-language", "eng_Latn", "--target-language", "deu_Lat"
    assert "did you mean deu_Latn?" in refused("import", there, tmp_path / "run", *wrong)
    assert not (tmp_path / "run").exists()
    page = json.loads((there / "config.json").read_text())
    (there / "config.json").write_text(json.dumps(page | {"model_type": "llama"}))
    assert "llama" in refused("import", there, tmp_path / "run")
    (there / "config.json").unlink()
    assert "config.json" in refused("import", there, tmp_path / "run")


@pytest.mark.parametrize("same_order", [True, False])
def test_two_vocabularies_need_two_tables(same_order, folder, tmp_path):
    """Also if special tokens and tags have the same ids in both, so that the permutations are equal."""
    there = folder("marian")
    vocab = json.loads((there / "vocab.json").read_text())
    special = re.compile("</s>|<unk>|<pad>" + "|>>.*<<" * same_order)
    other = {piece if special.fullmatch(piece) else f"other {id}": id for piece, id in vocab.items()}
    (there / "target_vocab.json").write_text(json.dumps(other))
    settings = json.loads((there / "tokenizer_config.json").read_text()) | {"separate_vocabs": True}
    (there / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"the tokenizer has two vocabularies, and the .* are of different models$"):
        pretrained.import_pretrained(there, tmp_path / "run")


def test_what_is_no_run_of_its_own_is_refused(folder, tmp_path):
    there = folder("t5")
    run = pretrained.import_pretrained(there, tmp_path / "run", say=lambda line: None)
    with pytest.raises(UserError, match="run is a run already: give another folder"):
        pretrained.import_pretrained(there, tmp_path / "run")
    with pytest.raises(UserError, match="exists and is not empty"):
        pretrained.export(run, there)
    with pytest.raises(UserError, match="there is no format 'onnx': choose from hf, ctranslate2, peft"):
        pretrained.export(run, tmp_path / "new", "onnx")


@pytest.mark.slow
def test_an_export_to_ctranslate2_gives_the_scores_of_the_run(folder, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    run = pretrained.import_pretrained(folder("bart"), tmp_path / "run", say=lambda line: None)
    out = pretrained.export(run, tmp_path / "out", "ctranslate2")
    source, target = (run.task.assets[side] for side in ("source", "target"))
    pairs = [("a house", "ein Haus"), ("hello world", "hallo")]
    pieces = [[vocabulary.pieces(vocabulary.encode(text)) for text in texts]
              for vocabulary, texts in zip((source, target), zip(*pairs))]  # fmt: skip
    scored = ctranslate2.Translator(str(out)).score_batch(*pieces)
    ours = [log_prob for log_prob, _ in run.score(pairs)]
    np.testing.assert_allclose([sum(each.log_probs) for each in scored], ours, atol=1e-4)


@pytest.mark.slow
def test_the_python_of_the_page_runs(folder, tmp_path, monkeypatch):
    """The experiments are built; what uses CTranslate2 runs, with a small model."""
    pytest.importorskip("ctranslate2")
    monkeypatch.chdir(tmp_path)
    run = pretrained.import_pretrained(folder("marian"), "runs/medical", say=lambda line: None)
    pretrained.export(run, "exported-ct2", "ctranslate2")
    page = (Path(__file__).parents[2] / "docs/pretrained.md").read_text(encoding="utf-8")
    programs = re.findall("```python\n(.*?)```", page, re.S)
    assert len(programs) == 6
    for program in programs:
        names: dict = {}
        exec(program, names)
        built = [value for value in names.values() if isinstance(value, config.Experiment)]
        assert built or "translate_batch" in program
        assert all(experiment.init.startswith("runs/") for experiment in built)


def test_an_import_that_was_interrupted_leaves_no_run(folder, tmp_path, monkeypatch):
    there = folder("nllb")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("s2sjax.runs.pretrained.original.keep", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        pretrained.import_pretrained(there, tmp_path / "run", source_language="eng_Latn", target_language="deu_Latn")
    assert not (tmp_path / "run").exists()
    options = {"source_language": "eng_Latn", "target_language": "fra_Latn"}
    run = pretrained.import_pretrained(there, tmp_path / "run", **options)
    assert run.task.assets["target"].default_tag == "fra_Latn"
    same_files(there, pretrained.export(run, tmp_path / "out"))
    assert {path.name for path in tmp_path.iterdir()} == {"nllb", "run", "out"}


@pytest.mark.parametrize(
    "name, value", [("num_beams", "four"), ("length_penalty", [1]), ("early_stopping", "x"), ("max_length", True)]
)
def test_wrong_settings_of_generate_are_named(name, value, folder, tmp_path):
    there = folder("t5")
    (there / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(UserError, match=f"generation_config.json: {name} is "):
        pretrained.import_pretrained(there, tmp_path / "run")


def test_a_model_of_transformers_is_no_run_and_a_run_no_model_of_transformers(folder, tmp_path):
    there = folder("t5")
    with pytest.raises(UserError, match=f"{there} is a model of transformers: first s2sjax import {there} runs/t5"):
        s2sjax.load(there)
    pretrained.import_pretrained(there, tmp_path / "run", say=lambda line: None)
    with pytest.raises(UserError, match=r"config\.json is that of a run of s2sjax, which needs no import"):
        pretrained.import_pretrained(tmp_path / "run", tmp_path / "again")
