"""Fine-tuning: the settings, the vocabularies and the parameters that the field `init` takes from another run."""

import dataclasses
import json
import operator
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import zoo
from conftest import refused
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

import s2sjax
from s2sjax import config
from s2sjax.config import Data, Luong, Search, Train, Transformer
from s2sjax.data.batching.batch_plan import make_batch
from s2sjax.errors import UserError
from s2sjax.models.families.ngram_cnn import NGrams
from s2sjax.runs import folder, initial_settings, run, train_run
from s2sjax.runs.sweeps import sweep as sweeps
from s2sjax.runs.sweeps import sweep_grid
from s2sjax.tasks import Classification, Pretraining, Regression, Translation
from s2sjax.tasks.classification.settings import LabelData, LabelModel
from s2sjax.tasks.pretraining.settings import BertModel, Paragraphs
from s2sjax.training import mesh as meshes
from s2sjax.training.run_log import METRICS, read_lines

WORDS = config.Text("words", min_count=2)
LINES = [" ".join("abcde"[(i * k) % 5] for k in range(1, 2 + i % 4)) for i in range(24)]
PAIRS = [(line, line[::-1]) for line in LINES]
TRAIN = Train(steps=2, warmup_steps=1, learning_rate=0.01, evaluate_every=0, save_every=1, log_every=1)
BASE = Translation(
    "base",
    data=Data(
        config.InMemory(train=PAIRS, test=PAIRS[:2]), WORDS, WORDS, shared=True, buckets=((6, 6),), batch_tokens=96
    ),
    model=Luong(width=8, embedding_size=8, layers=1, tie="all", dropout=0.0),
    train=TRAIN,
    search=Search(beam_size=2, max_length=9),
    seed=1,
)
FEWER = config.InMemory(train=PAIRS[3:9], test=PAIRS[:2])
"""other data: the vocabulary that it would give lacks a word"""
FILE = """
from s2sjax.config import *
from s2sjax.tasks import Translation

corpus = TextFiles(("rows.tsv",), (), ("one.tsv",))
experiment = Translation(
    "tuned", init="runs/base", data=Data(corpus, buckets=((6, 6),), batch_tokens=24),
    train=Train(2, warmup_steps=1, evaluate_every=0, save_every=1, log_every=1),
)
"""


def started(path: Path, experiment) -> run.Run:
    """A run with a checkpoint of its initial parameters."""
    task = experiment.task()
    made = run.Run(path, folder.start_task(experiment, path, task.read()))
    checkpoints = made.checkpoints()
    state = train_run.initial_state(made.task, meshes.make_mesh(config.Mesh()), rows=8)
    checkpoints.save(state, 1, notes={"best": {}})
    checkpoints.wait()
    return made


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    return started(tmp_path_factory.mktemp("stored") / "base", BASE).folder


