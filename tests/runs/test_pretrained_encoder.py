"""A BERT or RoBERTa as a run: words are filled in, and it starts pre-training, classifiers and taggers."""

import json
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import refused
from interop.encoder_folders import NAMES, write_folder
from interop.folders import change_tensors
from pretrained_folders import same_files

import s2sjax
from s2sjax import config
from s2sjax.config import InMemory, Text, Train, Transformer
from s2sjax.core.special_tokens import CLS, EOS, UNK
from s2sjax.data import text
from s2sjax.interop import safetensors_files
from s2sjax.runs import pretrained, train_run
from s2sjax.runs.initial_settings import take
from s2sjax.runs.pretrained import encoder, original
from s2sjax.runs.run import Run
from s2sjax.tasks import Classification, Pretraining, Recognition, Tagging
from s2sjax.tasks.classification.settings import LabelData, LabelModel
from s2sjax.tasks.pretraining import Line, Paragraphs
from s2sjax.tasks.tagging import tagged_sentences
from s2sjax.tasks.tagging.settings import TagData, TaggerModel
from s2sjax.testing import verify_task
from s2sjax.training import mesh
from s2sjax.training.checkpoints.fingerprints import named_leaves

TRAIN = Train(2, log_every=1, evaluate_every=0)
LABELS = [("lu ra", "a"), ("np zo.", "b"), ("a b", "a")] * 2
TAGS = [("Luge ra servaut", "D N V"), ("glxa, zo", "N N"), ("\u200b dcadt", "N N")] * 2


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """imported(name) -> the run, made once."""
    found = {}

    def make(name):
        if name not in found:
            there = tmp_path_factory.mktemp(name)
            write_folder(name, there / "folder")
            found[name] = pretrained.import_pretrained(there / "folder", there / "run", say=lambda line: None)
        return found[name]

    return make


def labels(run, pooling="first", **fields) -> Classification:
    data = LabelData(InMemory(train=LABELS, dev=LABELS), buckets=((12,),), batch_tokens=48)
    return Classification("labels", data=data, model=LabelModel(pooling=pooling), train=TRAIN, init=str(run), **fields)


def tags(run, **fields) -> Tagging:
    data = TagData(InMemory(train=TAGS, dev=TAGS), buckets=((14,),), batch_tokens=56)
    return Tagging("tags", data=data, train=TRAIN, init=str(run), **fields)


def started(experiment, out):
    """The task of a new run, and its initial parameters."""
    inputs = train_run.resolve(take(experiment), out, None, None, False)
    task = train_run.open_folder(inputs, out, init_assets=False, accept_code=False)
    state = train_run.initial_state(task, mesh.make_mesh(config.Mesh()), rows=4, source=inputs.source)
    return task, jax.device_get(state.params)


