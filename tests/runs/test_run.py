"""Experiment files and run folders: what is accepted, what is refused, and the error messages."""

import gc
import json
import os
import shutil

import jax
import jax.numpy as jnp
import pytest
from conftest import refused

from s2sjax import config
from s2sjax.config import Data, Evaluate, Luong, Synthetic, TextFiles, Train
from s2sjax.data.batching import batch_plan
from s2sjax.data.corpora import readers
from s2sjax.data.examples import Example
from s2sjax.runs import folder, run, train_run
from s2sjax.tasks import LanguageModel, Regression, Task, Translation
from s2sjax.tasks.regression.settings import Fibonacci, Windows
from s2sjax.training import loop

TINY = Translation(
    "tiny",
    data=Data(Synthetic("reverse", train=16, dev=4, test=0, length=4, alphabet=3), buckets=((6, 6),), batch_tokens=96),
    model=Luong(width=8, embedding_size=4, layers=1),
    train=Train(steps=2, warmup_steps=1),
)


# -------------------------------------------------------------------------- experiment files


def written(tmp_path, text: str) -> str:
    path = tmp_path / "page.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_an_experiment_file_is_read_again_each_time(tmp_path):
    text = "from s2sjax.tasks import Translation\nexperiment = Translation('{}')"
    assert run.load_experiment(written(tmp_path, text.format("a"))).name == "a"
    assert run.load_experiment(written(tmp_path, text.format("b"))).name == "b"
    assert os.listdir(tmp_path) == ["page.py"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("x = 1\n", " defines no `experiment`: it must build one of that name"),
        ("experiment = 'g2p'", " defines no `experiment`"),
        ("x = 1\nx x", ", line 2: SyntaxError: invalid syntax: correct it"),
        ("\n\nraise ValueError('two\\nlines')", ", line 3: ValueError: two lines: correct it"),
        ("import s2sjax_missing", ", line 1: ModuleNotFoundError: No module named 's2sjax_missing': correct it"),
        (
            "from s2sjax.config import *\n\nTrain(stepz=1)",
            ", line 3: Train has no field 'stepz': did you mean 'steps'?",
        ),
        (
            "from s2sjax.config import *\nTransformer(width=10, heads=4)",
            ", line 2: model.width 10 is not divisible by model.heads 4: try width 8",
        ),
        ("from s2sjax.tasks import *\nTranslation()", ", line 2: TypeError: "),
    ],
)
def test_an_error_in_an_experiment_file_is_reported_with_its_line(tmp_path, text, message):
    path = written(tmp_path, text)
    assert refused(lambda: run.load_experiment(path)).startswith(path + message)


def test_no_experiment_file(tmp_path):
    assert "there is no experiment file nowhere.py" in refused(lambda: run.load_experiment("nowhere.py"))
    assert "there is no experiment file" in refused(lambda: run.load_experiment(str(tmp_path)))


# -------------------------------------------------------------------------------- run folders


def start(path, experiment=TINY) -> Task:
    return folder.start_task(experiment, path, readers.load(experiment.data.corpus, "train"))


def changed(section: str, **fields) -> Translation:
    return config.replace(TINY, **{section: config.replace(getattr(TINY, section), **fields)})


def as_started(experiment) -> Translation:
    """The experiment with the schedule length of a run that began with TINY.train.steps."""
    return config.replace(experiment, train=config.replace(experiment.train, schedule_steps=TINY.train.steps))