@pytest.fixture
def here(stored, tmp_path, monkeypatch) -> Path:
    """A working directory with the run runs/base and the experiment file tune.py."""
    shutil.copytree(stored, tmp_path / "runs/base")
    (tmp_path / "tune.py").write_text(FILE)
    (tmp_path / "rows.tsv").write_text("a b\tb a\nc\tc\na a b\tb a a\n" * 4)
    (tmp_path / "one.tsv").write_text("a b\tb a\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tuned(init="runs/base", **fields) -> Translation:
    data = Data(FEWER, buckets=((6, 6),), batch_tokens=24)
    return Translation("tuned", init=str(init), **{"data": data, "train": TRAIN, **fields})


def taken(experiment, *runs: Path):
    return initial_settings.take(config.resolve_paths(experiment, Path.cwd()), *runs)


# -------------------------------------------------------------------------------------- settings


def test_settings_that_are_left_at_their_defaults_are_taken(here):
    found = taken(tuned())
    assert (found.model, found.search) == (BASE.model, BASE.search)
    assert (found.data.source, found.data.target, found.data.shared) == (WORDS, WORDS, True)
    assert found.data.corpus == FEWER and found.data.batch_tokens == 24
    assert (found.name, found.seed, found.train) == ("tuned", 0, TRAIN)
    assert found.init == str(here / "runs/base")
    assert taken(config.replace(found)) == found
    plain = config.replace(tuned(), init="")
    assert taken(plain) is plain


def test_settings_of_the_user_stay(here):
    model, search = Transformer(8, 2, 8, 1, 1), Search(beam_size=7)
    found = taken(tuned(model=model, search=search))
    assert (found.model, found.search, found.data.source) == (model, search, WORDS)


def test_an_experiment_file_has_them_before_the_command_line_changes_them(here, call, monkeypatch):
    assert run.load_experiment("tune.py").model == BASE.model
    seen = []
    monkeypatch.setattr(run, "train", lambda *arguments: seen.append(arguments) or 1 / 0)
    for fields in ((), ("--model.dropout", "0.3", "--search.beam_size", "1", "--data.source.min_count=1")):
        more = ("--data.target.min_count", "1") if fields else ()
        with pytest.raises(ZeroDivisionError):
            call("train", "tune.py", *fields, *more)
    (plain, *_), (changed, path, file, init, *_) = seen
    assert plain == run.load_experiment("tune.py") and plain.init == str(here / "runs/base")
    assert changed.model == config.replace(BASE.model, dropout=0.3)
    assert changed.search == config.replace(BASE.search, beam_size=1)
    assert changed.data.source == config.Text("words")  # also a default value, which is not taken again
    assert (path, file, init, changed.init) == (Path("runs/tuned"), "tune.py", None, plain.init)


@pytest.mark.parametrize("options", [("--init", "runs/x"), ("--init=runs/x",)])
def test_the_command_line_cannot_set_the_field(here, call, options):
    code, _, message = call("plan", "tune.py", *options)
    assert code == 2
    assert message == "error: --init is an option of s2sjax train and s2sjax sweep, not of s2sjax plan: leave it out\n"


# ----------------------------------------------------------------------------- training and resuming


def test_the_first_loss_is_that_of_the_other_run_on_the_same_batch(here):
    trained = s2sjax.train(tuned(), "out")
    base = run.load("runs/base")
    assert {name: each.fingerprint for name, each in trained.task.assets.items()} == {
        name: each.fingerprint for name, each in base.task.assets.items()
    }
    own = config.replace(tuned(), init="").task()
    assert own.learn_assets(own.read())["source"].fingerprint != base.task.source.fingerprint
    columns = base.task.columns(taken(tuned()).task().read())
    batch = make_batch(columns, trained.task.plan(columns, 1), 0)
    total, weight = base.task.loss(columns)(base.params()[0], batch, jax.random.key(0), 0)["loss"]
    first = next(line["loss"] for line in read_lines(Path("out") / METRICS) if "loss" in line)
    np.testing.assert_allclose(first, total / weight, rtol=1e-5)
    page = json.loads(Path("out/config.json").read_text())
    assert page["init"] == page["experiment"]["init"] == str(here / "runs/base")
    assert config.from_json(page["experiment"]) == run.load("out").experiment
    assert run.load("out").experiment.model == BASE.model


@pytest.mark.slow
@pytest.mark.parametrize("way", ["python", "file", "command"])
def test_a_run_continues_without_the_other_run_and_to_the_same_bit(here, call, way):
    (here / "tune.py").write_text(FILE.replace("Train(2", "Train(3, schedule_steps=3"))
    longer = config.replace(TRAIN, steps=3, schedule_steps=3)

    def train(out: str, steps: int):
        if way == "command":
            return call("train", "tune.py", "--out", out, "--train.steps", steps, "--model.dropout", "0.1")
        if way == "file":
            (here / "tune.py").write_text(
                (here / "tune.py").read_text().replace(f"Train({5 - steps}", f"Train({steps}")
            )
            return s2sjax.train("tune.py", out)
        return s2sjax.train(tuned(train=config.replace(longer, steps=steps)), out)

    train("whole", 3)
    train("out", 2)
    shutil.rmtree("runs/base")
    train("out", 3)
    states = [run.load(path).checkpoints().restore_params(step=3)[0] for path in ("whole", "out")]
    jax.tree.map(np.testing.assert_array_equal, *states)
    if way == "command":  # what is taken is that of the other run, not what was set on top of it
        message = call("train", "tune.py", "--out", "out", "--train.steps", "4")[2]
        other = "out contains another experiment: its model.dropout is 0.1, not 0.0: give another --out"
        assert f"error: {other}\n" in message


def test_the_parameters_are_needed_until_the_first_checkpoint(here):
    s2sjax.train(tuned(), "out")
    shutil.rmtree("out/checkpoints")
    shutil.rmtree("runs/base")
    assert "runs/base is not a run folder" in refused(lambda: s2sjax.train(tuned(), "out"))


def test_the_option_and_the_field_may_name_the_same_run(here):
    with pytest.raises(UserError, match=r"the experiment has init .*base, and --init is runs/other: leave out one"):
        s2sjax.train(tuned(), "out", init="runs/other")
    assert not Path("out").exists()
    trained = s2sjax.train(tuned(), "out", init="runs/base")
    assert trained.task.source.fingerprint == run.load("runs/base").task.source.fingerprint


CODE = """
from s2sjax.config import *
from s2sjax.tasks import Translation

@settings
class Mine(Luong):
    pass

rows = [("a b", "b a"), ("c", "c"), ("a a b", "b a a")] * 4
experiment = Translation(
    "mine", data=Data(InMemory(train=rows, test=rows[:1]), buckets=((6, 6),), batch_tokens=24),
    model=Mine(width=8, embedding_size=8, layers=1), train=Train(1, evaluate_every=0),
)
"""


@pytest.mark.slow
def test_the_code_of_the_other_run_is_taken_too(here):
    (here / "mine.py").write_text(CODE)
    s2sjax.train("mine.py")
    (here / "tune.py").write_text(FILE.replace("runs/base", "runs/mine"))
    first = s2sjax.train("tune.py")
    assert type(first.experiment.model).__name__ == "Mine"
    assert {path.name for path in Path("runs/tuned/code").glob("*.py")} == {"mine.py", "tune.py"}
    (here / "tune.py").write_text((here / "tune.py").read_text().replace("Train(2", "Train(3"))
    assert "runs/tuned was trained with different code: tune.py, line 8 was" in refused(lambda: s2sjax.train("tune.py"))
    longer = s2sjax.train("tune.py", accept_code=True)
    assert longer.params()[1] == 3
    shutil.rmtree("runs/mine")
    (here / "mine.py").unlink()
    again = s2sjax.train("tune.py")  # nothing is left to train
    assert type(again.experiment.model).__name__ == "Mine"
    jax.tree.map(np.testing.assert_array_equal, again.params()[0], longer.params()[0])


# ------------------------------------------------------------------------------------------ sweeps


def open_new(experiment, out: Path):
    """The task of a new run, and its inputs."""
    inputs = train_run.resolve(experiment, out, None, None, False)
    return train_run.open_folder(inputs, out, init_assets=False, accept_code=False), inputs


def with_width(width: int, path: Path) -> None:
    started(path, config.replace(BASE, model=config.replace(BASE.model, width=width, embedding_size=width)))


def test_runs_of_the_same_name_are_told_apart(here, monkeypatch):
    """Members of a sweep over several initial runs find their own one again: by its path, also if all were moved."""
    for side, width in (("a", 8), ("b", 12)):
        with_width(width, here / "runs" / side / "base")
        open_new(taken(tuned(f"runs/{side}/base")), here / "runs/grid" / side)
    width_of = lambda side: taken(tuned(f"runs/{side}/base"), *sorted(Path("runs/grid").glob("?"))).model.width
    assert [width_of(side) for side in "ab"] == [8, 12]
    with_width(16, here / "runs/c/base")
    assert width_of("c") == 16  # it was not an initial run before
    for side in "abc":
        shutil.rmtree(here / "runs" / side)
    assert [width_of(side) for side in "ab"] == [8, 12]
    assert "runs/c/base is not a run folder" in refused(lambda: width_of("c"))  # it may be either of them
    (here / "moved").mkdir()
    (here / "runs").rename(here / "moved/runs")
    monkeypatch.chdir(here / "moved")
    assert [width_of(side) for side in "ab"] == [8, 12]


@pytest.mark.parametrize("way", ["python", "command"])
def test_several_files_resume_a_sweep_without_the_other_run(here, call, way, monkeypatch):
    """The sweep has the name of the first file, and there the others have what they have taken."""
    (here / "other.py").write_text(FILE.replace('"tuned"', '"other"'))
    seen = []
    monkeypatch.setattr(sweeps, "sweep", lambda *given: seen.append(given) or 1 / 0)

    def sweep():
        with pytest.raises(ZeroDivisionError):
            if way == "python":
                s2sjax.sweep({"tune": "tune.py", "other": "other.py"}, {"seed": [0, 1]})
            else:
                call("sweep", "tune.py", "other.py", "--seed", "0,1")
        return seen.pop()

    experiments, _, path, *_ = sweep()
    assert Path(path) == Path("runs/tuned-sweep")
    for name, experiment in experiments.items():
        open_new(config.replace(experiment), Path(path) / f"experiment={name},seed=0")
    shutil.rmtree("runs/base")
    again, *_ = sweep()
    assert again == experiments and again["other"].model == BASE.model


@pytest.mark.slow
def test_members_of_a_sweep_start_from_the_other_run(here):
    grid = {"train.learning_rate": [0.01, 0.02], "model.dropout": [0.0, 0.2]}
    swept = s2sjax.sweep("tune.py", grid, "runs/grid")
    models = [each.experiment.model for each in swept.runs.values()]
    assert models == [config.replace(BASE.model, dropout=rate) for rate in (0.0, 0.2)] * 2
    fingerprint = run.load("runs/base").task.source.fingerprint
    assert {each.task.source.fingerprint for each in swept.runs.values()} == {fingerprint}
    alone, _ = run.train(
        sweep_grid.apply(run.load_experiment("tune.py"), {"train.learning_rate": 0.02}), "alone", "tune.py"
    )
    shutil.rmtree("runs/base")
    assert len(s2sjax.sweep("tune.py", grid, "runs/grid").runs) == 4  # nothing is left to train
    same = swept.runs["train.learning_rate=0.02,model.dropout=0"].params()[0]
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), alone.params()[0], same)