@pytest.mark.parametrize("name", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_an_import_fills_in_words(name, imported):
    run = s2sjax.load(imported(name).folder)
    before, after = run.decode(["lu [MASK] ra", Line("[MASK]")])
    assert before.startswith("lu ") and before.endswith(" ra") and "[MASK]" not in before + after and after
    assert refused(lambda: run.task.example_of("lu ra", "line 1")).startswith("line 1 has no [MASK]")


def test_an_import_is_evaluated_on_a_file(tmp_path, imported):
    write_folder("bert", tmp_path / "bert")
    (tmp_path / "test.txt").write_text("lu ra. Np zo.\nglxa luge yt\n")
    options = {"say": lambda line: None, "test": [tmp_path / "test.txt"]}
    run = pretrained.import_pretrained(tmp_path / "bert", tmp_path / "run", **options)
    assert run.evaluate("test")["perplexity"].value > 1
    more = {**options, "test": [tmp_path / "test.txt", tmp_path / "test.txt"]}
    message = refused(lambda: pretrained.import_pretrained(tmp_path / "bert", tmp_path / "other", **more))
    assert message.startswith("--test has 2 files, and an encoder is evaluated on one")


@pytest.mark.parametrize("name", ["distilbert", "electra"])
def test_other_encoders_are_refused_by_name(name, tmp_path):
    folder = write_folder("bert", tmp_path / "bert")
    page = (folder / "config.json").read_text()
    (folder / "config.json").write_text(page.replace('"model_type": "bert"', f'"model_type": "{name}"'))
    message = refused(lambda: pretrained.import_pretrained(folder, tmp_path / "run"))
    assert f"model_type '{name}' of config.json is not one of the models that can be read" in message


@pytest.mark.parametrize("name", ["bert", pytest.param("roberta", marks=pytest.mark.slow)])
def test_a_classifier_starts_from_an_import(name, imported, tmp_path):
    """It reads [CLS] text [SEP], and its states are those of the import."""
    base = imported(name)
    task, params = started(labels(base.folder), tmp_path / "out")
    encoder = task.experiment.model.encoder
    assert encoder == base.experiment.model.encoder and task.experiment.data.text == Text("pretrained", "none")
    assert task.experiment.model.pooling == "first"
    columns = task.columns(task.examples("dev"))
    ids = columns.batch(np.arange(3), (12,))["source"]
    assert (ids[:, 0] == text.mark(task.assets["text"], CLS)).all() and (ids == EOS).sum() == 3
    theirs, first = base.params()[0], np.full(3, 12, np.int32)
    states = base.task.module.apply({"params": theirs}, ids, first, method="encode")
    mine = task.module.apply(
        {"params": params}, ids, method=lambda module, ids: module.encoder(*module.frontend(ids), False)
    )
    np.testing.assert_allclose(mine.states, states, atol=1e-6)
    found = s2sjax.train(labels(base.folder), tmp_path / "trained")
    assert len(found.decode(task.examples("dev"))) == 6


@pytest.mark.slow
def test_further_pretraining_of_an_import(imported, tmp_path):
    """Sentences of a line are joined by blanks, which RoBERTa reads."""
    lines = ["lu. Ra", "zo. Np", "re. Lu"] * 4
    data = Paragraphs(corpus=InMemory(train=[(line, "") for line in lines]), buckets=((14,),), batch_tokens=56)
    experiment = Pretraining("more", data=data, train=TRAIN, init=str(imported("roberta").folder))
    run = s2sjax.train(experiment, tmp_path / "out")
    assert run.experiment.model == imported("roberta").experiment.model and run.experiment.model.next_weight == 0
    ids = run.task.columns(run.task.read()).ids
    whole = run.task.vocabulary.encode("lu. Ra")
    assert ids.flat[: ids.offsets[1]].tolist() == whole


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
def test_the_subwords_of_a_tagger(name, imported):
    """Its ids are those of the sentence, and each word is tagged at its first subword; also one that has none."""
    vocabulary = imported(name).task.vocabulary
    label = tagged_sentences.label_vocabulary("DNV")
    sentences = [tagged_sentences.Sentence(tuple(words.split(" ")), tuple(each.split())) for words, each in TAGS[:3]]
    batch = tagged_sentences.subword_columns(sentences, vocabulary, {"tags": label}).batch(np.arange(3), (30,))
    cls = text.mark(vocabulary, CLS)
    for row, sentence in list(enumerate(sentences))[:2]:
        line = " ".join(sentence.words)
        plain = vocabulary.encode(f" {line}" if name == "roberta" else line)
        assert batch["source"][row, : len(plain) + 3].tolist() == [cls, *plain, EOS, 0]
        starts = batch["starts"][row][batch["starts"][row] > 0] - 1
        ends = [*starts[1:], len(plain) + 1]
        spelled = [vocabulary.decode(batch["source"][row, a:b]) for a, b in zip(starts, ends)]
        same = lambda words: [word.replace(" ", "").lower() for word in words]
        assert same(spelled) == same(sentence.words)
    count = 2 if name == "bert" else None  # BERT drops U+200B
    if count:
        assert batch["starts"][2, :3].tolist() == [2, 3, 0] and batch["source"][2, 1] == UNK
    assert batch["tags"][0, :4].tolist() == [*(label.all_pieces.index(tag) for tag in "DNV"), 0]


@pytest.mark.slow
def test_a_tagger_starts_from_an_import(imported, tmp_path):
    """Its scores are those of the states of the import at the first subwords."""
    base = imported("bert")
    task, params = started(tags(base.folder), tmp_path / "out")
    assert task.experiment.model.encoder == base.experiment.model.encoder
    assert task.experiment.data.text.unit == "pretrained" and set(task.assets) == {"text", "tags"}
    batch = task.columns(task.examples("dev")).batch(np.arange(3), (14,))
    first = np.full(3, 14, np.int32)
    states = base.task.module.apply({"params": base.params()[0]}, batch["source"], first, method="encode")
    at = np.maximum(batch["starts"] - 1, 0)
    expected = jnp.take_along_axis(states, at[..., None], axis=1) @ params["output"]["kernel"]
    scores = task.module.apply({"params": params}, batch["source"], batch["starts"])
    real = batch["starts"] > 0
    np.testing.assert_allclose(np.asarray(scores.tags)[real], np.asarray(expected)[real], atol=1e-5)
    assert np.array_equal(scores.mask, real)
    found = s2sjax.train(tags(base.folder), tmp_path / "trained")
    outputs = found.decode(task.examples("dev"))
    assert [len(output.tags) for output in outputs[:3]] == [3, 2, 2]
    message = refused(lambda: task.example_of("luge " * 13, "line 1"))
    assert message.startswith("line 1 has ") and "subwords, with [CLS] and <eos>, more than" in message
    again = s2sjax.train(tags(found.folder), tmp_path / "again")  # a tagger that starts from a tagger
    assert again.task.assets["text"].fingerprint == task.assets["text"].fingerprint


def test_errors_of_taggers_of_subwords(imported, tmp_path):
    base = imported("bert")
    data = TagData(InMemory(train=TAGS, dev=TAGS), buckets=((14,),), text=Text("subwords", size=40))
    words = tags(base.folder, model=TaggerModel(Transformer(16, 2, 8, 1), spelling_width=4))
    message = refused(lambda: started(config.replace(words, data=data), tmp_path / "out"))
    assert message == (
        "the other run has a vocabulary of pretrained, and data.text.unit is subwords: make them equal, or leave out "
        "init"
    )
    assert "characters" in refused(lambda: TagData(text=Text("characters")))
    alone = config.replace(words, init="", data=config.replace(data, text=Text("pretrained", "none")))
    assert "a pretrained vocabulary comes with its model" in refused(lambda: s2sjax.train(alone, tmp_path / "alone"))


@pytest.mark.slow
def test_the_laws_of_a_tagger_of_subwords():
    rows = [("a bab b", "X Y X", "p"), ("abba a", "Y X", "q"), ("b", "Y", "p")] * 8
    data = TagData(
        InMemory(train=rows, dev=rows), buckets=((8,), (16,)), batch_tokens=64, text=Text("subwords", size=9)
    )
    model = TaggerModel(Transformer(8, 2, 8, 1, dropout=0.1), dropout=0.2, intent=1.0, crf=True, word_dropout=0.1)
    verify_task(Tagging("tags", data=data, model=model, train=TRAIN))


# ----------------------------------------------------------------------------------------- export


def exported(run, out):
    """The tensors and the config.json of an export, and the run that is imported from it."""
    pretrained.export(run, out)
    tensors = dict(safetensors_files.read(out))
    again = pretrained.import_pretrained(out, out.with_name(f"{out.name}-again"), say=lambda line: None)
    return tensors, json.loads((out / "config.json").read_text()), again


def same_leaves(found, expected, atol=0.0, but=()):
    found, expected = (dict(named_leaves(tree)) for tree in (found, expected))
    shared = [path for path in found if path in expected and not path.startswith(but)]
    assert len(shared) > 15
    for path in shared:
        np.testing.assert_allclose(found[path], expected[path], rtol=0, atol=atol, err_msg=path)


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_original(name, imported, tmp_path):
    """Every file, byte for byte: also the tensors that are not read, and the names of 2018."""
    run = s2sjax.load(imported(name).folder)
    same_files(run.folder.parent / "folder", pretrained.export(run, tmp_path / "out"))
    pretrained.export(run, tmp_path / "half", dtype="float16")
    half = safetensors_files.read(tmp_path / "half")
    assert {half.dtype(each) for each in half} == {"float16"}


def test_an_export_keeps_tensors_that_repeat_others(tmp_path):
    folder, output = write_folder("bert", tmp_path / "folder"), "cls.predictions.decoder"
    change_tensors(folder, lambda tensors: tensors.update({
        f"{output}.weight": tensors["bert.embeddings.word_embeddings.weight"].copy(),
        f"{output}.bias": tensors["cls.predictions.bias"].copy(),
        "bert.embeddings.position_ids": np.arange(14)[None],
    }))  # fmt: skip
    run = pretrained.import_pretrained(folder, tmp_path / "run", say=lambda line: None)
    same_files(folder, pretrained.export(run, tmp_path / "out"))
    params = jax.tree.map(np.asarray, run.params()[0])
    params["embedding"], params["word_bias"] = {"table": params["embedding"]["table"] + 1}, params["word_bias"] + 1
    moved = encoder.dump(run, params, original.read(run.folder / "pretrained"), None).tensors
    np.testing.assert_array_equal(moved[f"{output}.weight"], moved["bert.embeddings.word_embeddings.weight"])
    np.testing.assert_array_equal(moved[f"{output}.bias"], moved["cls.predictions.bias"])


@pytest.mark.parametrize("name", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_an_export_after_further_pretraining(name, imported, tmp_path):
    """Parameters are those of the run, up to the rounding of the positions; a second kind of text is added."""
    base = imported(name)
    data = Paragraphs(corpus=InMemory(train=[("lu. Ra", "")] * 8), buckets=((14,),), batch_tokens=56)
    run = s2sjax.train(Pretraining("more", data=data, train=TRAIN, init=str(base.folder)), tmp_path / "more")
    tensors, page, again = exported(run, tmp_path / "out")
    has_next = name in ("bert", "bert-2018")
    family = {"bert": "Bert", "roberta": "Roberta", "xlm": "XLMRoberta"}[name.partition("-")[0]]
    if name != "bert-2018":
        assert page["architectures"] == [f"{family}{'ForPreTraining' if has_next else 'ForMaskedLM'}"]
    assert (
        page["tie_word_embeddings"]
        and page.get("type_vocab_size", 2) == 2
        and again.experiment.model.next_weight == has_next
    )
    assert not any(each.startswith("classifier") for each in tensors)
    mine, theirs = run.params()[0], base.params()[0]
    assert np.abs(mine["frontend"]["second"] - theirs["frontend"]["second"]).max() > 0
    same_leaves(again.params()[0], mine, 1e-6, () if has_next else ("pooler", "follows"))


OTHER_LABELS = {"num_labels": 5, "problem_type": "regression"}
"""what a config.json says about the labels of its own classifier"""


@pytest.mark.parametrize("name", ["bert", pytest.param("roberta", marks=pytest.mark.slow)])
def test_an_exported_classifier(name, imported, tmp_path):
    """It takes the pooler of BERT, and has that of the classifiers of transformers."""
    base = imported(name)
    _, params = started(labels(base.folder, "pooler"), tmp_path / "started")
    same_leaves({**params, "output": {}}, base.params()[0])
    run = s2sjax.train(labels(base.folder, "pooler"), tmp_path / "labels")
    tensors, page, again = exported(run, tmp_path / "out")
    kind, dense, output = {
        "bert": ("Bert", "bert.pooler.dense", "classifier"),
        "roberta": ("Roberta", "classifier.dense", "classifier.out_proj"),
    }[name]
    assert page["architectures"] == [f"{kind}ForSequenceClassification"]
    assert (page["id2label"], page["label2id"]) == ({"0": "a", "1": "b"}, {"a": 0, "b": 1})
    origin = replace(found := original.read(run.folder / "pretrained"), hf_config=found.hf_config | OTHER_LABELS)
    assert not OTHER_LABELS.keys() & encoder.dump(run, run.params()[0], origin, None).hf_config.keys()
    mine = run.params()[0]
    np.testing.assert_array_equal(tensors[f"{dense}.weight"], mine["pooler"]["kernel"].T)
    np.testing.assert_array_equal(tensors[f"{output}.weight"], mine["output"]["kernel"].T)
    np.testing.assert_array_equal(tensors[f"{output}.bias"], mine["output"]["bias"])
    same_leaves(again.params()[0], mine, 1e-6, () if name == "bert" else ("pooler",))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "xlm-roberta"])
