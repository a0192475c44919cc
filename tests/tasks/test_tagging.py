"""Aligned many to many: a tag for each word, for every encoder; user errors; a whole run on the command line."""

from functools import cache
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import zoo

import s2sjax
from s2sjax import config
from s2sjax.config import RCTM, ConvS2S, DenseDense, InMemory, Luong, RNNsearch, Spelling, Train, Transformer
from s2sjax.core.special_tokens import PAD, UNK
from s2sjax.data import text
from s2sjax.errors import UserError
from s2sjax.models.frontends import word_dropout
from s2sjax.runs import run
from s2sjax.tasks import Tagging
from s2sjax.tasks.tagging import tagged_sentences
from s2sjax.tasks.tagging.settings import TagData, TagEvaluate, TaggedFiles, TaggerModel
from s2sjax.tasks.tagging.task import Tagged

SPELLING = Spelling(on=True, width=2, kernels=(2,), filters=2, highways=0, length=4)
NONE = Spelling(on=False)
ROWS = [("the dog barks", "D N V", "say"), ("dogs bark", "N V", "say"), ("a cat", "D N", "name")]
ENCODERS = {
    "bi-LSTM": Luong(width=4, embedding_size=5, layers=1, bidirectional=True, dropout=0.1),
    "bi-GRU": RNNsearch(width=4, embedding_size=5),
    "Transformer": Transformer(width=6, heads=2, feedforward=8, encoder_layers=1),
    "dense-dense": DenseDense(width=4, embedding_size=5, window=3),
    "convolutions": RCTM(width=4, embedding_size=5),
    "gated convolutions": ConvS2S(embedding_size=5, encoder_layers=((4, 3),), max_length=8),
}


def tagging(encoder="dense-dense", rows=ROWS, metrics=("accuracy",), **model) -> Tagging:
    fields = {"spelling": SPELLING, "spelling_width": 2} | model
    data = TagData(InMemory(train=rows, dev=rows), min_count=1, buckets=((4,), (8,)), batch_tokens=16, prefetch=0)
    return Tagging("tags", data=data, model=TaggerModel(ENCODERS[encoder], **fields), evaluate=TagEvaluate(metrics))


def with_assets(experiment):
    task = experiment.task()
    return task.replace(assets=task.learn_assets(task.read()))


@cache
def started(name):
    """A task with an intent, initial parameters, and its compiled scores(params, batch)."""
    task = with_assets(tagging(name, intent=0.5))
    scores = lambda params, batch: task.module.apply({"params": params}, batch["words"], batch["characters"])
    return task, jax.jit(task.init)(jax.random.key(0)), jax.jit(scores)


@zoo.each(ENCODERS, quick=("dense-dense",), rare=("bi-GRU", "Transformer", "convolutions", "gated convolutions"))
def test_aligned_many_to_many_longer_padding_and_other_neighbours_change_no_score(name):
    """Any encoder gives the same scores alone or in a batch, in a short bucket or in a long one."""
    task, params, scores = started(name)
    columns = task.columns(task.read())
    short = scores(params, columns.batch(np.array([0, 1, 2]), (4,)))
    long = scores(params, columns.batch(np.array([1, -1, 0]), (8,)))
    assert short.tags.shape == (3, 4, 3) and short.intents.shape == (3, 2)
    np.testing.assert_allclose(short.tags[0, :3], long.tags[2, :3], atol=1e-5)
    np.testing.assert_allclose(short.tags[1, :2], long.tags[0, :2], atol=1e-5)
    np.testing.assert_allclose(short.intents[:2], np.asarray(long.intents)[[2, 0]], atol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(long))


def test_columns_of_words_characters_tags_and_intents():
    task = with_assets(tagging(intent=1.0))
    batch = task.columns(task.read()).batch(np.array([1, -1]), (4,))
    words, tags, intents = (task.assets[name] for name in ("words", "tags", "intents"))
    assert words.decode(batch["words"][0]) == "dogs bark" and not batch["words"][1].any()
    assert tags.decode(batch["tags"][0]) == "N V" and not batch["tags"][1].any()
    assert intents.decode(batch["intent"]) == "say"
    spelt = batch["characters"][0]  # [4, 6]: between <sos> and <eos>
    assert spelt.shape == (4, 6) and spelt[0][[0, 5]].tolist() == [1, 2]
    assert task.assets["characters"].decode(spelt[0][1:5]) == "dogs" and not spelt[2:].any()


def test_a_long_word_keeps_its_beginning_and_its_end():
    alphabet = text.build(config.Text("characters"), ["internationalization"])
    row = tagged_sentences.spell(alphabet, ["internationalization", "on"], 7)
    assert [alphabet.decode(each[1:8]) for each in row] == ["inteion", "on"]


