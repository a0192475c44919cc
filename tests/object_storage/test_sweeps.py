"""Sweeps in object storage: trained, killed, continued in parts, read and reported as in a local folder."""

import json
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import child_environment, refused

import s2sjax
from s2sjax import files, object_storage
from s2sjax.config import Train
from s2sjax.report import write as report
from s2sjax.runs import lease, lock
from s2sjax.runs.sweeps import sweep as sweeps
from s2sjax.runs.sweeps import sweep_results
from s2sjax.tasks import Regression
from s2sjax.training import loop, population, run_log
from s2sjax.training.checkpoints import folders

GRID = {"seed": [0, 1, 2]}
FIRST = sweeps.Options(part=(1, 2))
TRAIN = {"steps": 30, "save_every": 10, "max_to_keep": 3, "log_every": 5, "evaluate_every": 10}
TINY = Regression("tiny", train=Train(**TRAIN))
FILE = f"""
from s2sjax.config import Train
from s2sjax.tasks import Regression
experiment = Regression("tiny", train=Train(**{TRAIN}))
"""
KILLED = f"""
import os, sys, jax
jax.config.update("jax_num_cpu_devices", {jax.device_count()})
from s2sjax.cli import main
from s2sjax.training import population
advance = population._Population.advance
def killed(self, batch):
    advance(self, batch)
    if self.step == 13:
        for each in self.members:
            each.checkpoints.wait()
        os.kill(os.getpid(), 9)
population._Population.advance = killed
main.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The first part of the sweep, seeds 0 and 2, in a local folder."""
    return sweeps.sweep(TINY, GRID, tmp_path_factory.mktemp("local") / "seeds", FIRST)


def assert_same(one, other) -> None:
    """Asserts that two runs have the same parameters, bit for bit, and the same numbers and scores."""
    leaves = [jax.tree.leaves(each.params()[0]) for each in (one, other)]
    assert leaves[0]
    for mine, wanted in zip(*leaves, strict=True):
        np.testing.assert_array_equal(mine, wanted)
    assert logged(one) == logged(other) != {}
    assert scores(one) == scores(other) != {}


def logged(run) -> dict:
    lines = run_log.read_lines(run.folder / run_log.METRICS)
    return {(line["step"], name): line[name] for line in lines for name in ("loss", "mse") if name in line}


def scores(run) -> dict:
    return {(n, name): result.value
            for n, found in enumerate(run.evaluations()) for name, result in found.results.items()}  # fmt: skip


def saved(folder) -> list[int]:
    return sorted(int(path.name) for path in folders.found(folder / "checkpoints"))


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["gs", "s3"], indirect=True)
def test_parts_of_a_sweep_of_which_one_is_killed(bucket, local, tmp_path, monkeypatch, call):
    """The first part is killed and continued, bit for bit; then the second part, the table, the report."""
    (tmp_path / "tiny.py").write_text(FILE)
    command = ["sweep", str(tmp_path / "tiny.py"), "--seed", "0,1,2", "--name", bucket, "--part"]
    killed = [sys.executable, "-c", KILLED, *command, "1/2"]
    done = subprocess.run(killed, env=child_environment(), cwd=tmp_path, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    members = [files.as_path(bucket) / name for name in local.runs]
    assert [saved(each) for each in members] == [[10]] * 2 and all((each / "lock").exists() for each in members)
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(*command, "1/2")
    assert code == 0 and "resumed after step 10" in out and not (tmp_path / "runs").exists()
    for each in members:
        assert_same(s2sjax.load(each), local.runs[each.name])
    found = sweep_results.read(bucket).members
    assert {each.name: each.status for each in found} == {"seed=0": "done", "seed=1": "missing", "seed=2": "done"}
    assert call(*command, "2/2")[0] == 0
    assert "nothing to train, 3 are done" in call(*command, "1/1")[1]
    (row,) = sweep_results.table(bucket)
    assert row["n"] == 3 and call("results", bucket)[1].splitlines()[1].endswith(" 3")
    assert [len(logs) for logs in sweep_results.summarize(bucket).logs().values()] == [3]
    assert str(page := report.write([bucket])) == f"{bucket}/report.html"
    assert b'"href":"seed%3D0/"' in page.read_bytes()
    assert b'"href":null' in report.write([bucket], tmp_path / "page.html").read_bytes()
    assert s2sjax.compare(f"{bucket}/seed=1", local.runs["seed=0"].folder)["mse"].p < 1
    assert not [name for name in files.as_path(bucket).files() if name.endswith("/lock")]


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["gs", "s3"], indirect=True)
def test_a_sweep_goes_on_through_an_outage(bucket, local, outage, impatient, monkeypatch, capsys):
    monkeypatch.setattr(loop, "SHORTEST_DELAY", 0.1)
    monkeypatch.setattr(object_storage, "SHORTEST", 0.1)
    monkeypatch.setattr(run_log, "PATIENCE", 1.0)
    monkeypatch.setattr(lease, "TIMEOUT", 3.0)
    advance = population._Population.advance

    def through_outage(self, batch):
        advance(self, batch)
        if self.step == 12:
            for each in self.members:
                each.checkpoints.wait()
                each.log.flush()
            outage.write_text("503" if bucket.startswith("gs") else "429")
        elif self.step == 22:
            assert all(part.delay > 0 for part in self.parts.values()), "the save of step 20 has not failed"
            outage.unlink()

    monkeypatch.setattr(population._Population, "advance", through_outage)
    swept = sweeps.sweep(TINY, GRID, bucket, FIRST)
    said = capsys.readouterr().out
    for name, each in swept.runs.items():
        assert_same(each, local.runs[name])
        assert said.count(f"{name}: could not save the checkpoint of step 20") == 1, said
        again = rf"{name}: saved step (2.|30): {bucket}/{name}/checkpoints can be written again"
        assert len(re.findall(again, said)) == 1, said


def test_the_runs_that_a_machine_has_left_are_waited_for_once(emulators, monkeypatch):
    """A killed sweep leaves a lease for each of its runs, and one minute tells that none of them is renewed."""
    monkeypatch.setattr(lock, "BEAT", 0.05)
    monkeypatch.setattr(lock, "PATIENCE", 0.2)
    bucket, watched = f"gs://runs/{os.urandom(4).hex()}", []
    is_renewed = lock.is_renewed
    monkeypatch.setattr(lock, "is_renewed", lambda *found: watched.append(found) or is_renewed(*found))
    left = lock.this_process()._asdict() | {"machine": "another", "token": "any", "beat": 1}
    folders_left = [files.as_path(f"{bucket}/seed={seed}") for seed in range(3)]
    for folder in folders_left:
        (folder / lock.NAME).write_text(json.dumps(left))
        lease.Lease(folder).release()
    assert len(watched) == 1


def test_a_name_that_a_bucket_does_not_take_is_refused_before_training(emulators):
    bucket = f"gs://runs/{os.urandom(4).hex()}"
    message = refused(lambda: s2sjax.sweep(TINY, {"model.hidden": [[8], [16]]}, bucket))
    assert message.startswith(f"{bucket}/model.hidden=[8] has [ in its name") and not files.as_path(bucket).exists()