@pytest.mark.slow
def test_a_sweep_can_compare_several_initial_runs(here):
    other = config.replace(BASE, seed=5, model=config.replace(BASE.model, width=12, embedding_size=12))
    started(here / "runs/wide", other)
    swept = s2sjax.sweep(tuned(init=""), {"init": ["runs/base", "runs/wide"]}, "runs/grid")
    assert [each.experiment.model.width for each in swept.runs.values()] == [8, 12]
    message = refused(lambda: s2sjax.sweep(tuned(), {"init": ["runs/wide"]}, "runs/more"))
    assert message == ("init=runs-wide: the experiment has an init, and the sweep gives others: leave out one of them")


# --------------------------------------------------------------------------------------- every task


def experiments():
    from tasks.test_task_laws import EXPERIMENTS

    return EXPERIMENTS


def with_defaults(experiment, **fields):
    """The experiment with the default values of all fields that `init` can take."""
    for name in type(experiment).init_fields:
        owner, _, last = name.rpartition(".")
        part = operator.attrgetter(owner)(experiment) if owner else experiment
        (field,) = (each for each in dataclasses.fields(part) if each.name == last)
        missing = field.default_factory is dataclasses.MISSING
        experiment = sweep_grid.apply(experiment, {name: field.default if missing else field.default_factory()})
    return config.replace(experiment, **fields)