def test_a_folder_is_started_reopened_and_read_elsewhere(tmp_path):
    first = start(tmp_path / "run")
    again = start(tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    opened = run.load(tmp_path / "moved")
    assert opened.experiment == first.experiment == again.experiment == as_started(TINY)
    assert opened.task.source.fingerprint == first.source.fingerprint == again.source.fingerprint
    assert opened.task.target.fingerprint == first.target.fingerprint


@pytest.mark.parametrize(
    "experiment",
    [
        changed("train", steps=99, save_every=7, max_to_keep=1, remat="layers"),
        changed("evaluate", dev_examples=3, batch_size=8),
        changed("search", beam_size=2),
        config.replace(TINY, show=("abc",)),
    ],
)
def test_settings_of_length_and_logging_may_change(tmp_path, experiment):
    start(tmp_path)
    start(tmp_path, experiment)
    assert run.load(tmp_path).experiment == as_started(experiment)


def test_a_run_made_before_a_field_existed_continues(tmp_path):
    """A field that was added later has its default."""
    start(tmp_path)
    page = json.loads((tmp_path / "config.json").read_text())
    del page["experiment"]["data"]["packing"]
    (tmp_path / "config.json").write_text(json.dumps(page))
    start(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["experiment"]["data"]["packing"] is False


@pytest.mark.parametrize(
    "experiment, words",
    [
        (changed("train", learning_rate=1.0), "its train.learning_rate is 0.001, not 1.0"),
        (changed("model", width=16), "its model.width is 8, not 16"),
        (changed("data", batch_tokens=97), "its data.batch_tokens is 96, not 97"),
        (config.replace(TINY, model=config.RNNsearch()), "its model."),
        (config.replace(TINY, seed=1), "its seed is 0, not 1"),
        (config.replace(TINY, name="other"), "its name is 'tiny', not 'other'"),
        (changed("evaluate", metrics=("cer",)), "its evaluate.metrics is ['exact'], not ['cer']"),
    ],
)
def test_other_settings_may_not_change(tmp_path, experiment, words):
    start(tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    message = refused(lambda: start(tmp_path, experiment))
    assert message.startswith(f"{tmp_path} contains another experiment: {words}")
    assert message.endswith(": give another --out")
    assert (tmp_path / "config.json").read_bytes() == before


def test_different_training_data_is_refused(tmp_path):
    start(tmp_path)
    other = [Example("abc", ("cba",))]
    assert refused(lambda: folder.start_task(TINY, tmp_path, other)).startswith("the training data has changed since")


def test_a_run_that_was_killed_before_its_config_was_written_starts_over(tmp_path):
    start(tmp_path)
    (tmp_path / "config.json").rename(tmp_path / ".config.json.partial")
    start(tmp_path)
    assert run.load(tmp_path).experiment == as_started(TINY)


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("chapter 1")
    assert "contains something that is not a run: give another --out" in refused(lambda: start(tmp_path))
    assert "is a file, not a folder: give another --out" in refused(lambda: start(tmp_path / "thesis.tex"))
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "Expecting value"),
        (b"\xff", "codec can't decode"),
        (b"[]", "list indices must be"),
        (b"{}", "it has no 'data'"),
        (b'{"data": "", "assets": 3, "experiment": {}}', "not iterable"),
        (b'{"data": "", "assets": {}, "experiment": 5}', "it contains no experiment"),
        (b'{"data": "", "assets": {}, "experiment": {"kind": "Nought"}}', "there is no 'Nought'"),
        (
            b'{"data": "", "assets": {}, "experiment": {"kind": "s2sjax.tasks.translation:Translation"}}',
            "missing a required",
        ),
    ],
)
def test_a_damaged_config_is_reported(tmp_path, content, reason):
    (tmp_path / "config.json").write_bytes(content)
    message = refused(lambda: run.load(tmp_path))
    assert message.startswith(f"{tmp_path / 'config.json'} cannot be read (")
    assert reason in message


def test_a_vocabulary_that_does_not_match_is_refused(tmp_path):
    start(tmp_path)
    start(tmp_path / "other", changed("data", corpus=Synthetic("reverse", train=16, length=4, alphabet=5)))
    shutil.copy(tmp_path / "other/assets/source.json", tmp_path / "assets/source.json")
    assert refused(lambda: run.load(tmp_path)) == (
        f"source in {tmp_path / 'assets'} is not the one that this run was trained with: "
        "copy it again from where the run was made"
    )
    (tmp_path / "assets/source.json").unlink()
    assert "cannot be read (No such file or directory)" in refused(lambda: run.load(tmp_path))


