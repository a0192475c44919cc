"""The laws of training for every task, through the whole runner: a new task joins by one line of EXPERIMENTS.

One device equals eight; micro-batches equal one batch; a restart and a kill change no bit. The laws that need no run
folder are in s2sjax/testing/task_laws.py.
"""

import contextlib
import operator
import os
import signal
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
import pytest
import zoo

import s2sjax
from s2sjax import config
from s2sjax.config import Data, DenseDense, InMemory, Luong, Mesh, Search, Spelling, Synthetic, Train
from s2sjax.data.batching.batch_plan import make_batch
from s2sjax.data.signals.handwritten_digits import Patterns
from s2sjax.data.signals.signal_examples import Strings
from s2sjax.errors import UserError
from s2sjax.models.families.identity import Identity
from s2sjax.models.families.ngram_cnn import NGrams
from s2sjax.runs import run, train_run
from s2sjax.tasks import (
    TASKS,
    Captioning,
    Classification,
    LanguageModel,
    Pretraining,
    Recognition,
    Regression,
    Tagging,
    Transcription,
    Translation,
)
from s2sjax.tasks.captioning.captioned_pictures import Squares
from s2sjax.tasks.captioning.picture_grid import Grid
from s2sjax.tasks.captioning.settings import CaptionData, CaptionEvaluate, CaptionModel, PictureChanges
from s2sjax.tasks.classification.settings import LabelData, LabelModel
from s2sjax.tasks.language_model.settings import PerplexityEvaluate, RecurrentLM
from s2sjax.tasks.pretraining.settings import BertModel, Paragraphs
from s2sjax.tasks.recognition.settings import Augment, LabelledSignals, RecognitionEvaluate, RecognizerModel
from s2sjax.tasks.regression.settings import Fibonacci, SeriesModel, Windows
from s2sjax.tasks.tagging.settings import TagData, TaggerModel
from s2sjax.tasks.transcription.settings import SpellerModel
from s2sjax.testing import task_laws
from s2sjax.training import loop