def test_an_exported_tagger(name, imported, tmp_path):
    run = s2sjax.train(tags(imported(name).folder), tmp_path / "tags")
    tensors, page, again = exported(run, tmp_path / "out")
    assert page["architectures"][0].endswith("ForTokenClassification")
    assert page["id2label"] == dict(zip("012", run.task.labels("tags")))
    np.testing.assert_array_equal(tensors["classifier.weight"], run.params()[0]["output"]["kernel"].T)
    np.testing.assert_array_equal(tensors["classifier.bias"], run.params()[0]["output"]["bias"])
    same_leaves(again.params()[0], run.params()[0], 1e-6)


@pytest.mark.slow
def test_a_tagger_with_low_rank_adapters(imported, tmp_path):
    """The adapters and the new output layer are trained, and nothing else; an export has the merged matrices."""
    base = imported("bert")
    encoder = config.replace(base.experiment.model.encoder, adapter_rank=2)
    run = s2sjax.train(tags(base.folder, model=TaggerModel(encoder, spelling_width=4)), tmp_path / "tags")
    template = jax.eval_shape(run.task.init, jax.random.key(0))
    stored = dict(named_leaves(run.checkpoints(read_only=True).restore_params(template)[0]))
    before = dict(named_leaves(base.params()[0]))
    for path in stored.keys() & before.keys():
        np.testing.assert_array_equal(stored[path], before[path])
    adapters = [path for path in stored if path.endswith(("adapter_a", "adapter_b"))]
    assert len(adapters) == 2 * 5 and all(np.abs(stored[path]).max() > 0 for path in adapters)
    assert stored.keys() - before.keys() == {*adapters, "output/kernel", "output/bias"}
    _, _, again = exported(run, tmp_path / "out")
    same_leaves(again.params()[0], run.params()[0], 1e-6)


