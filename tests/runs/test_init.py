"""Initialization from another run, and the schedule of a run that is continued for longer."""

import json
import typing

import jax
import numpy as np
import pytest
import zoo

from s2sjax import config
from s2sjax.config import Data, Luong, Synthetic, Train, Transformer
from s2sjax.config.models import specs
from s2sjax.data import text
from s2sjax.data.corpora import readers
from s2sjax.errors import UserError
from s2sjax.runs import folder, run, train_run
from s2sjax.tasks import Regression, Translation
from s2sjax.training import mesh as meshes
from s2sjax.training import optimizers
from s2sjax.training.checkpoints import transfer
from s2sjax.training.checkpoints.fingerprints import named_leaves
from s2sjax.training.run_log import Log

BASE = Translation(
    "base",
    data=Data(Synthetic("reverse", train=32, dev=4, test=0, length=4, alphabet=3), buckets=((6, 6),), batch_tokens=96),
    model=Luong(width=8, embedding_size=8, layers=1),
    train=Train(steps=4, warmup_steps=1, learning_rate=0.1, evaluate_every=0, save_every=2, log_every=4),
)
DATA = config.Mesh()
MORE = config.replace(BASE, data=config.replace(BASE.data, corpus=Synthetic("reverse", train=32, length=4, alphabet=5)))


pytestmark = pytest.mark.slow  # each test trains a few steps


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> run.Run:
    """A run with one checkpoint, at step 4."""
    made = started(tmp_path_factory.mktemp("base") / "run", config.replace(BASE, seed=1))
    checkpoints = made.checkpoints()
    checkpoints.save(train_run.initial_state(made.task, meshes.make_mesh(DATA)), 4, notes={"best": {}})
    checkpoints.wait()
    return made


def started(path, experiment=BASE, **options) -> run.Run:
    data = readers.load(experiment.data.corpus, "train")
    return run.Run(path, folder.start_task(experiment, path, data, **options))


def transferred(new: run.Run, base: run.Run, mesh=DATA):
    return train_run.initial_state(
        new.task, meshes.make_mesh(mesh), source=train_run.Source(base.folder, base.task), log=Log(None, 1, 1)
    )


def test_the_parameters_of_the_best_checkpoint_and_a_new_optimizer(base, tmp_path, capsys):
    averaged = config.replace(BASE, train=config.replace(BASE.train, ema=0.9), seed=7)
    state = transferred(started(tmp_path / "new", averaged), base)
    jax.tree.map(np.testing.assert_array_equal, state.params, base.params()[0])
    jax.tree.map(np.testing.assert_array_equal, state.ema, state.params)
    assert int(state.step) == 0
    fresh = train_run.initial_state(started(tmp_path / "new", averaged).task, meshes.make_mesh(DATA))
    jax.tree.map(np.testing.assert_array_equal, state.optimizer, fresh.optimizer)
    assert (
        capsys.readouterr().out == f"initialised from {base.folder}, checkpoint of step 4: 13 of 13 parameters taken\n"
    )


@pytest.mark.parametrize("mesh", [config.Mesh(fsdp=8), config.Mesh(data=4, tensor=2)], ids=["fsdp", "tensor"])
def test_transferred_parameters_are_sharded_as_those_of_the_new_run(base, tmp_path, mesh):
    new = started(tmp_path / "new")
    state = transferred(new, base, mesh)
    jax.tree.map(np.testing.assert_array_equal, state.params, base.params()[0])
    where = meshes.make_mesh(mesh)
    rules = new.task.rules if mesh.tensor > 1 else ()
    wanted = meshes.abstract_state(train_run.make_init_fn(new.task), where, rules, jax.random.key(0))
    assert jax.tree.all(jax.tree.map(lambda a, b: a.sharding == b.sharding, state, wanted))


def test_words_of_another_vocabulary_are_matched_by_their_pieces(base, tmp_path, capsys):
    new = started(tmp_path / "new", MORE)
    old, task = base.task, new.task
    assert old.target.fingerprint != task.target.fingerprint
    state = transferred(new, base)
    said = capsys.readouterr().out
    known = [piece for piece in task.target.all_pieces if piece in old.target.all_pieces]
    assert len(known) == old.target.size == 7 < task.target.size == 9
    assert "13 of 13 parameters taken" in said and "target_embedding/table 7 of 9" in said
    theirs, initial = base.params()[0], train_run.initial_state(new.task, meshes.make_mesh(DATA)).params
    for index, piece in enumerate(task.target.all_pieces):
        there = old.target.all_pieces.index(piece) if piece in known else None
        for name, part in (
            ("table", lambda p: p["target_embedding"]["table"]),
            ("out", lambda p: p["decoder"]["output"]["kernel"].T),
        ):
            wanted = part(initial)[index] if there is None else part(theirs)[there]
            np.testing.assert_array_equal(part(state.params)[index], wanted, err_msg=f"{name} {piece}")