TRAIN = Train(
    steps=6, warmup_steps=1, learning_rate=1e-2, eps=1e-2, evaluate_every=3, save_every=2, log_every=3, clip_norm=0.0
)
LETTERS = [(" ".join(format(n, "05b")[: 1 + n % 5]), "ab"[n % 2]) for n in range(48)]
TAGGED = [("a b b a"[: 2 * n + 1], "X Y Z Y"[: 2 * n + 1], "pq"[n % 2]) for n in range(4)] * 10
TEXT = str(Path(__file__).with_name("text.txt"))
EXPERIMENTS = {
    "translation": Translation(
        "translation",
        data=Data(
            Synthetic("reverse", train=40, dev=4, test=4, length=5, alphabet=4), buckets=((6, 6),), batch_tokens=96
        ),
        model=Luong(width=8, embedding_size=4, layers=1, dropout=0.2),
        train=TRAIN,
        search=Search(beam_size=1),
    ),
    "regression": Regression(
        "regression",
        data=Windows(Fibonacci(60), steps=4, split="spread", scale="range", batch_tokens=32),
        model=SeriesModel(width=4, attention=True, output="tanh", residual=False),
        train=TRAIN,
    ),
    "classification": Classification(
        "classification",
        data=LabelData(
            InMemory(train=LETTERS[:40], dev=LETTERS[40:], test=LETTERS[40:]), buckets=((6,),), batch_tokens=48
        ),
        model=LabelModel(NGrams(embedding_size=4, kernels=(1, 2), filters=3, dropout=0.0), queries=2, dropout=0.2),
        train=TRAIN,
    ),
    "tagging": Tagging(
        "tagging",
        data=TagData(
            InMemory(train=TAGGED, dev=[("a b", "X Y", "p"), ("c", "X", "q")]), buckets=((4,),), batch_tokens=32
        ),
        model=TaggerModel(
            DenseDense(width=4, embedding_size=5, window=3, dropout=0.0),
            Spelling(on=True, width=2, kernels=(2,), filters=2, highways=0, length=3),
            spelling_width=2,
            dropout=0.2,
            intent=1.0,
        ),
        train=TRAIN,
    ),
    "recognition": Recognition(
        "recognition",
        data=LabelledSignals(
            Patterns(Strings(train=40, dev=4, test=4, longest=2), width=3, frames=2),
            Augment(speed=0.2, noise=0.1),
            buckets=((8, 2),),
            batch_tokens=80,
        ),
        model=RecognizerModel(DenseDense(width=8, embedding_size=0, window=3, dropout=0.0), stack=2, dropout=0.2),
        train=TRAIN,
    ),
    "language_model": LanguageModel(
        "language_model",
        data=config.PlainText(TEXT, TEXT, batch_size=8, steps=4),
        model=RecurrentLM(embedding_size=4, width=6, layers=1, weight_drop=0.3, word_dropout=0.1),
        train=TRAIN,
        evaluate=PerplexityEvaluate(streams=4),
    ),
    "pretraining": Pretraining(
        "pretraining",
        data=Paragraphs(TEXT, TEXT, text=config.Text("words"), buckets=((12,),), batch_tokens=48),
        model=BertModel(DenseDense(width=6, embedding_size=4, window=3, dropout=0.0), mask_rate=0.3),
        train=TRAIN,
    ),
    "captioning": Captioning(
        "captioning",
        data=CaptionData(
            Squares(train=20, dev=4, test=4, size=8),
            config.Text(unit="words"),
            PictureChanges(zoom=0.2, flip=0.5),
            buckets=((12,),),
            batch_tokens=96,
        ),
        model=CaptionModel(
            Grid(channels=(4, 4), groups=2),
            config.Pair(Identity(4), Luong(width=4, embedding_size=4, layers=1, dropout=0.0)),
            dropout=0.2,
            attention_penalty=0.1,
        ),
        train=TRAIN,
        search=Search(beam_size=1, max_length=4),
        evaluate=CaptionEvaluate(drawn=0),
    ),
    "transcription": Transcription(
        "transcription",
        data=LabelledSignals(
            Patterns(Strings(train=40, dev=4, test=4, longest=2), width=3, frames=2),
            Augment(speed=0.2, noise=0.1),
            ngram=0,
            buckets=((8, 3),),
            batch_tokens=88,
        ),
        model=SpellerModel(config.RNNsearch(width=4, embedding_size=4, dropout=0.0), stack=2, dropout=0.2),
        train=TRAIN,
        search=Search(beam_size=1, max_length=4),
        evaluate=RecognitionEvaluate(drawn=0),
    ),
}


def changed(experiment, **train):
    return config.replace(experiment, train=config.replace(experiment.train, **train))


def params(trained) -> list[np.ndarray]:
    _, result = trained
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.device_get(result.state))]