TASKS = ("translation", "regression", "classification", "tagging", "recognition", "language_model", "pretraining",
         "captioning", "transcription")  # fmt: skip


@zoo.each(TASKS, "task", quick=("regression",))
def test_every_task_takes_its_model_its_assets_and_all_parameters(task, tmp_path):
    e = experiments()[task]
    e = config.replace(e, train=config.replace(e.train, steps=2, evaluate_every=0))
    base = started(tmp_path / "base", e)
    experiment = taken(with_defaults(e, name="tuned", init=str(tmp_path / "base"), seed=9), tmp_path / "out")
    for name in type(e).init_fields:
        assert operator.attrgetter(name)(experiment) == operator.attrgetter(name)(base.experiment), name
    found, inputs = open_new(experiment, tmp_path / "out")
    assert folder._fingerprints(found.assets) == folder._fingerprints(base.task.assets)
    state = train_run.initial_state(found, meshes.make_mesh(config.Mesh()), rows=8, source=inputs.source)
    jax.tree.map(np.testing.assert_array_equal, state.params, base.params()[0])


@pytest.mark.slow
def test_a_run_of_another_task_offers_no_settings(here):
    corpus = config.InMemory(train=[(line, "") for line in LINES])
    bert = Pretraining(
        "bert", data=Paragraphs(text=WORDS, corpus=corpus), model=BertModel(Transformer(8, 2, 8, 1, 1)), train=TRAIN
    )
    started(here / "runs/bert", bert)
    experiment = taken(tuned(init="runs/bert"))
    assert experiment == config.resolve_paths(tuned(init="runs/bert"), here)
    message = refused(lambda: s2sjax.train(tuned(init="runs/bert"), "out"))
    assert (
        message == "the source vocabulary of init has unit words, but data.source.unit is characters: make them equal"
    )
    words = Data(FEWER, WORDS, WORDS, shared=True, buckets=((6, 6),), batch_tokens=24)
    trained = s2sjax.train(tuned(init="runs/bert", data=words, model=Transformer(8, 2, 8, 1, 1, tie="all")), "out")
    assert "[MASK]" in trained.task.source.tags


