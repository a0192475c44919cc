"""A BERT or RoBERTa as a run: words are filled in, and it starts pre-training, classifiers and taggers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import refused
from interop.encoder_folders import NAMES, write_folder

import s2sjax
from s2sjax import config
from s2sjax.config import InMemory, Text, Train, Transformer
from s2sjax.core.special_tokens import CLS, EOS, UNK
from s2sjax.data import text
from s2sjax.runs import pretrained, train_run
from s2sjax.runs.initial_settings import take
from s2sjax.tasks import Classification, Pretraining, Tagging
from s2sjax.tasks.classification.settings import LabelData, LabelModel
from s2sjax.tasks.pretraining import Line, Paragraphs
from s2sjax.tasks.tagging import tagged_sentences
from s2sjax.tasks.tagging.settings import TagData, TaggerModel
from s2sjax.testing import verify_task
from s2sjax.training import mesh

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


def labels(run, **fields) -> Classification:
    data = LabelData(InMemory(train=LABELS, dev=LABELS), buckets=((12,),), batch_tokens=48)
    return Classification("labels", data=data, model=LabelModel(pooling="first"), train=TRAIN, init=str(run), **fields)


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
    assert refused(lambda: pretrained.export(run, run.folder.parent / "out")).endswith("can be exported")


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