def test_vocabularies_of_different_units_are_not_matched_by_id(base, tmp_path):
    """Three words and three letters: the tables have the same shape, but nothing in common."""
    words = config.replace(
        BASE, data=config.replace(BASE.data, source=config.Text("words"), target=config.Text("words"))
    )
    rows = started(tmp_path / "new", words).task.transfer_rows(base.task)
    assert set(rows) == {
        "source_embedding/table",
        "target_embedding/table",
        "decoder/output/kernel",
        "decoder/output/bias",
    }
    assert set(rows.values()) == {None}


def test_parameters_with_a_vocabulary_axis_are_transferred_by_word(base, tmp_path):
    """Tied embeddings have no output layer; one-hot words are multiplied by a matrix with a row for each word."""
    tied = started(tmp_path / "tied", config.replace(MORE, model=Transformer(8, 2, 8, 1, 1, tie="output")))
    rows = tied.task.transfer_rows(base.task)
    assert {path: how.axis for path, how in rows.items()} == {"source_embedding/table": 0, "target_embedding/table": 0}
    one_hot = started(tmp_path / "one-hot", config.replace(MORE, model=Luong(width=8, embedding_size=0, layers=1)))
    rows = one_hot.task.transfer_rows(base.task)
    mapped = {path: how.axis for path, how in rows.items() if how is not None}
    assert mapped["decoder/output/kernel"] == 1 and mapped["decoder/output/bias"] == 0
    assert any(path.startswith("encoder/") and axis == 0 for path, axis in mapped.items())


@zoo.each(typing.get_args(specs.Tie), "tie", quick=("all",), rare=("none",))
def test_every_kind_of_tied_embeddings_can_be_transferred(tie):
    """With the vocabulary of the other run, all parameters are copied; else those of the words in both vocabularies."""

    def task_of(e: Translation, assets=None):
        model, data = Transformer(8, 2, 8, 1, 1, tie=tie), config.replace(e.data, shared=True)
        task = config.replace(e, model=model, data=data).task()
        read = task.read()
        return task.replace(assets=task.adopt_assets(read, assets) if assets else task.learn_assets(read))

    old = task_of(BASE)
    theirs = jax.jit(old.init)(jax.random.key(1))
    for new in (task_of(MORE, old.assets), task_of(MORE)):
        mine, rows = jax.jit(new.init)(jax.random.key(2)), new.transfer_rows(old)
        found = transfer.match(mine, theirs, rows)
        assert not found.new and not found.left
        known = text.rows_in(new.target, old.target)
        assert sorted(rows) == ([] if (known >= 0).all() else sorted(WORDS[tie])) and (known >= 0).sum() == 7
        for path, leaf in named_leaves(transfer.merge(found, mine, theirs)):
            there = dict(named_leaves(theirs))[path]
            if path in rows:
                axis = int(path == "decoder/output/kernel")
                leaf, there = np.moveaxis(leaf, axis, 0)[known >= 0], np.moveaxis(there, axis, 0)[known[known >= 0]]
            np.testing.assert_array_equal(leaf, there, err_msg=path)


WORDS = {"all": ["target_embedding/table"]}
WORDS["output"] = [*WORDS["all"], "source_embedding/table"]
WORDS["embeddings"] = [*WORDS["all"], "decoder/output/kernel", "decoder/output/bias"]
WORDS["none"] = [*WORDS["output"], "decoder/output/kernel", "decoder/output/bias"]


def test_spelling_depends_on_the_vocabulary(base, tmp_path):
    spelt = config.Text("words", spelling=config.Spelling(on=True, filters=2, kernels=(1, 2)))
    experiment = config.replace(MORE, data=config.replace(MORE.data, source=spelt, target=spelt))
    rows = started(tmp_path / "new", experiment).task.transfer_rows(base.task)
    assert rows["source_embedding/characters/table"] is None and rows["decoder/output/kernel"] is None


# ------------------------------------------------------------------------------------ whole runs


@pytest.mark.slow
def test_a_run_is_started_recorded_and_resumed_without_a_second_transfer(base, tmp_path, capsys):
    tuned, _ = run.train(MORE, tmp_path / "tuned", init=base.folder, init_assets=True)
    assert tuned.task.target.fingerprint == base.task.target.fingerprint  # of five letters, three are known
    page = json.loads((tmp_path / "tuned/config.json").read_text())
    assert page["init"] == str(base.folder) and "initialised from" in capsys.readouterr().out
    longer = config.replace(MORE, train=config.replace(MORE.train, steps=5))
    run.train(longer, tmp_path / "tuned", init=base.folder, init_assets=True)
    said = capsys.readouterr().out
    assert f"--init {base.folder} is not used: this run continues from its own checkpoint of step 4\n" in said
    assert "initialised from" not in said and "resumed after step 4\n" in said
    assert (
        "train.steps is 5, but the schedule of this run has 4 steps: the learning rate is 0 at step 4 "
        "and 0 at step 5, so nothing is learned; "
        "to change it set train.schedule_steps, for example to 5\n"
    ) in said
    page = json.loads((tmp_path / "tuned/config.json").read_text())
    assert page["init"] == str(base.folder) and page["experiment"]["train"]["schedule_steps"] == 4


