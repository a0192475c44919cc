"""Loggers: a step is written once, a logger that fails never stops the training, a start continues the log before it.

The laws are tested with a fake package. The real ones run where the extras wandb and mlflow are installed.
"""

import json
import sys
import threading
import types

import pytest
from training.test_loop import TRAIN, Lab, dying_at, preempted_at, scores

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training import loggers
from s2sjax.training.run_log import Log

STEPS = [*range(1, 11)]


class Fake(loggers.Logger):
    """Writes into a list. Fails where `fails` says: at open, at scalars, at close; or hangs."""

    package, install = "fake_logger", 'pip install -e ".[fake]"'
    fails = ""
    rows: list[tuple[str, int, dict[str, float]]]
    opened: list[loggers.Watched]
    hanging: threading.Event

    def __init__(self, run):
        self._fail("open")
        self.opened.append(run)
        self.id = run.id or f"id-{len(self.opened)}"
        self.where = "https://fake.org/run"

    def _fail(self, where):
        if self.fails == where:
            raise ConnectionError(f"no network at {where}\nsecond line")
        if self.fails == "hang" and where == "scalars":
            self.hanging.wait(60)

    def scalars(self, step, numbers):
        self._fail("scalars")
        self.rows.append((self.id, step, numbers))

    def close(self):
        self._fail("close")


@pytest.fixture
def fake(monkeypatch):
    found = type("Fake", (Fake,), {"rows": [], "opened": [], "hanging": threading.Event()})
    monkeypatch.setitem(loggers.LOGGERS, "fake", found)
    monkeypatch.setitem(sys.modules, "fake_logger", types.ModuleType("fake_logger"))
    return found


class Logged(Lab):
    """A run folder whose trainings have loggers."""

    names: tuple[str, ...] = ("fake",)

    def log(self, train):
        return Log(self.folder, train.steps, train.log_every, self.names, {"train.steps": train.steps})


@pytest.fixture
def lab(tmp_path):
    return Logged(tmp_path / "run")


def means(rows):
    return [step for _, step, numbers in rows if "loss" in numbers]


# ----------------------------------------------------------------------------------------- laws


def test_a_logger_is_given_what_metrics_jsonl_has(lab, fake, capsys):
    lab.fit(config.replace(TRAIN, evaluate_every=5), evaluate=scores(3.0, 2.0))
    lines = lab.lines()
    assert [step for _, step, _ in fake.rows] == [line["step"] for line in lines]
    for (_, _, numbers), line in zip(fake.rows, lines):
        assert numbers == {key: value for key, value in line.items() if key not in ("step", "score")}
    (opened,) = fake.opened
    assert (opened.folder, opened.step, opened.settings, opened.sweep) == (lab.folder, 0, {"train.steps": 10}, None)
    assert capsys.readouterr().out.count("fake: https://fake.org/run\n") == 1


@pytest.mark.parametrize("end", [dying_at, preempted_at])
def test_a_start_continues_the_log_and_no_step_is_there_twice(lab, fake, end):
    train = config.replace(TRAIN, evaluate_every=2)
    for last in (6, 7):  # a kill loses the steps after the checkpoint of step 4
        try:
            lab.fit(train, end(last), scores(*[9.0] * 9))  # a better score would be saved
        except ConnectionError:
            assert end is dying_at
    lab.fit(train, evaluate=scores(*[9.0] * 9))
    assert means(fake.rows) == STEPS
    assert [step for _, step, numbers in fake.rows if "error" in numbers] == [2, 4, 6, 8, 10]
    assert {number for number, _, _ in fake.rows} == {"id-1"}
    assert [run.id for run in fake.opened] == ["", "id-1", "id-1"]


def test_a_logger_that_is_added_later_is_given_what_follows(lab, fake):
    lab.names = ()
    lab.fit(config.replace(TRAIN, steps=4))
    assert not (lab.folder / loggers.FOLDER).exists()
    lab.names = ("fake",)
    lab.fit()
    assert means(fake.rows) == STEPS[4:]


@pytest.mark.parametrize("where, written", [("open", []), ("scalars", []), ("close", STEPS)])
def test_a_logger_that_fails_says_so_once_and_the_training_goes_on(lab, fake, capsys, where, written):
    fake.fails = where
    assert lab.fit().status == "done"
    assert [line["step"] for line in lab.lines()] == STEPS and means(fake.rows) == written
    told = [line for line in capsys.readouterr().out.splitlines() if "no network" in line]
    assert told == [f"fake: no network at {where} second line: the training goes on without it"]


def test_a_logger_that_hangs_delays_no_step(lab, fake, capsys, monkeypatch):
    monkeypatch.setattr(loggers, "PATIENCE", 0.1)
    fake.fails = "hang"
    assert lab.fit().status == "done" and [line["step"] for line in lab.lines()] == STEPS
    assert "fake: it has not taken its last metrics within 0 s, and is left behind\n" in capsys.readouterr().out
    fake.hanging.set()


