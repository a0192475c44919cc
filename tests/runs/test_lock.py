"""Only one process trains in a run folder, and a second one is told which process that is."""

import errno
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from itertools import count

import numpy as np
import pytest
from orbax.checkpoint import multihost

from s2sjax.config import Train
from s2sjax.errors import UserError
from s2sjax.runs import lock, run
from s2sjax.tasks import Regression

TIMES = count()
ELSEWHERE = lock.Holder("elsewhere", 7, "ada", "2026-01-01 00:00:00 UTC")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.001)
    monkeypatch.setattr(lock, "PATIENCE", 0.01)


def left_by(folder, holder):
    (folder / lock.NAME).write_text(json.dumps(holder._asdict()))


def refused(folder) -> str:
    with pytest.raises(UserError) as caught, lock.held(folder):
        raise AssertionError("the lock is held twice")
    return str(caught.value)


def test_a_second_process_is_refused_and_told_the_holder(tmp_path):
    folder = tmp_path / "runs" / "mine"
    with lock.held(folder):
        message = refused(folder)
        assert json.loads((folder / lock.NAME).read_text())["pid"] == os.getpid(), "the first one's, untouched"
    assert re.fullmatch(
        rf"{folder} is being trained by process {os.getpid()} of \S+ on \S+, since \d{{4}}-\d\d-\d\d "
        r"\d\d:\d\d:\d\d UTC: wait for it, stop it, or give another --out",
        message,
    )
    assert not (tmp_path / "runs").exists(), "an empty folder is not left behind"
    with lock.held(folder):
        (folder / "config.json").touch()
    assert os.listdir(folder) == ["config.json"]
    with lock.held(folder):  # can be taken again in the same process
        pass


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_of_a_killed_process_is_released(tmp_path, capsys):
    left_by(tmp_path, lock.this_process()._replace(pid=123456))
    command = [sys.executable, "-c", HOLD, tmp_path / lock.NAME]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"held\n"
        assert "is being trained by process 123456 of" in refused(tmp_path)
        child.kill()
        child.wait()
    assert (tmp_path / lock.NAME).exists()
    with lock.held(tmp_path):
        assert json.loads((tmp_path / lock.NAME).read_text())["pid"] == os.getpid()
    assert capsys.readouterr().out == ""


def test_a_lock_of_another_host_is_watched(tmp_path, quick, monkeypatch, capsys):
    """Some file systems keep locks on one host only: a live holder touches the file."""
    left_by(tmp_path, ELSEWHERE)
    with monkeypatch.context() as patch:
        patch.setattr(lock._Lock, "_touched", lambda self: next(TIMES))
        message = refused(tmp_path)
    assert "is being trained by process 7 of ada on elsewhere, since 2026-01-01 00:00:00 UTC: wait" in message
    assert capsys.readouterr().out == (
        "waiting up to 0 s to see whether process 7 of ada on elsewhere, since 2026-01-01 00:00:00 UTC, is still "
        f"training in {tmp_path}\n"
    )
    with lock.held(tmp_path):
        assert json.loads((tmp_path / lock.NAME).read_text())["host"] != "elsewhere"


def test_the_holder_touches_the_file(tmp_path, quick):
    with lock.held(tmp_path):
        os.utime(tmp_path / lock.NAME, (0, 0))
        while (tmp_path / lock.NAME).stat().st_mtime == 0:
            time.sleep(0.001)


def test_a_deleted_file_does_not_release_the_lock_and_is_written_again(tmp_path, quick):
    with lock.held(tmp_path):
        (tmp_path / lock.NAME).unlink()
        assert "is being trained by" in refused(tmp_path)
        lock.verify(tmp_path)
        assert f"is being trained by process {os.getpid()} of" in refused(tmp_path)
        (tmp_path / lock.NAME).unlink()
        while not (tmp_path / lock.NAME).exists():  # now the thread writes it
            time.sleep(0.001)
        lock.verify(tmp_path)
    assert not os.listdir(tmp_path)
    lock.verify(tmp_path)  # no longer held