def test_a_run_that_was_killed_before_its_first_checkpoint_transfers_again(base, tmp_path):
    started(tmp_path / "new", init=str(base.folder))
    assert train_run._source(tmp_path / "new", None, False).folder == base.folder


@pytest.mark.parametrize(
    "experiment, words",
    [
        (
            config.replace(BASE, data=config.replace(BASE.data, source=config.Text("words"))),
            "has unit characters, but data.source.unit is words",
        ),
        (config.replace(BASE, data=config.replace(BASE.data, shared=True)), None),
        (
            Regression("fib", train=Train(evaluate_every=0)),
            "Regression has no assets to take from another run: leave out --init-a",
        ),
    ],
    ids=["unit", "shared", "task"],
)
def test_vocabularies_that_do_not_fit_are_refused(base, tmp_path, experiment, words):
    task = experiment.task()
    if words is None:
        assert task.adopt_assets(task.read(), base.task.assets)["source"] is base.task.source
        return
    with pytest.raises(UserError, match=words):
        task.adopt_assets(task.read(), base.task.assets)


def test_the_initial_run_must_be_another_run_and_have_a_checkpoint(base, tmp_path):
    untrained = started(tmp_path / "untrained").folder
    for options, words in (
        (dict(init=untrained), f"there is no checkpoint in {untrained}: train it first"),
        (dict(init=tmp_path / "new"), "is the folder of this run: name another run"),
        (dict(init=tmp_path / "nowhere"), "nowhere is not a run folder"),
        (dict(init_assets=True), "--init-assets takes the vocabularies of another run: name that run with --init RUN"),
    ):
        with pytest.raises(UserError, match=words):
            run.train(BASE, tmp_path / "new", **options)
        assert not (tmp_path / "new").exists()


def test_different_assets_are_refused(base, tmp_path):
    started(tmp_path / "new", MORE)
    with pytest.raises(UserError, match=r"was not started with the assets of .*: give another --out"):
        started(tmp_path / "new", MORE, init=str(base.folder), assets=base.task.assets)


# ------------------------------------------------------------------------------------- schedules


def with_train(**fields) -> Translation:
    return config.replace(BASE, train=config.replace(BASE.train, **fields))


def test_a_longer_run_keeps_its_schedule(tmp_path):
    assert started(tmp_path).experiment.train.schedule_steps == 4
    assert started(tmp_path, with_train(steps=9)).experiment.train.schedule_steps == 4
    assert run.load(tmp_path).experiment.train.schedule_steps == 4
    assert started(tmp_path, with_train(steps=9, schedule_steps=9)).experiment.train.schedule_steps == 9
    assert started(tmp_path, with_train(steps=12)).experiment.train.schedule_steps == 9


@pytest.mark.parametrize(
    "schedule, said",
    [
        ("cosine", "train.schedule_steps changes from 4 to 8: the learning rate at step 4 goes from 0 to 0.0"),
        ("wsd", "train.schedule_steps changes from 4 to 8: the learning rate at step 4 goes from 0 to 0.1"),
        ("constant", None),
    ],
)
def test_a_change_of_the_schedule_is_described(schedule, said):
    before = Train(steps=4, warmup_steps=1, learning_rate=0.1, schedule=schedule)
    now = config.replace(before, steps=8, schedule_steps=8)
    lines = optimizers.describe_change(4, now, now, step=4)
    assert lines == [] if said is None else len(lines) == 1 and lines[0].startswith(said)
    assert optimizers.describe_change(None, now, now, 0) == []  # a new run
    assert optimizers.describe_change(8, now, now, 4) == []  # unchanged


FILE = """
from s2sjax.config import *
from s2sjax.tasks import Translation

def halves(peak, steps, times=1.0):
    return lambda step: peak * 0.5 ** (times * step / steps)

experiment = Translation("own", train=Train(8, schedule=f"{__name__}.halves", schedule_args=("times=2",)))
"""


def test_a_schedule_can_be_defined_in_the_experiment_file(tmp_path):
    (tmp_path / "own.py").write_text(FILE)
    train = run.load_experiment(tmp_path / "own.py").train
    assert optimizers.rate_at(train, 8) == pytest.approx(train.learning_rate / 4)


def test_the_command_passes_the_initial_run(call, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(FILE)
    seen = []
    monkeypatch.setattr(run, "train", lambda experiment, *rest: seen.append(rest[:-1]) or 1 / 0)  # not the time
    for options in (("--init", "runs/base", "--init-assets"), ("--init", "runs/base"), ()):
        with pytest.raises(ZeroDivisionError):
            call("train", tmp_path / "own.py", "--out", "x", *options)
    file = str(tmp_path / "own.py")
    other = [(*rest, False, None) for rest in (("runs/base", True), ("runs/base", False), (None, False))]
    assert seen == [("x", file, *rest) for rest in other]
