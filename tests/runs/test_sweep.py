"""Laws of sweeps: a member is the same training as alone, whatever happens to the other members or to the process."""

import json
import re
import shutil
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import refused

import s2sjax
from s2sjax import config, tasks
from s2sjax.config import replace
from s2sjax.data.batching.batch_plan import Plan
from s2sjax.models.families.ngram_cnn import NGramEncoder, NGrams
from s2sjax.runs import run
from s2sjax.runs.sweeps import cohorts, sweep_grid, sweep_results
from s2sjax.runs.sweeps import sweep as sweeps
from s2sjax.tasks.classification.settings import LabelData, LabelModel
from s2sjax.training import population
from s2sjax.training.checkpoints.manager import Checkpoints
from s2sjax.training.run_log import METRICS, read_lines

WORDS = ["good", "bad", "film", "so", "a", "one", "not"]
LINES = [" ".join(WORDS[(i * k + i) % 7] for k in range(1 + i % 6)) for i in range(40)]
PAIRS = [(line, str(line.count("o") % 2)) for line in LINES]
TINY = tasks.Classification(
    "tiny",
    data=LabelData(
        config.InMemory(train=PAIRS, dev=PAIRS[:9], test=PAIRS[3:7]), buckets=((4,), (8,)), batch_tokens=32
    ),
    model=LabelModel(NGrams(embedding_size=4, kernels=(1, 2), filters=4, dropout=0.2)),
    train=config.Train(
        steps=12, warmup_steps=3, learning_rate=5e-3, ema=0.9, weight_decay=0.01, label_smoothing=0.1, log_every=1,
        evaluate_every=6, save_every=6,
    ),
)  # fmt: skip
PAGE = Path(s2sjax.__file__).parents[1] / "docs" / "sweeps.md"
GRID = {"seed": [0, 1], "train.learning_rate": [2e-3, 5e-3]}


@pytest.fixture
def one_device(monkeypatch):
    everything = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: everything[:1])


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> sweeps.Swept:
    """A finished sweep on one device."""
    everything = jax.devices()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *_: everything[:1])
        return s2sjax.sweep(TINY, GRID, tmp_path_factory.mktemp("swept") / "grid", at_once=4)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_lines(folder / METRICS) if "loss" in line]


def plan_of(trained: run.Run) -> Plan:
    return trained.task.plan(trained.task.columns(trained.task.read()), 1)


def newest(folder: Path) -> list[np.ndarray]:
    checkpoints = run.load(folder).checkpoints(read_only=True)
    return jax.tree.leaves(jax.device_get(checkpoints.restore_params(step=max(checkpoints.steps()))[0]))


def same(one: Path, other: Path) -> None:
    """The final parameters of two runs are equal, bit for bit."""
    assert len(newest(one)) > 4
    jax.tree.map(np.testing.assert_array_equal, newest(one), newest(other))


# ------------------------------------------------------------------------- a member and the same training alone


def test_a_member_equals_the_same_training_alone(swept, one_device, tmp_path):
    alone = replace(TINY, seed=1, train=replace(TINY.train, learning_rate=2e-3))
    trained, _ = run.train(alone, tmp_path / "alone")
    member = swept.folder / "seed=1,train.learning_rate=0.002"
    np.testing.assert_allclose(losses(member), losses(tmp_path / "alone"), rtol=2e-5)
    for one, other in zip(newest(member), newest(tmp_path / "alone")):
        np.testing.assert_allclose(one, other, atol=2e-5)
    scores = [[line for line in read_lines(each / METRICS) if "score" in line] for each in (member, trained.folder)]
    assert [line["step"] for line in scores[0]] == [line["step"] for line in scores[1]] == [6, 12]
    assert json.loads((member / "config.json").read_text()) == json.loads((trained.folder / "config.json").read_text())


def test_a_member_is_an_ordinary_run(swept, one_device, tmp_path):
    shutil.copytree(swept.folder / "seed=0,train.learning_rate=0.005", tmp_path / "member")
    member = s2sjax.load(tmp_path / "member")
    assert len(member.decode(["so good", "a film"])) == 2
    assert [found.split for found in member.evaluations()] == ["test"]
    longer = replace(TINY, train=replace(TINY.train, steps=14, schedule_steps=12))
    _, result = run.train(longer, member.folder)
    assert int(result.state.step) == 14


def test_members_differ_from_each_other(swept):
    several = [losses(path) for path in sorted(swept.folder.glob("seed=*"))]
    assert len(several) == 4 and len({tuple(each) for each in several}) == 4