@pytest.mark.parametrize("supported", [True, False], ids=["flock", "no flock"])
def test_a_process_that_has_lost_the_lock_saves_nothing_more(tmp_path, monkeypatch, supported):
    """If folders cannot be locked, a second process gets in when the file is deleted: the first one must stop."""

    def unsupported(file, *_, whole=fcntl.flock):
        if not supported or os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        whole(file, *_)

    monkeypatch.setattr(fcntl, "flock", unsupported)
    first, second = lock._Lock(tmp_path), None
    try:
        monkeypatch.setitem(lock._held, tmp_path, first)
        (tmp_path / lock.NAME).unlink()
        second = lock._Lock(tmp_path)
        (tmp_path / lock.NAME).write_text(json.dumps(ELSEWHERE._asdict()))
        with pytest.raises(UserError) as caught:
            lock.verify(tmp_path)
        assert str(caught.value) == (
            f"{tmp_path} is now being trained by {ELSEWHERE}, because {tmp_path / lock.NAME} was deleted or replaced: "
            "nothing more is saved here; stop one of the two, or give another --out"
        )
    finally:
        first.release()
        assert (tmp_path / lock.NAME).exists(), "that of the other one"
        if second:
            second.release()


def test_training_that_has_lost_the_lock_ends_before_it_saves(tmp_path, monkeypatch):
    experiment = Regression("mine", train=Train(steps=4, save_every=2, evaluate_every=0))
    folder = tmp_path / "run"
    monkeypatch.setattr(lock._Lock, "keep", lambda self: False)
    with pytest.raises(UserError, match="nothing more is saved here"):
        run.train(experiment, folder)
    assert os.listdir(folder / "checkpoints") == []


def test_a_file_system_without_locks(tmp_path, quick, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with lock.held(tmp_path):
        monkeypatch.setattr(lock._Lock, "_touched", lambda self: next(TIMES))
        assert f"by process {os.getpid()} of" in refused(tmp_path)
    left_by(tmp_path, lock.this_process())
    monkeypatch.setattr(lock._Lock, "_touched", lambda self: 5)
    with lock.held(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{}", '{"host": "half of i'])
def test_an_incomplete_lock_file_is_taken_over(tmp_path, content):
    (tmp_path / lock.NAME).write_text(content)
    with lock.held(tmp_path):
        pass


def test_folders_that_cannot_be_written_are_reported(tmp_path, monkeypatch):
    (tmp_path / "thesis.tex").write_text("chapter 1")
    for folder in (tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "run"):
        assert refused(folder) == f"{tmp_path / 'thesis.tex'} is a file, not a folder: give another --out"

    def denied(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", denied)
    assert refused(tmp_path) == f"cannot write in {tmp_path} (Permission denied): fix it, or give another --out"


def test_training_holds_the_lock_and_does_not_touch_a_locked_folder(tmp_path):
    with lock.held(tmp_path / "run"):
        with pytest.raises(UserError, match="is being trained by process"):
            run.train(Regression("mine"), tmp_path / "run")
        assert os.listdir(tmp_path / "run") == [lock.NAME]


def test_all_processes_raise_if_the_leader_is_refused(tmp_path, monkeypatch):
    """Process 1 of 2 neither opens nor writes the file, and raises the error of process 0."""
    refusal = "runs/x is being trained by process 7"

    def gather(rows, tiled):
        leader = np.frombuffer(refusal.encode().ljust(rows.shape[1], b"\0"), np.uint8)
        return np.stack([leader, rows[0]])

    waited = []
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("jax.process_index", lambda: 1)
    monkeypatch.setattr("jax.experimental.multihost_utils.process_allgather", gather)
    monkeypatch.setattr(multihost, "get_barrier_sync_fn", lambda: lambda **barrier: waited.append(barrier["key"]))
    assert refused(tmp_path / "run") == refusal
    refusal = ""
    with lock.held(tmp_path / "run"):
        assert not (tmp_path / "run").exists()
    assert len(set(waited)) == 2, "each barrier must have a different name"