@pytest.mark.parametrize(
    "metrics, best", [(("exact", "cer"), "max"), (("cer", "exact"), "min"), (("ter",), "min"), (("bleu",), "max")]
)
def test_the_first_metric_determines_the_best_checkpoint(tmp_path, monkeypatch, metrics, best):
    asked = []
    monkeypatch.setattr(folder, "Checkpoints", lambda *given, read_only, **_: asked.append((*given, read_only)))
    judged = config.replace(TINY, evaluate=Evaluate(metrics=metrics))
    run.Run(tmp_path, judged.task()).checkpoints(read_only=True)
    assert asked == [(tmp_path / "checkpoints", 2, best, True)]


def test_dev_lines_are_sampled_from_the_whole_file_and_from_all_corpora_of_a_mixture():
    sort = [Example(str(length), ("x",)) for length in range(100)]
    assert [int(found.source) for found in TINY.task().dev_sample(sort, 4)] == [0, 25, 50, 75]
    assert TINY.task().dev_sample(sort, 1000) == sort
    mixed = [Example(str(n), ("x",), corpus=n // 80) for n in range(100)]
    assert [int(found.source) for found in TINY.task().dev_sample(mixed, 4)] == [0, 40, 80, 90]


def test_the_dev_lines_of_a_language_model_are_consecutive():
    task = LanguageModel("text").task()
    assert task.dev_sample(["a", "b", "c", "d"], 2) == ["a", "b"]


# --------------------------------------------------------------- refused before any training


def test_a_corpus_without_dev_lines_cannot_be_evaluated(tmp_path):
    alone = changed("data", corpus=Synthetic("reverse", train=16, dev=0, test=0))
    assert "set train.evaluate_every 0" in refused(lambda: run.train(alone, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_test_file_that_is_missing_is_refused_before_training(tmp_path):
    (tmp_path / "train.tsv").write_text("a\tb\nb\ta\n")
    corpus = TextFiles(train=(f"{tmp_path}/train.tsv",), dev=(f"{tmp_path}/train.tsv",), test=(f"{tmp_path}/no.tsv",))
    message = refused(lambda: run.train(config.replace(TINY, data=Data(corpus)), tmp_path / "run"))
    assert "no.tsv" in message and not (tmp_path / "run" / "checkpoints").exists()


def test_an_ensemble_requires_one_task(tmp_path):
    series = Regression("series", data=Windows(Fibonacci(200)), train=Train(steps=1, warmup_steps=1, evaluate_every=0))
    runs = [run.Run(tmp_path, e.task()) for e in (TINY, series)]
    assert "an ensemble requires runs of one task" in refused(lambda: runs[0].check_ensemble(runs[1:]))


def test_a_beam_wider_than_the_vocabulary_is_refused_even_without_evaluations_during_training(tmp_path):
    wide = config.replace(TINY, search=config.Search(beam_size=8), train=Train(steps=2, evaluate_every=0))
    assert (
        refused(lambda: run.train(wide, tmp_path))
        == "search.beam_size 8 is larger than the target vocabulary (7): lower it"
    )


def test_the_split_that_is_evaluated():
    default = lambda corpus: Translation("x", data=Data(corpus)).task().default_split
    assert default(Synthetic(dev=1, test=1)) == "test"
    assert default(TextFiles(train=("a",), dev=("b",))) == "dev"
    assert default(TextFiles(train=("a",))) is None
    assert default(config.Cmudict(test_percent=0.0)) == "dev"


@pytest.mark.slow
def test_a_resumed_run_holds_as_many_bytes_as_a_fresh_one(tmp_path, monkeypatch):
    """At the first step, a resumed run must not hold initial parameters as well as restored ones."""
    series = Regression("series", data=Windows(Fibonacci(40), steps=4), train=Train(steps=1, evaluate_every=0))
    held = []

    def measured(programs, state, batch, log, call=loop.Programs.__call__):
        gc.collect()
        held.append(sum(array.nbytes for array in jax.live_arrays() if array.ndim))  # JAX itself keeps some scalars
        return call(programs, state, batch, log)

    monkeypatch.setattr(loop.Programs, "__call__", measured)
    run.train(series, tmp_path)
    run.train(config.replace(series, train=config.replace(series.train, steps=2)), tmp_path)
    fresh, resumed = held
    assert fresh == resumed > 0


def test_only_the_buckets_that_a_run_will_use_are_compiled_in_order_of_use(tmp_path, monkeypatch):
    """Buckets are those used from the newest checkpoint to the last step."""

    class Announced(Exception):
        pass

    def fit(*_, shapes, **__):
        raise Announced(*[shape["source"].shape[1] for shape in shapes])

    def announced(steps):
        data = config.replace(TINY.data, buckets=((3, 3), (4, 4), (6, 6)), batch_tokens=12)
        train = config.replace(TINY.train, steps=steps, evaluate_every=0)
        with pytest.raises(Announced) as caught:
            run.train(config.replace(TINY, data=data, train=train), tmp_path)
        return list(caught.value.args)

    monkeypatch.setattr(loop, "fit", fit)
    assert (announced(1), announced(2), announced(40)) == ([4], [4, 3], [4, 3, 6])
    monkeypatch.setattr(run.Checkpoints, "steps", lambda self: [5, 7])
    monkeypatch.setattr(run.Checkpoints, "header", lambda self, step: {"score": None})
    assert (announced(7), announced(8)) == ([], [6])


def test_config_json_is_readable(tmp_path):
    start(tmp_path)
    page = json.loads((tmp_path / "config.json").read_text())
    assert page["experiment"]["train"]["steps"] == 2
    assert page["experiment"]["model"]["kind"] == "Luong"
    assert set(page) == {"s2sjax", "data", "assets", "experiment", "batch_order"}


# ---------------------------------------------------------------------------- training objectives


@pytest.mark.parametrize("field", ["samples", "subset"])
def test_more_samples_than_words_are_refused_before_any_work(tmp_path, field):
    greedy = changed("train", softmax=config.Softmax(**{field: 8}))
    assert refused(lambda: run.train(greedy, tmp_path / "run")) == (
        f"train.softmax.{field} is 8, but the target vocabulary has 7 words: lower it, or set it to 0 to use all words"
    )
    assert not (tmp_path / "run").exists()


MIXED = config.Mixture((TINY.data.corpus, config.replace(TINY.data.corpus, task="copy")), tags=("<r>", "<c>"))


@pytest.mark.parametrize(
    "experiment",
    [
        changed("train", softmax=config.Softmax(samples=5)),
        changed("train", softmax=config.Softmax(samples=5, distribution="unigram")),
        changed("train", softmax=config.Softmax(subset=7)),
        changed("train", scheduled_sampling=config.ScheduledSampling("exponential", k=0.9)),
        changed("train", r_drop=5.0),
        changed("data", source=config.Text("subwords", size=10, algorithm="bpe", sampling=0.1)),
        changed("data", source=config.Text("words", spelling=config.Spelling(on=True, filters=2, kernels=(1, 2)))),
        changed("data", corpus=MIXED, source=config.Text("subwords", size=14, algorithm="bpe", sampling=0.1)),
        config.replace(
            changed("train", softmax=config.Softmax(samples=5, distribution="unigram")),
            data=config.replace(TINY.data, packing=True),
            model=config.Transformer(8, 2, 8, 1, 1),
        ),
    ],
    ids=["samples", "unigram", "subset", "scheduled", "r-drop", "drawn", "spelt", "mixed, drawn", "packed, unigram"],
)
def test_every_objective_has_batches_and_a_loss(tmp_path, experiment):
    """From the run folder to the abstract loss of the first batch; the folder can be opened again."""
    examples = readers.load(experiment.data.corpus, "train")
    task = start(tmp_path, experiment)
    assert run.load(tmp_path).experiment == as_started(experiment)
    columns = task.columns(examples)
    plan = task.plan(columns, 1)
    batch = batch_plan.make_batch(columns, plan, 0)
    shapes = train_run.batch_shapes(columns, plan, plan.at(0)[0])
    assert {name: leaf.shape for name, leaf in batch.items()} == {name: leaf.shape for name, leaf in shapes.items()}
    params = jax.eval_shape(task.init, jax.random.key(0))
    found = jax.eval_shape(task.loss(columns), params, batch, jax.random.key(0), jnp.int32(0))
    assert [leaf.shape for leaf in found["loss"]] == [(), ()]