# ------------------------------------------------------------------------------- frozen, layer decay


def with_train(**fields) -> Translation:
    return tuned(train=config.replace(TRAIN, **fields))


@pytest.mark.slow
def test_a_run_with_frozen_parameters_continues_to_the_same_bit(here):
    options = dict(frozen=("embedding",), layer_decay=0.5, ema=0.9, schedule_steps=3)
    base = run.load("runs/base").params()[0]
    for out, steps in (("whole", 3), ("out", 2), ("out", 3)):
        s2sjax.train(with_train(steps=steps, **options), out)
    one, other = (run.load(path).checkpoints().restore_params(step=3)[0] for path in ("whole", "out"))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    np.testing.assert_array_equal(one["target_embedding"]["table"], base["target_embedding"]["table"])
    moved = jax.tree.map(lambda new, old: (new != old).any(), one, base)
    assert sum(jax.tree.leaves(moved)) == len(jax.tree.leaves(moved)) - 1
    message = refused(lambda: s2sjax.train(with_train(steps=4, **options | {"frozen": ()}), "out"))
    assert message == "out contains another experiment: its train.frozen is ['embedding'], not []: give another --out"


def test_a_wrong_pattern_is_refused_before_anything_is_written(here):
    message = refused(lambda: s2sjax.train(with_train(frozen=("^nothing/",)), "out"))
    assert message.startswith("train.frozen '^nothing/' matches no parameter: correct it; there are decoder/")
    assert not Path("out").exists()
    decayed = config.replace(TRAIN, layer_decay=0.5)
    model = LabelModel(NGrams(embedding_size=4, kernels=(1, 2), filters=4))  # its layers are side by side
    labelled = LabelData(config.InMemory(train=[("a b", "x"), ("b", "y")]), buckets=((4,),))
    message = refused(lambda: s2sjax.train(Classification("c", data=labelled, model=model, train=decayed), "out"))
    assert message.startswith("train.layer_decay requires layers with known names, such as blocks/stack or forward_0")
    assert not Path("out").exists()