def test_the_bucket_of_a_step_depends_on_the_data_alone(swept):
    plans = [plan_of(trained) for trained in swept.runs.values()]
    first, *others = [[plan.at(step)[0] for step in range(30)] for plan in plans]
    assert len(set(first)) == 2 and all(other == first for other in others)
    rows = {tuple(np.concatenate([plan.at(step)[1] for step in range(8)]).tolist()) for plan in plans}
    assert len(rows) == 2  # one for each seed


@pytest.mark.slow
def test_devices_share_the_members(swept, tmp_path):
    assert len(jax.devices()) == 8
    spread = s2sjax.sweep(TINY, GRID, tmp_path / "spread")
    for name in spread.runs:
        np.testing.assert_allclose(losses(spread.folder / name), losses(swept.folder / name), rtol=5e-5)


@pytest.mark.slow
def test_members_with_the_same_batches(one_device, tmp_path):
    one = s2sjax.sweep(TINY, {"seed": [3, 4]}, tmp_path / "same", same_data=True, at_once=2)
    batches = [
        trained.task.plan(trained.task.columns(trained.task.read()), 1).at(5)[1] for trained in one.runs.values()
    ]
    np.testing.assert_array_equal(*batches)
    alone, _ = run.train(replace(TINY, seed=4, data_seed=3), tmp_path / "alone")
    np.testing.assert_allclose(losses(tmp_path / "same/seed=4"), losses(alone.folder), rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        config.Luong(width=8, embedding_size=4, layers=1, dropout=0.2),
        config.Transformer(width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1, dropout=0.2),
    ],
    ids=["luong", "transformer"],
)
def test_a_member_of_a_translation_equals_the_same_training_alone(model, one_device, tmp_path):
    corpus = config.Synthetic("reverse", train=40, dev=0, test=0, length=6, alphabet=4)
    data = config.Data(corpus, buckets=((4, 4), (8, 8)), batch_tokens=64)
    train = config.Train(steps=8, warmup_steps=3, log_every=1, evaluate_every=0, label_smoothing=0.1)
    experiment = tasks.Translation("reversed", data=data, model=model, train=train)
    grid = {"seed": [0, 5], "model.dropout": [0.1, 0.3], "train.clip_norm": [0.5, 1.0]}
    s2sjax.sweep(experiment, grid, tmp_path / "swept", pairs=True, at_once=2)
    alone = sweep_grid.apply(experiment, {"seed": 5, "model.dropout": 0.3})
    run.train(alone, tmp_path / "alone")
    member = tmp_path / "swept/seed=5,model.dropout=0.3,train.clip_norm=1"
    np.testing.assert_allclose(losses(member), losses(tmp_path / "alone"), rtol=2e-5)


# ----------------------------------------------------------------------------------------- programs


@pytest.mark.slow
def test_numbers_share_a_program_and_a_rate_of_zero_does_not(one_device, tmp_path, capsys):
    few = replace(TINY, train=replace(TINY.train, steps=2, evaluate_every=0))
    few = replace(few, data=replace(few.data, corpus=config.InMemory(train=PAIRS)))
    rates = {"model.encoder.dropout": [0.0, 0.1, 0.3], "train.label_smoothing": [0.1, 0.2]}
    s2sjax.sweep(few, rates | {"train.clip_norm": [0.0, 1.0]}, tmp_path / "rates", at_once=8)
    said = capsys.readouterr().out
    assert "12 runs (3 model.encoder.dropout x 2 train.label_smoothing x 2 train.clip_norm)" in said
    assert "4 programs for 12 runs" in said
    assert said.count("\n2 of 2 runs at once") == said.count("\n4 of 4 runs at once") == 2
    assert said.rindex("4 of 4 runs at once") < said.index("\ntraining ")  # all of them before anything is trained


class Literal(NGramEncoder):
    """An encoder that accepts Python numbers only."""

    def __call__(self, xs, mask, train, segments=None):
        kept = {float: 1 - self.config.dropout}[type(self.config.dropout)]
        return super().__call__(xs * kept, mask, train, segments)


@config.settings
class LiteralNGrams(NGrams):
    encoder_type = Literal


def test_a_model_that_accepts_python_numbers_only_is_trained_with_them(one_device, tmp_path, capsys):
    few = replace(TINY, train=replace(TINY.train, steps=2, evaluate_every=0))
    model = LabelModel(LiteralNGrams(embedding_size=4, kernels=(1, 2), filters=4, dropout=0.2))
    few = replace(few, model=model, data=replace(few.data, corpus=config.InMemory(train=PAIRS)))
    run.train(few, tmp_path / "alone")
    grid = {"seed": [0, 1], "model.encoder.dropout": [0.1, 0.2]}
    s2sjax.sweep(few, grid, tmp_path / "several", at_once=4)
    assert "2 programs for 4 runs" in capsys.readouterr().out
    member = tmp_path / "several/seed=0,model.encoder.dropout=0.2"
    np.testing.assert_allclose(losses(member), losses(tmp_path / "alone"), rtol=2e-5)