def test_every_task_is_here():
    assert EXPERIMENTS.keys() == TASKS.keys()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_test_split_that_is_to_be_left_alone_is_not_predicted_after_training(name, tmp_path, monkeypatch):
    """Test is neither scored nor drawn: dev takes its place."""
    wanted = EXPERIMENTS[name]
    for test in (True, False):
        task = config.replace(wanted, evaluate=config.replace(wanted.evaluate, test=test)).task()
        assert task.default_split == ("test" if test and task.has("test") else "dev")
        task = task.replace(assets=task.learn_assets(task.read()))
        asked: list[str] = []

        def examples(split, asked=asked):
            asked.append(split)
            raise InterruptedError

        monkeypatch.setattr(task, "examples", examples)
        with contextlib.suppress(InterruptedError):
            task.figures(tmp_path, None, dict)
        assert set(asked) <= {task.default_split, "dev"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_examples_that_two_splits_share_are_counted_before_training(name):
    """Training examples as test are all found in every task, and none when nothing is held out."""
    task = EXPERIMENTS[name].task()
    data = task.read()
    count = sum(bool(each.source) for each in task.sides("train", data))
    if name == "pretraining":  # compares lines: those of the file
        task = task.replace(config.replace(task.experiment, data=config.replace(task.experiment.data, test=TEXT)))
    assert task.overlaps(data, {"test": task.examples("train")}) == [
        f"{count} of {count} test {task.noun}s are also in train"
    ]
    assert task.overlaps(data, {}) == []


@config.settings
class OddPatterns(Patterns):
    """Patterns with a label that is not in the alphabet, in one split."""

    odd: str = "test"

    def examples(self, split):
        first, *others = super().examples(split)
        return [first._replace(labels=("unseen",)) if split == self.odd else first, *others]


def with_unseen(name, split):
    """The experiment of a task with a symbol that only one split has."""
    experiment = EXPERIMENTS[name]
    if name in ("recognition", "transcription"):
        corpus = OddPatterns(Strings(train=40, dev=4, test=4, longest=2), width=3, frames=2, odd=split)
    else:
        rows = LETTERS if name == "classification" else TAGGED
        odd = ("0 1", "unseen") if name == "classification" else ("a b", "X unseen", "never")
        corpus = InMemory(**{"train": rows[:40], "dev": rows[:4], "test": rows[:4]} | {split: [odd]})
    return config.replace(experiment, data=config.replace(experiment.data, corpus=corpus))


UNSEEN = {
    "classification": "{split} example 1: label 'unseen' does not occur in the training data: use a, b",
    "tagging": "tags of {split} that are not in train count as wrong: unseen\n"
    "intents of {split} that are not in train count as wrong: never",
    "recognition": "{split} 0: the label 'unseen' is not in the alphabet, 0 1 2 3: correct it",
    "transcription": "{split} 0: the label 'unseen' is not in the alphabet, 0 1 2 3: correct it",
}
OPEN = {"translation", "language_model", "pretraining", "captioning", "regression"}
"""tasks whose symbols are open, as words are, or that have none"""


class Training(Exception):
    """The first step."""


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("name", UNSEEN)
def test_a_symbol_that_only_dev_or_test_has_is_named_before_training(name, split, tmp_path, monkeypatch, capsys):
    """The message is the same for both."""
    assert UNSEEN.keys() == EXPERIMENTS.keys() - OPEN
    monkeypatch.setattr(loop, "fit", lambda *arguments, **options: (_ for _ in ()).throw(Training))
    with pytest.raises((Training, UserError)) as caught:
        run.train(with_unseen(name, split), tmp_path)
    said = f"{caught.value}\n{capsys.readouterr().out}"
    assert UNSEEN[name].format(split=split) in said


# Tasks whose batches have different shapes: pairs, windows of numbers, tags for each token, streams of text.
SHAPES = {"translation", "regression", "tagging", "language_model"}
every_shape = zoo.each(EXPERIMENTS, quick=(), rare=set(EXPERIMENTS) - SHAPES)
# Two tasks join parts of others, and cost most: pictures and captions, recordings and spellings.
quick_for_one = zoo.each(EXPERIMENTS, quick=("regression",), rare=("captioning", "transcription"))


@pytest.fixture
def one_device(monkeypatch):
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])


@pytest.fixture(scope="module")
def straight(request, tmp_path_factory):
    """An undisturbed run of a task on one device: (folder, result). Several laws share it."""
    made = {}

    def of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = folder, run.train(changed(EXPERIMENTS[name], schedule="constant"), folder)
        return made[name]

    return of


@zoo.each(EXPERIMENTS, quick=(), rare=set(EXPERIMENTS) - {"translation", "language_model"})
def test_a_restart_changes_no_bit(name, tmp_path, one_device, straight):
    """The restart is in the middle of an epoch, with dropout."""
    experiment = changed(EXPERIMENTS[name], schedule="constant")
    run.train(changed(experiment, steps=4), tmp_path)
    restarted = params(run.train(experiment, tmp_path))
    assert all(np.array_equal(a, b) for a, b in zip(params(straight(name)[1]), restarted, strict=True))


prepared = cache(lambda name: task_laws.PreparedTask(EXPERIMENTS[name]))
OF_DATA = (task_laws.data_is_repeatable, task_laws.batches_follow_the_plan)
law_name = operator.attrgetter("__name__")


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("law", OF_DATA, ids=law_name)
def test_a_law_of_the_data_holds(law, name):
    law(prepared(name))


@quick_for_one
@pytest.mark.parametrize("law", [law for law in task_laws.LAWS if law not in OF_DATA], ids=law_name)
def test_a_law_holds(law, name):
    law(prepared(name))


@every_shape
def test_one_device_equals_eight(name, tmp_path, request):
    experiment = changed(EXPERIMENTS[name], evaluate_every=0, steps=3)
    eight = params(run.train(changed(experiment, mesh=Mesh(data=2, fsdp=4)), tmp_path / "eight"))
    request.getfixturevalue("one_device")
    one = params(run.train(experiment, tmp_path / "one"))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), eight, one)


