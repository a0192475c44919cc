"""Settings left at 0 are chosen by the size of the data: once, printed, and stored in config.json."""

import json

import jax
import pytest

import s2sjax
from s2sjax import config, tasks
from s2sjax.config import training
from s2sjax.errors import UserError
from s2sjax.runs import folder
from s2sjax.tasks.classification.settings import LabelData, LabelledText
from s2sjax.tasks.language_model.settings import RecurrentLM
from s2sjax.tasks.tagging.settings import TagData, TaggedFiles

PAIRS = [("ab", "x"), ("ba", "y"), ("aa", "x")]


def test_the_number_of_steps_depends_on_the_data_unless_it_is_set():
    chosen = lambda epoch, **fields: [
        getattr(config.Train(**fields).resolve_defaults(epoch), name) for name in config.SIZED_BY_DATA
    ]
    assert chosen(1) == [500, 50, 50]
    assert chosen(100) == [2000, 200, 200]
    assert chosen(100_000) == [10_000, 1000, 1000]
    assert chosen(100, evaluate_every=0, save_every=7) == [2000, 0, 7]
    assert chosen(1, steps=20_000) == [20_000, 1000, 1000]


def test_the_size_of_a_language_model_depends_on_its_text():
    sizes = lambda tokens, **fields: RecurrentLM(**fields).resolve_defaults(tokens).widths
    assert sizes(2_799) == (32,) and sizes(1_000_000) == (496, 248)
    assert sizes(10**9) == (1150, 1150, 400), "as Merity et al. 2017 have it"
    assert sizes(2_799, width=8, layers=2, tie=False) == (8, 8)


def default_experiments(path):
    memory = config.InMemory(train=PAIRS, dev=PAIRS, test=PAIRS)
    (path / "text").write_text("a b\n" * 900)
    (path / "tags").write_text("a b\tX Y\n" * 9)
    text, tagged = str(path / "text"), TaggedFiles(folder=str(path), train="tags", dev="tags", test="tags")
    return [
        tasks.Translation("pairs", data=config.Data(memory)),
        tasks.Classification("labels", data=LabelData(memory)),
        tasks.Tagging("tags", data=TagData(tagged)),
        tasks.LanguageModel("text", data=config.PlainText(text, text)),
    ]


def test_the_default_models_suit_a_small_corpus(tmp_path):
    """At most two million weights and 500 steps."""
    for experiment in default_experiments(tmp_path):
        task = experiment.task()
        data = task.read()
        task = task.replace(task.resolve_defaults(data), task.learn_assets(data))
        weights = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0))))
        assert weights < 2_000_000 and task.experiment.train.steps == 500, (experiment.name, weights)


@pytest.fixture
def text(tmp_path, monkeypatch):
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)
    (tmp_path / "text").write_text("a b\n" * 9)
    path = str(tmp_path / "text")
    return tasks.LanguageModel("text", data=config.PlainText(path, path, batch_size=2, steps=4))


@pytest.mark.slow
def test_chosen_settings_are_printed_and_stored(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "FEWEST", 10)
    monkeypatch.setattr(training, "EPOCHS", 1)
    s2sjax.train(text, tmp_path / "run")
    line = "for data of this size: model.embedding_size 32, model.width 64, model.layers 1, train.steps 10, "
    assert line + "train.evaluate_every 1, train.save_every 1\n" in capsys.readouterr().out
    before = (tmp_path / "run/config.json").read_text()
    stored = folder.flat(json.loads(before)["experiment"])
    assert (stored["train.steps"], stored["model.width"], stored["train.schedule_steps"]) == (10, 64, 10)
    monkeypatch.setattr(training, "FEWEST", 20)  # another version would choose differently
    monkeypatch.setattr(RecurrentLM, "resolve_defaults", lambda self, tokens: self)
    run = s2sjax.train(text, tmp_path / "run")
    assert "already done: 10 steps" in capsys.readouterr().out
    assert (tmp_path / "run/config.json").read_text() == before and run.experiment.model.width == 64
    assert s2sjax.load(tmp_path / "run").experiment == run.experiment


def test_a_run_of_an_older_version_keeps_its_settings(text, tmp_path):
    old = config.replace(
        text, train=config.Train(steps=10_000), model=RecurrentLM(embedding_size=400, width=1150, layers=3)
    )
    page = {"data": "", "assets": {}, "experiment": config.to_json(old)}
    (tmp_path / "config.json").write_text(json.dumps(page))
    assert folder.with_recorded(text, folder.read_config(tmp_path)) == old
    mine = config.replace(text, train=config.Train(steps=7), model=RecurrentLM(1, 2, 3))
    assert folder.with_recorded(mine, folder.read_config(tmp_path)) == mine


@pytest.mark.parametrize(
    ("experiment", "remedy"),
    [
        (tasks.Translation("x", data=config.Data(config.InMemory(train=PAIRS))), "give some, or set"),
        (
            tasks.Translation("x", data=config.Data(config.TextFiles(train=("pairs.tsv",)))),
            "data.corpus.dev_percent, or set",
        ),
        (
            tasks.Classification("x", data=LabelData(LabelledText(train="pairs.tsv"))),
            "hold out a part of the training data with data.corpus.dev_percent, or set train.evaluate_every 0",
        ),
    ],
)
def test_without_dev_examples_the_error_names_the_remedy(experiment, remedy, tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there are no dev examples to evaluate") as caught:
        s2sjax.train(experiment, tmp_path / "run")
    assert remedy in str(caught.value)