@pytest.mark.slow
def test_as_many_as_fit_in_memory_are_trained_at_once(swept, one_device, tmp_path, monkeypatch, capsys):
    measure, seen = cohorts.Cohort.memory, []
    monkeypatch.setattr(cohorts.Cohort, "memory", lambda *given: seen.append(measure(*given)) or seen[-1])
    monkeypatch.setattr(cohorts, "budget", lambda: seen[0].total * 0.8)
    parts = s2sjax.sweep(TINY, GRID, tmp_path / "parts", at_once=8)
    said = capsys.readouterr().out
    assert said.count("training 2 runs at once") == 2 and len(seen) >= 2
    for name in parts.runs:
        np.testing.assert_allclose(losses(parts.folder / name), losses(swept.folder / name), rtol=2e-5)


# ------------------------------------------------------------------------------- ends and interruptions


class Killed(BaseException):
    """The end of a process, as by kill -9: nothing handles it."""


@pytest.mark.parametrize("save", [pytest.param(2, marks=pytest.mark.slow, id="in the first round"), 6])
def test_a_sweep_that_is_killed_while_it_saves_continues_bit_for_bit(swept, one_device, tmp_path, monkeypatch, save):
    keep, seen = Checkpoints.save, []

    def killed(checkpoints, *given):
        if len(seen) == save:
            for each in seen:
                each.wait()
            raise Killed
        seen.append(checkpoints)
        return keep(checkpoints, *given)

    monkeypatch.setattr(Checkpoints, "save", killed)
    with pytest.raises(Killed):
        s2sjax.sweep(TINY, GRID, tmp_path / "killed", at_once=8)
    monkeypatch.setattr(Checkpoints, "save", keep)
    again = s2sjax.sweep(TINY, GRID, tmp_path / "killed", at_once=8)
    for name in again.runs:
        same(again.folder / name, swept.folder / name)
        assert losses(again.folder / name) == losses(swept.folder / name)


@pytest.mark.slow
def test_a_member_that_diverges_stops_alone(swept, one_device, tmp_path, capsys):
    grid = {"seed": [0, 1], "train.learning_rate": [1e38, 5e-3]}
    wild = replace(TINY, train=replace(TINY.train, max_skipped=2, clip_norm=0.0, weight_decay=0.0))
    found = s2sjax.sweep(wild, grid, tmp_path / "wild", at_once=8)
    said = capsys.readouterr().out
    assert "seed=0,train.learning_rate=1e+38: stopped: 2 non-finite steps in a row" in said
    assert len(losses(found.folder / "seed=0,train.learning_rate=1e+38")) < 12
    calm = s2sjax.sweep(wild, {"seed": [0, 1], "train.learning_rate": [5e-3]}, tmp_path / "calm", at_once=8)
    for name in calm.runs:
        np.testing.assert_allclose(losses(found.folder / name), losses(calm.folder / name), rtol=2e-5)
    s2sjax.sweep(wild, grid, tmp_path / "wild", at_once=8)
    assert "nothing to train, 4 are done" in capsys.readouterr().out


def test_members_keep_their_company_when_a_sweep_is_started_again(monkeypatch):
    """So that it computes the same numbers; members that are far apart continue apart, and lose nothing."""

    class Stub:
        def __init__(self, members, made, places=0):
            self.members, self.places = members, places

        memory = lambda self, log: None

    def member(*steps):
        checkpoints = types.SimpleNamespace(steps=lambda: list(steps))
        experiment = types.SimpleNamespace(train=config.Train(save_every=5))
        return types.SimpleNamespace(checkpoints=checkpoints, step=max(steps, default=0), experiment=experiment)

    monkeypatch.setattr(cohorts, "Cohort", Stub)
    formed = lambda members, left: [each.members for each in cohorts.in_parts(members, left, {}, 3, None)]
    ended, saving, begun, fresh = member(95, 100), member(5, 10), member(0, 5), member()
    seven = [ended, ended, ended, saving, begun, saving, fresh]
    assert formed(seven, [saving, begun, fresh]) == [[saving, begun, saving], [fresh]]
    assert formed([saving, fresh, saving], [saving, fresh]) == [[saving, saving], [fresh]]
    assert formed([begun, fresh], [begun, fresh]) == [[begun, fresh]]  # ended while it saved the first step