@pytest.mark.slow
def test_members_with_different_layer_decay_share_one_program(here, capsys):
    grid = {"train.layer_decay": [0.5, 0.9]}
    swept = s2sjax.sweep(with_train(), grid, "runs/grid")
    assert "one program for 2 runs" in capsys.readouterr().out
    for rate, member in zip((0.5, 0.9), swept.runs.values()):
        alone = s2sjax.train(with_train(layer_decay=rate), f"alone-{rate}")
        close = lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5)
        jax.tree.map(close, member.params()[0], alone.params()[0])
    one, other = (each.params()[0]["target_embedding"]["table"] for each in swept.runs.values())
    assert not np.allclose(one, other, atol=1e-4)
    s2sjax.sweep(with_train(), {"train.layer_decay": [1.0, 0.9]}, "runs/more")
    assert "2 programs for 2 runs" in capsys.readouterr().out


def test_the_experiment_of_the_docs_can_be_loaded(here):
    page = (Path(s2sjax.__file__).parents[1] / "docs/getting-started.md").read_text(encoding="utf-8")
    (here / "page.py").write_text(page.partition("## Fine-tune")[2].split("```")[1])
    (here / "runs/base").rename("runs/news")
    experiment = run.load_experiment("page.py")
    assert (experiment.name, experiment.model, experiment.train.steps) == ("medical", BASE.model, 2000)


# ---------------------------------------------------------------------------------------- mistakes


def test_debugging_and_plans_use_the_vocabularies_of_the_other_run(here):
    task = taken(tuned()).task()
    found = initial_settings.assets_of(task, task.read())
    assert found["source"].fingerprint == run.load("runs/base").task.source.fingerprint
    plain = config.replace(tuned(), init="").task()
    learned = initial_settings.assets_of(plain, plain.read())
    assert learned["source"].fingerprint != found["source"].fingerprint


def mistakes(here: Path):
    sweep = here / "runs/grid"
    sweep.mkdir()
    (sweep / "sweep.json").write_text("{}")
    empty = here / "runs/empty"
    shutil.copytree("runs/base", empty)
    shutil.rmtree(empty / "checkpoints")
    shutil.copytree("runs/base", here / "runs/broken")
    (here / "runs/broken/config.json").write_text("{")
    return {
        "runs/nothing": "init: {}/runs/nothing is not a run folder (it has no config.json): name another folder",
        "tune.py": "init: {}/tune.py is not a run folder (it has no config.json): name another folder",
        "runs/grid": "init: {}/runs/grid is a sweep: name one of its runs, {}/runs/grid/NAME",
        "runs/empty": "there is no checkpoint in {}/runs/empty: train it first, or name another run with init",
        "runs/broken": "init: {}/runs/broken/config.json cannot be read (",
        "runs/tuned": "init runs/tuned is the folder of this run: name another run, or give another name to the ",
    }


def test_the_other_run_must_be_a_run_with_a_checkpoint_and_not_this_one(here):
    for init, words in mistakes(here).items():
        for make in (
            lambda init=init: s2sjax.train(tuned(init)),
            lambda init=init: (
                (here / "tune.py").write_text(FILE.replace("runs/base", init)) and s2sjax.train("tune.py")
            ),
        ):
            message = refused(make)
            assert message.startswith(words.replace("{}", str(here))), (init, message)
            assert not (here / "runs/tuned").exists()


def test_a_combination_that_cannot_work_names_the_other_run(here):
    characters = Data(FEWER, config.Text("characters", min_count=3), buckets=((6, 6),))
    assert refused(lambda: s2sjax.train(tuned(data=characters), "out")) == (
        "with the settings of init runs/base: data.shared is set, but data.source and data.target differ: make them "
        "equal, or unset it"
    )
    assert refused(lambda: Regression("a", init=3)) == "Regression.init is 3: it must be a string"


@runs(max_examples=60)
@given(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=12))
def test_any_other_text_is_a_mistake_of_one_line(init):
    try:
        experiment = config.resolve_paths(Classification("tuned", init=init), Path("/nowhere"))
        assert initial_settings.take(experiment, Path("/nowhere/out")) is experiment and not init
    except UserError as error:
        assert "\n" not in str(error), init