def test_a_word_that_training_never_saw_has_its_characters_and_case():
    """ "Dogs" and "dogs" are one word with lower-casing, and still read differently."""
    task, params, scores = started("dense-dense")
    batch = task.columns([task.example_of("Dogs dogs tac cta", "")]).batch(np.array([0, -1, -1]), (4,))
    first, second, *unseen = batch["words"][0]
    assert first == second != UNK and unseen == [UNK, UNK]
    found = np.asarray(scores(params, batch).tags)[0]
    assert np.abs(found[0] - found[1]).max() > 1e-3 and np.abs(found[2] - found[3]).max() > 1e-3


def test_word_dropout_hides_words_in_training_alone():
    ids = np.array([[5] * 99 + [PAD], [2, UNK] + [6] * 98])
    module = lambda key: SimpleNamespace(make_rng=lambda stream: key)
    found = np.asarray(jax.jit(lambda key: word_dropout(module(key), ids, 0.5, True))(jax.random.key(0)))
    assert (found[:, -1].tolist(), found[1, :2].tolist()) == ([PAD, found[1, -1]], [2, UNK])
    assert 60 < (found == UNK).sum() < 140 and set(found[0, :99]) == {5, UNK}
    assert word_dropout(None, ids, 0.5, False) is ids and word_dropout(None, ids, 0.0, True) is ids


def test_the_loss_is_that_of_the_tags_and_the_weighted_intent():
    task, params, scores = started("dense-dense")
    batch = task.columns(task.read()).batch(np.array([0, 1, -1]), (4,))
    logits = scores(params, batch)
    log_p, log_q = (np.asarray(x) - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (logits.tags, logits.intents))
    of_tags = -sum(log_p[b, t, batch["tags"][b, t] - 4] for b, n in enumerate((3, 2)) for t in range(n))
    of_intents = -sum(log_q[b, batch["intent"][b] - 4] for b in range(2))
    found = jax.jit(task.evaluation_loss())(params, batch)
    np.testing.assert_allclose(found["loss"], (of_tags + 0.5 * of_intents, 5), rtol=1e-5)
    np.testing.assert_allclose(found["intent_loss"], (of_intents, 2), rtol=1e-5)


@pytest.mark.slow
def test_a_run_learns_opens_again_and_tags_lines(tmp_path, capsys, monkeypatch):
    """A run with a CRF and an intent, one tag of dev unseen, and empty and long lines among the others."""
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])
    ends = ("runs", "V", "go"), ("red", "A", "be")
    rows = [(f"{first} dog {last}", f"D N {tag}", intent) for first in ("the", "a") for last, tag, intent in ends]
    metrics = ("accuracy", "padded", "sentence", "intent")
    experiment = tagging("dense-dense", rows, metrics, crf=True, intent=1.0, spelling=NONE)
    corpus = InMemory(train=rows * 4, dev=[*rows, ("the dog", "D X", "go")])
    train = Train(steps=60, learning_rate=0.05, warmup_steps=1, evaluate_every=30, save_every=30, log_every=30)
    data = config.replace(experiment.data, corpus=corpus, buckets=((4,),))
    experiment = config.replace(experiment, data=data, train=train)
    run.train(experiment, tmp_path)
    assert "tags of dev that are not in train count as wrong: X" in capsys.readouterr().out
    opened = s2sjax.load(tmp_path)
    lines = ["the dog runs", "", "a dog red " * 7, "A Dog"]
    found = opened.decode(lines)
    assert found[0] == Tagged(("D", "N", "V"), "go") and str(found[0]) == "D N V\tgo"
    assert str(found[1]) == "" and [len(each.tags) for each in found] == [3, 0, 21, 2]
    assert opened.decode(lines[::-1]) == found[::-1] and opened.decode(lines[:1]) == found[:1]
    results = opened.evaluate("dev").results
    assert results["accuracy"].value == pytest.approx(100 * 13 / 14) and results["sentence"].value == 80
    assert run.show(opened)[0].name == "tags.png" and (tmp_path / "tags.png").stat().st_size > 10_000


def test_another_run_gives_each_word_and_tag_its_own_row():
    """The tags of ROWS are N D V by frequency, those of the other run V X N."""
    task = with_assets(tagging(intent=1.0))
    other = with_assets(tagging(rows=[("x dogs", "X N"), ("x x", "X V"), ("barks", "V")]))
    found = task.transfer_rows(other)
    rows = {path: (how.axis, how.of.tolist()) for path, how in found.items() if how is not None}
    assert rows["output/kernel"] == (1, [2, -1, 0]) and rows["output/bias"] == (0, [2, -1, 0])
    words = [other.assets["words"].all_pieces[index] if index >= 0 else "" for index in rows["frontend/words/table"][1]]
    assert words == ["<pad>", "<sos>", "<eos>", "<unk>", "", "", "barks", "", "", "dogs", ""]
    assert {path for path, how in found.items() if how is None} == {"crf_transition", "intent/kernel", "intent/bias"}
    assert task.transfer_rows(task) == {}