def test_what_no_class_of_transformers_holds_is_refused(imported, tmp_path):
    base = imported("bert")
    origin = original.read(base.folder / "pretrained")

    def refusal(experiment, origin=origin):
        task, params = started(experiment, tmp_path / "run")
        found = refused(lambda: encoder.dump(Run(tmp_path / "run", task), params, origin, None))
        shutil.rmtree(tmp_path / "run")
        return found.removeprefix(f"{tmp_path / 'run'} ")

    assert refusal(labels(base.folder)) == (
        "has model.pooling first, and the classifiers of transformers read the first state through a dense layer with "
        "tanh: train it with model.pooling pooler"
    )
    crf = TaggerModel(base.experiment.model.encoder, crf=True, spelling_width=4)
    assert refusal(tags(base.folder, model=crf)).startswith("has model.crf True, and the taggers of transformers score")
    shorter = config.replace(base.experiment.model.encoder, encoder_layers=1)
    assert refusal(tags(base.folder, model=TaggerModel(shorter, spelling_width=4))) == (
        "model.encoder.encoder_layers is 1, and 2 in the imported model: such a model cannot be exported"
    )
    assert refusal(tags(base.folder), None).startswith("has no folder pretrained, which keeps what an export needs: ")
    of_t5 = replace(origin, model_type="t5")
    assert refusal(tags(base.folder), of_t5).startswith("does not start from an imported BERT or RoBERTa")
    other = Run(tmp_path / "run", Recognition("x").task())
    assert "only Transformers that translate text, and runs that start from an imported model, can be exported" in (
        refused(lambda: pretrained.export(other, tmp_path / "out"))
    )