def test_what_failed_in_one_start_is_tried_again_in_the_next(lab, fake):
    fake.fails = "open"
    lab.fit(config.replace(TRAIN, steps=4))
    fake.fails = ""
    lab.fit()
    assert means(fake.rows) == STEPS[4:]


def test_only_the_leader_logs(tmp_path, fake, monkeypatch):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    log = Log(tmp_path, 1, 1, ("fake",))
    log.start(0)
    log.step(1, {"loss": (1.0, 1.0)})
    log.close()
    assert not fake.opened
    monkeypatch.setitem(sys.modules, "fake_logger", None)
    loggers.check(["fake"])  # the other processes need no package


def test_a_member_of_a_sweep_has_a_log_of_its_own(tmp_path, fake, capsys):
    sweep = Log(None, 1, 1)
    for name in ("seed=0", "seed=1"):
        member = Log(tmp_path / "seeds" / name, 1, 1, ("fake",), sweep=sweep)
        member.start(0)
        member.step(1, {"loss": (1.0, 1.0)})
        member.close()
    assert [(run.folder.name, run.sweep) for run in fake.opened] == [("seed=0", "seeds"), ("seed=1", "seeds")]
    assert [number for number, *_ in fake.rows] == ["id-1", "id-2"]
    assert "seed=1: fake: https://fake.org/run\n" in capsys.readouterr().out


def test_loggers_are_checked_before_training(fake, monkeypatch):
    loggers.check(["tensorboard", "fake"])
    with pytest.raises(UserError, match=r"there is no logger 'tensorbord': did you mean 'tensorboard'\?"):
        loggers.check(["tensorbord"])
    monkeypatch.setitem(sys.modules, "fake_logger", None)
    with pytest.raises(UserError) as caught:
        loggers.check(["fake"])
    assert str(caught.value).startswith("train.loggers has fake, which cannot be imported (")
    assert str(caught.value).endswith('): pip install -e ".[fake]"')


# ----------------------------------------------------------------------------- the real packages


@pytest.fixture
def real(lab, monkeypatch):
    """Trains, is killed after step 6, which has no checkpoint, and trains to the end."""

    def real(name):
        lab.names = (name,)
        with pytest.raises(ConnectionError):
            lab.fit(batches=dying_at(6))
        first = json.loads((lab.folder / loggers.FOLDER / f"{name}.json").read_text())
        lab.fit(config.replace(TRAIN, evaluate_every=5), evaluate=scores(2.0, 1.0))
        last = json.loads((lab.folder / loggers.FOLDER / f"{name}.json").read_text())
        assert first == {"id": last["id"], "steps": {"means": 5}} and last["steps"] == {"means": 10, "scores": 10}
        return last["id"]

    return real


def test_wandb_offline(lab, real, monkeypatch, capsys):
    wandb = pytest.importorskip("wandb", reason="logging to Weights & Biases needs the extra wandb")
    wandb.teardown()  # it reads the environment once
    monkeypatch.setenv("WANDB_MODE", "offline")
    number = real("wandb")
    assert "the training goes on without it" not in capsys.readouterr().out
    files = sorted((lab.folder / "wandb").glob(f"offline-run-*-{number}/run-{number}.wandb"))
    contents = [path.read_bytes() for path in files]
    assert len(contents) >= 1 and all(b"train.steps" in content for content in contents)


def test_wandb_without_credentials(lab, tmp_path, monkeypatch, capsys):
    wandb = pytest.importorskip("wandb", reason="logging to Weights & Biases needs the extra wandb")
    wandb.teardown()  # it reads the environment once
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    lab.names = ("wandb",)
    assert lab.fit().status == "done"
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wandb: ")]
    assert told == [
        "wandb: there is no API key: run wandb login, or set WANDB_MODE=offline: the training goes on without it"
    ]


def test_mlflow(lab, real, tmp_path, monkeypatch, capsys):
    mlflow = pytest.importorskip("mlflow", reason="logging to MLflow needs the extra mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    number = real("mlflow")
    client = mlflow.tracking.MlflowClient()
    run = client.get_run(number)
    assert (run.info.run_name, run.info.status, run.data.params) == ("run", "FINISHED", {"train.steps": "10"})
    assert [point.step for point in client.get_metric_history(number, "loss")] == STEPS
    assert [(point.step, point.value) for point in client.get_metric_history(number, "error")] == [(5, 2.0), (10, 1.0)]
    logged = client.get_metric_history(number, "loss")
    assert [point.value for point in logged] == pytest.approx([line["loss"] for line in lab.lines() if "loss" in line])