def test_vocabularies_of_another_run_are_taken_if_they_know_all_tags():
    task = tagging().task()
    fewer = with_assets(tagging(rows=ROWS[1:])).assets | {"unused": 1}
    taken = tagging(rows=ROWS[2:]).task().adopt_assets(tagging(rows=ROWS[2:]).task().read(), fewer)
    assert taken == {name: fewer[name] for name in ("words", "characters", "tags")}
    for assets, message in (
        (with_assets(tagging(rows=ROWS[2:])).assets, "the other run does not know the tags V: leave out --init-assets"),
        ({}, "the other run has no vocabulary of words that fits: leave out --init-assets"),
    ):
        with pytest.raises(UserError, match=message):
            task.adopt_assets(task.read(), assets)


@pytest.mark.parametrize(
    "content, message",
    [
        ("a b\tX\n", "line 1 has 2 words and 1 tags: give each word one tag"),
        ("a\tX\tp\n\tX\n", "line 2 has no words: remove it"),
        ("a\tX\tp\n\n", "line 2 has 1 of 2 columns: write words, a tab, equally many tags, a tab, the intent if any"),
        ("a\tX\tp\tq\n", "line 1 has 4 columns: write words, equally many tags, and perhaps an intent"),
        ("a\tX\n", "line 1 has no intent: write one in the third column, or set model.intent to 0"),
        ("", "is empty: put examples in it, or change data.corpus.folder"),
        (None, "(each line: words, a tab, equally many tags, a tab, the intent if any) of Somewhere 2026: correct "),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "train.tsv"
    if content is not None:
        path.write_text(content)
    experiment = tagging(intent=1.0)
    corpus = TaggedFiles(str(tmp_path), origin="Somewhere 2026")
    task = config.replace(experiment, data=config.replace(experiment.data, corpus=corpus)).task()
    with pytest.raises(UserError) as caught:
        task.read()
    assert "train.tsv" in str(caught.value) and message in str(caught.value)


def test_a_part_of_train_is_held_out_by_its_words(tmp_path):
    lines = [f"word{n % 40} x\tA B\n" for n in range(80)]  # each sentence twice
    (tmp_path / "train.tsv").write_text("".join(lines))
    (tmp_path / "dev.tsv").write_text("y\tA\n")
    experiment = tagging()
    corpus = TaggedFiles(str(tmp_path), test="dev.tsv", dev_percent=20.0)
    task = config.replace(experiment, data=config.replace(experiment.data, corpus=corpus)).task()
    train, dev = task.read(), task.examples("dev")
    assert len(train) + len(dev) == 80 and len(dev) >= 4 and not {s.words for s in train} & {s.words for s in dev}
    assert [s.words for s in task.examples("test")] == [("y",)] and task.has("dev") and task.has("test")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tagging(rows=[("a b", "X")]).task().read(), "InMemory.train, example 1 has 2 words and 1 tags"),
        (lambda: tagging(intent=-1.0), "model.intent is -1.0: it must be at least 0"),
        (lambda: tagging(word_dropout=1.0), "model.word_dropout is 1.0: it must be in [0, 1)"),
        (lambda: tagging(spelling_width=5), "gives 5 to its characters: at least 6 are needed"),
        (
            lambda: tagging(metrics=("intent",)),
            "has the intent, and with model.intent 0 it is not learned",
        ),
        (lambda: TagData(buckets=((8,), (4,))), "data.buckets is ((8,), (4,)): give lengths of at least 1, from short"),
        (lambda: TaggedFiles(dev="dev.tsv", dev_percent=5.0), "data.corpus has both dev and dev_percent"),
        (lambda: tagged_sentences.read(TaggedFiles(), "test", False), "data.corpus.test is empty: name a TSV file"),
        (lambda: TagEvaluate(()), "evaluate.metrics is empty"),
        (
            lambda: config.replace(tagging(crf=True), train=Train(label_smoothing=0.1)),
            "train.label_smoothing smooths single tags, and model.crf scores whole sequences",
        ),
        (
            lambda: tagging("gated convolutions").task().example_of("a " * 9, "standard input, line 3"),
            "standard input, line 3 has 9 words, more than model.encoder.max_length 8 can address: shorten it",
        ),
        (
            lambda: config.replace(tagging("gated convolutions"), data=TagData(buckets=((16,),))),
            "model.encoder.max_length 8 is shorter than the last of data.buckets, 16: raise it",
        ),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)