@every_shape
def test_micro_batches_equal_one_batch(name, tmp_path, one_device):
    experiment = changed(EXPERIMENTS[name], evaluate_every=0, steps=2)
    noise = {name: 0.0 for name in ("dropout", "weight_drop", "word_dropout") if hasattr(experiment.model, name)}
    if noise:
        experiment = config.replace(experiment, model=config.replace(experiment.model, **noise))
    whole = params(run.train(experiment, tmp_path / "whole"))
    parts = params(run.train(changed(experiment, grad_accum_steps=2), tmp_path / "parts"))
    scale = max(np.abs(leaf).max() for leaf in whole)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6 * scale), parts, whole)


KILLED = """
import sys
sys.path.insert(0, {tests!r})
import conftest, jax
everything = jax.devices()
jax.devices = lambda *_: everything[:1]
from tasks.test_task_laws import EXPERIMENTS, changed
from s2sjax.runs import folder, run
from s2sjax.training import checkpoints

class Mortal(checkpoints.Checkpoints):
    def save(self, state, step, *arguments):
        super().save(state, step, *arguments)
        if step >= 4:
            self.wait()
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)

folder.Checkpoints = Mortal
run.train(changed(EXPERIMENTS[{name!r}], schedule="constant"), {folder!r})
"""


@zoo.each(EXPERIMENTS, quick=("regression",))
def test_members_of_a_sweep_take_the_steps_of_trainings_alone(name):
    """One program with two members: their seeds, learning rates, clipping and decay differ."""
    task, columns, plan = prepared(name).task, prepared(name).columns, prepared(name).plan
    trains = [
        config.replace(task.experiment.train, learning_rate=rate, clip_norm=clip, b1=b1)
        for rate, clip, b1 in ((1e-2, 0.5, 0.9), (2e-2, 1.0, 0.8))
    ]
    several = [config.replace(task.experiment, seed=seed, train=train) for seed, train in zip((0, 3), trains)]
    numbers = [config.numbers(each) for each in several]
    batch = make_batch(columns, plan, 0)
    init = jax.jit(train_run.make_init_fn(task.replace(several[0]), len(batch["example"])))
    states = [init(jax.random.key(each.seed)) for each in several]

    def step(*members):
        values = {name: tuple(numbers[i][name] for i in members) for name in numbers[0]}
        return train_run.make_step(task.replace(several[0]), columns, values)

    arguments = [{name: config.argument(name, value) for name, value in each.items()} for each in numbers]
    alone = [jax.jit(step(i))(states[i], batch, arguments[i]) for i in (0, 1)]
    stack = lambda trees: jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
    state, metrics = jax.jit(jax.vmap(step(0, 1), in_axes=(0, None, 0)))(stack(states), batch, stack(arguments))
    wanted_state, wanted_metrics = stack(alone)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, metrics, wanted_metrics)
    jax.tree.map(close, state.params, wanted_state.params)
    assert not np.allclose(*metrics["learning_rate"])


@zoo.each(EXPERIMENTS, quick=(), rare=set(EXPERIMENTS) - {"translation"})
def test_a_kill_changes_no_bit(name, tmp_path, one_device, straight):
    """After SIGKILL at the checkpoint of step 4, the same command ends as an undisturbed run."""
    program = KILLED.format(tests=str(Path(__file__).parents[1]), name=name, folder=str(tmp_path))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(s2sjax.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    }
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    resumed = params(run.train(changed(EXPERIMENTS[name], schedule="constant"), tmp_path))
    assert all(np.array_equal(a, b) for a, b in zip(params(straight(name)[1]), resumed, strict=True))


@quick_for_one
def test_a_run_opens_again_and_evaluates(name, one_device, straight):
    folder, (trained, _) = straight(name)
    found = run.evaluate(trained)
    opened = run.load(folder)
    assert opened.experiment == trained.experiment
    again = run.evaluate(opened)
    assert (again.path, again.results) == (found.path, found.results)
    assert all(np.isfinite(result.value) for result in found.results.values())
    assert "checkpoint of step" in str(found)
    comparison = s2sjax.compare(found, opened)
    assert all(difference.p == 1 for difference in comparison.differences.values())