def test_a_member_whose_patience_is_over_stops_alone(swept, one_device, tmp_path, monkeypatch):
    judged = population.Progress.evaluate_if_due

    def constant(self, evaluate):
        flat = lambda state, step: (
            evaluate(state, step)._replace(value=1.0) if self.train.learning_rate < 3e-3 else None
        )
        return judged(self, flat if self.train.learning_rate < 3e-3 else evaluate)

    monkeypatch.setattr(population.Progress, "evaluate_if_due", constant)
    patient = replace(TINY, train=replace(TINY.train, patience=1, evaluate_every=3))
    found = s2sjax.sweep(patient, {"train.learning_rate": [2e-3, 5e-3]}, tmp_path / "patient", at_once=8)
    steps = {name: max(each.checkpoints(read_only=True).steps()) for name, each in found.runs.items()}
    assert steps["train.learning_rate=0.002"] == 6


@pytest.mark.slow
def test_halving_drops_the_worst_after_each_evaluation(one_device, tmp_path, capsys):
    halved = replace(TINY, train=replace(TINY.train, steps=9, evaluate_every=3, save_every=9))
    grid = {"train.learning_rate": [1e-7, 2e-7, 1e-2, 2e-2]}
    found = s2sjax.sweep(halved, grid, tmp_path / "halved", halving=2, at_once=4)
    steps = {name: max(each.checkpoints(read_only=True).steps()) for name, each in found.runs.items()}
    assert sorted(steps.values()) == [3, 3, 6, 9]
    page = sweep_results.read_page(found.folder)
    assert sorted(page["dropped"].values()) == [3, 3, 6]
    assert all(steps[name] == step for name, step in page["dropped"].items())
    last = next(name for name, step in steps.items() if step == 9)
    assert [bool(each.evaluations()) for name, each in found.runs.items() if name == last] == [True]
    before = capsys.readouterr().out
    s2sjax.sweep(halved, grid, tmp_path / "halved", halving=2, at_once=4)  # reads the evaluations, trains nothing
    after = capsys.readouterr().out
    assert after.count("nothing to train") == 3 and last in after and "step 3: 2 of 4 runs go on" in before


def test_parts_cover_the_members_once(tmp_path):
    chosen = [f"seed={seed}" for seed in range(7)]
    parts = [sweeps.own_part(dict.fromkeys(chosen), (number, 3)) for number in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == chosen
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


# -------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "grid, options, message",
    [
        ({"train.learning_rat": [1, 2]}, {}, "train.learning_rat=1: Train has no field 'learning_rat'"),
        ({"train.learning_rate": [-1.0]}, {}, "train.learning_rate=-1: train.learning_rate is -1.0: it must be"),
        ({"seed": []}, {}, "seed has no values: give at least one"),
        ({"seed": [1], "train.steps": [1, 2]}, {"pairs": True}, "--pairs needs as many values of each setting"),
        ({"seed": [1, 2]}, {"pairs": True, "random": 2}, "leave out --pairs or --random"),
        ({"seed": [1, 2]}, {"halving": 1}, "--halving is 1, which keeps all members"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_before_any_work(grid, options, message, tmp_path):
    assert message in refused(lambda: s2sjax.sweep(TINY, grid, tmp_path / "refused", **options))
    assert not (tmp_path / "refused").exists()


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert "contains something that is not a sweep" in refused(lambda: s2sjax.sweep(TINY, GRID, tmp_path))


# ----------------------------------------------------------------------------------------- the page


def test_the_program_of_the_page(monkeypatch):
    """Its calls, settings and names; what they train is tested above."""
    (program,) = re.findall("```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    counts = []

    def swept(experiment, grid, path, options, files):
        chosen = sweep_grid.members(grid, options.pairs, options.random)
        counts.append((str(path), len(chosen), options.at_once, options.halving))
        for settings in chosen.values():
            sweep_grid.apply(experiment, settings)
        return types.SimpleNamespace(table=[], runs=dict.fromkeys(chosen, types.SimpleNamespace(decode=len)))

    monkeypatch.chdir(PAGE.parents[1])
    monkeypatch.setattr(sweeps, "sweep", swept)
    exec(program, {})
    assert counts == [("runs/reverse-sweep", 9, 0, 0), ("runs/cells", 10, 8, 0), ("runs/rates", 20, 0, 3)]


def test_several_processes_record_one_sweep(tmp_path):
    """As with --part on several hosts, which start at the same time."""
    chosen = sweep_grid.members({"seed": range(4)})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: sweeps._record(tmp_path / str(number // 8), chosen), range(160)))
    assert all(list(sweep_results.read_page(each)["members"]) == list(chosen) for each in tmp_path.iterdir())
