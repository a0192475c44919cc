"""Runs in object storage: trained, killed, resumed, damaged, evaluated and opened as in a local folder."""

import contextlib
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import child_environment, refused

import s2sjax
from s2sjax import files, object_storage
from s2sjax.config import Train
from s2sjax.report import write as report
from s2sjax.runs import lease
from s2sjax.runs import run as runs
from s2sjax.tasks import Regression
from s2sjax.training import loop, run_log
from s2sjax.training.checkpoints import folders
from s2sjax.training.checkpoints.manager import Checkpoints
from s2sjax.training.train_state import TrainState

STEPS = 30
ONE = pytest.mark.parametrize("bucket", ["gs", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)
"""of tests that take long, those of S3 are run by CI alone"""


def experiment() -> Regression:
    return Regression("tiny", train=Train(steps=STEPS, save_every=10, max_to_keep=3, log_every=5, evaluate_every=0))


TRAIN = f"""
import jax
jax.config.update("jax_num_cpu_devices", {jax.device_count()})
from s2sjax.config import Train
from s2sjax.runs import run
from s2sjax.tasks import Regression
import sys
train = Train(steps={STEPS}, save_every=10, max_to_keep=3, log_every=5, evaluate_every=0)
run.train(Regression("tiny", train=train), sys.argv[1])
"""


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The same run in a local folder, and its final state."""
    trained, result = runs.train(experiment(), tmp_path_factory.mktemp("local") / "run")
    return trained, result.state


def assert_equal(state, other):
    for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def losses(run) -> list:
    lines = run_log.read_lines(run.folder / run_log.METRICS)
    return [(line["step"], line.get("score"), line.get("loss")) for line in lines]


def steps(bucket) -> list[int]:
    return sorted(int(path.name) for path in folders.found(files.as_path(bucket) / "checkpoints"))


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@ONE
def test_a_killed_run_continues_bit_for_bit(bucket, local, tmp_path):
    """kill -9, resume, and everything that reads a run."""
    command = [sys.executable, "-c", TRAIN, bucket]
    with subprocess.Popen(command, env=child_environment(), stdout=subprocess.DEVNULL) as child:
        wait_until(lambda: child.poll() is not None or steps(bucket)[-1:] >= [10])
        child.kill()
    assert child.returncode == -9 and steps(bucket)[-1] < STEPS and (files.as_path(bucket) / "lock").exists()
    begin = time.monotonic()
    trained, result = runs.train(experiment(), bucket)
    assert time.monotonic() < begin + 45, "the lease of a process that has ended here is not waited for"
    assert_equal(result.state, local[1])
    assert losses(trained) == losses(local[0])
    assert not (files.as_path(bucket) / "lock").exists() and steps(bucket)[-1] == STEPS
    opened = s2sjax.load(bucket)
    assert_equal(opened.params()[0], local[0].params()[0])
    found, wanted = opened.evaluate("test"), local[0].evaluate("test")
    assert found.outputs == wanted.outputs and str(found.path).startswith(f"{bucket}/evaluations/")
    assert [str(each.path) for each in opened.evaluations()] == [str(found.path)]
    name = next(iter(found.results))
    assert found[name].value == wanted[name].value and s2sjax.compare(bucket, local[0].folder)[name].p == 1.0
    assert report.write([bucket]) == files.as_path(bucket) / "report.html"
    assert b"<!doctype html>" in (files.as_path(bucket) / "report.html").read_bytes()
    assert {path.name for path in runs.show(opened)} >= {"curves.png"}
    # A local run may start from it.
    _, other = runs.train(experiment(), tmp_path / "other", init=bucket)
    assert int(other.state.step) == STEPS


@ONE
def test_damaged_and_incomplete_checkpoints(bucket, local, capsys):
    runs.train(experiment(), bucket)
    checkpoints = files.as_path(bucket) / "checkpoints"
    (checkpoints / "30" / folders.MARKER).unlink()  # a save that was killed
    data = next(path for path in checkpoints.glob("20/params/d/*"))
    data.write_bytes(b"\0" * len(data.read_bytes()))
    assert steps(bucket)[-1] == 20
    capsys.readouterr()
    _, result = runs.train(experiment(), bucket)
    assert "checkpoint of step 20 is damaged" in capsys.readouterr().out
    assert_equal(result.state, local[1])
    assert any(checkpoints.glob(f"20.damaged/{folders.MARKER}")), "a damaged checkpoint is deleted"
    for path in checkpoints.glob("*/notes/metadata"):
        path.unlink()
    message = refused(lambda: s2sjax.load(bucket).params())
    assert "every checkpoint" in message and "damaged" in message


def state_at(step: int, value: float) -> TrainState:
    params = {"weights": jnp.full((4, 4), value)}
    zero = jnp.zeros((), jnp.int32)
    fields = {name: zero for name in TrainState._fields} | {"params": params, "ema": None, "carry": None}
    return TrainState(**fields | {"step": jnp.int32(step)})


@ONE
def test_another_state_replaces_a_checkpoint(bucket):
    folder = files.as_path(bucket) / "checkpoints"
    checkpoints = Checkpoints(folder, keep=2, best="max")
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0), (3, 4.0)):
        checkpoints.save(state_at(step, value), step, score=None)
    checkpoints.save(state_at(3, 4.0), 3, score=0.5)  # only its score is new
    checkpoints.close()
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3", "notes.json"]
    opened = Checkpoints(folder, best="max", read_only=True)
    assert opened.best_step() == 3
    assert float(opened.restore(state_at(0, 0.0))[0].params["weights"][0, 0]) == 4.0


def test_a_replacement_that_is_killed_keeps_one_of_both(bucket):
    folder = files.as_path(bucket) / "checkpoints"
    with contextlib.closing(Checkpoints(folder)) as checkpoints:
        checkpoints.save(state_at(3, 3.0), 3)
    folders.move(folder / "3", folder / "3.replaced")
    (folder / "3/params/d/half").write_bytes(b"half")  # of the new one
    value = lambda: float(Checkpoints(folder, read_only=True).restore(state_at(0, 0.0))[0].params["weights"][0, 0])
    assert value() == 3.0
    Checkpoints(folder).close()
    assert [path.name for path in folder.iterdir()] == ["3"] and value() == 3.0


@ONE
def test_training_goes_on_through_an_outage(bucket, local, outage, impatient, monkeypatch, capsys):
    monkeypatch.setattr(loop, "SHORTEST_DELAY", 0.5)
    monkeypatch.setattr(loop, "LONGEST_DELAY", 2.0)
    monkeypatch.setattr(object_storage, "SHORTEST", 0.5)
    monkeypatch.setattr(run_log, "PATIENCE", 1.0)
    monkeypatch.setattr(lease, "TIMEOUT", 3.0)
    log_step, check = run_log.Log.step, loop.Progress.check

    def begin(self, number, numbers):
        log_step(self, number, numbers)
        if number == 12:
            wait_until(lambda: steps(bucket)[-1:] == [10])
            outage.write_text("503" if bucket.startswith("gs") else "429")

    def end(self):
        """Training waits until the save of step 20 has failed, until the next one is due, and until it is whole."""
        match self.step:
            case 22:
                wait_until(lambda: check(self) or self.delay > 0)
                outage.unlink()
            case 27:
                wait_until(lambda: time.monotonic() > self.retry_at)
            case 29:
                wait_until(lambda: check(self) or self.delay == 0)
        check(self)

    monkeypatch.setattr(run_log.Log, "step", begin)
    monkeypatch.setattr(loop.Progress, "check", end)
    trained, result = runs.train(experiment(), bucket)
    said = capsys.readouterr().out
    assert_equal(result.state, local[1])
    assert losses(trained) == losses(local[0])
    assert said.count("could not save the checkpoint") == 1, said
    assert "can be written again" in said and steps(bucket)[-1] == STEPS


def test_without_credentials_a_command_says_what_to_set(emulators):
    environment = child_environment(AWS_EC2_METADATA_DISABLED="true", AWS_CONFIG_FILE="/nowhere")
    environment = {name: value for name, value in environment.items() if not name.endswith(("_KEY_ID", "ACCESS_KEY"))}
    command = [sys.executable, "-m", "s2sjax.cli.main", "results", "s3://runs/any"]
    done = subprocess.run(command, env=environment | {"HOME": "/nowhere"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("error: s3://runs/any") and done.stderr.count("\n") == 1
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in done.stderr


@pytest.mark.slow
def test_two_processes_and_the_compilation_cache(emulators, tmp_path):
    bucket = f"gs://runs/{os.urandom(4).hex()}"
    (tmp_path / "tiny.py").write_text(
        "from s2sjax.config import Train\nfrom s2sjax.tasks import Regression\n"
        "experiment = Regression('tiny', train=Train(steps=20, save_every=10, evaluate_every=0))\n"
    )
    command = [sys.executable, "-m", "s2sjax.cli.main", "launch", "-p", "2", "-d", "1", "--", "train", "tiny.py"]
    environment = child_environment(JAX_COMPILATION_CACHE_DIR=f"{bucket}-cache")
    done = subprocess.run(
        [*command, "--out", bucket], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert any(files.as_path(f"{bucket}-cache").iterdir()), "no program is in the compilation cache"
    assert steps(bucket) == [10, 20]
    assert s2sjax.load(bucket).params()[1] == 20
