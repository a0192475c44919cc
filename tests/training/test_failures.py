"""Kills, full disks and missing permissions: only the work since the last save is lost, and errors are reported."""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from itertools import count
from multiprocessing import forkserver
from pathlib import Path

import jax.numpy as jnp
import lives
import numpy as np
import pytest
from conftest import seed_of
from lives import EVERY, KEEP, state_at

from s2sjax.errors import UserError
from s2sjax.training.checkpoints.manager import Checkpoints

TEMPORARY = ".orbax-checkpoint-tmp"
WAIT = 120  # seconds; what takes so long has failed
FORKING = multiprocessing.get_context("forkserver")


@pytest.fixture(autouse=True, scope="module")
def fork_server():
    """Starts the fork server with this process's path, because it silently ignores modules it cannot import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        FORKING.set_forkserver_preload(["pytest", "lives"])
        forkserver.ensure_running()


class Child:
    """A process that runs one function of tests/lives.py; `hear` receives its messages."""

    def __init__(self, function, cache, *arguments):
        self.ear, mouth = FORKING.Pipe(duplex=False)
        self.process = FORKING.Process(target=lives.begin, args=(function, cache, mouth, *arguments))
        self.process.start()
        mouth.close()

    def hear(self, seconds):
        """The next message within so many seconds, or None."""
        try:
            return self.ear.recv() if self.ear.poll(seconds) else None
        except EOFError:
            return None

    def listen(self, seconds, until=None):
        """All messages within so many seconds, or up to the event `until`."""
        said, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and (one := self.hear(left)) is not None:
            said.append(one)
            if one[0] == until:
                return said
        assert until is None, f"not {until} within {seconds} seconds: {said}"
        return said

    def kill(self):
        """Kills the process. Returns the messages that were not received yet."""
        self.process.kill()
        rest = []
        while (said := self.hear(10)) is not None:
            rest.append(said)
        self.process.join()
        return rest


# ------------------------------------------------------------------------------------- kill -9


def at_random(rng):
    """Listens until a random moment: during the start, at any time after it, or within one of the first saves."""

    def listen(child, folder):
        moment = rng.choice(["start", "any", "save", "save"])
        if moment == "start":
            return child.listen(rng.uniform(0, 0.5))
        begin = time.monotonic()
        said = child.listen(WAIT, "restored")
        if moment == "any":
            return said + child.listen(rng.uniform(0, 2 * (time.monotonic() - begin)))
        return said + within_save(rng.randint(1, 4), rng.uniform(0, 0.05))(child, folder)

    return listen


def within_save(number, delay=0.0):
    """Listens until save `number` is being written or, on a fast disk, is complete."""

    def listen(child, folder):
        said = [one for _ in range(number) for one in child.listen(WAIT, "saving")]
        half_written, whole = folder / f"{said[-1][1]}{TEMPORARY}", folder / str(said[-1][1])
        end = time.monotonic() + WAIT
        while not (half_written.exists() or whole.exists()):
            assert time.monotonic() < end, "the save has not begun"
        time.sleep(delay)
        return said

    return listen


def after(event, number=1):
    """Listens until an event has occurred `number` times."""
    return lambda child, folder: [one for _ in range(number) for one in child.listen(WAIT, event)]


def lead_lives(folder, ends):
    """Runs and kills a process per end. Returns the number of kills within a save.

    Each process must restore, bit for bit, a state that is at most one save interval older than the last save that
    returned (`whole`, because a save starts when the one before is complete), and not newer than the last one begun.
    """
    cache = folder.with_name("cache")
    whole = begun = within = 0
    for listen in ends:
        child = Child(lives.live, cache, folder)
        said = listen(child, folder) + child.kill()
        assert child.process.exitcode == -signal.SIGKILL, "it did not die by itself"
        saves = 0
        for what, step, names in said:
            finished = [name for name in names if name.isdigit() and name != str(step)]
            if what == "restored":
                assert whole <= step <= begun and step % EVERY == 0
                whole = begun = step
            elif what == "saving":
                begun = step
            elif what == "saved":
                whole = max(whole, step - EVERY)
                saves += 1
                assert {name for name in names if not name.isdigit()} <= {f"{step}{TEMPORARY}"}, "debris"
                assert len(finished) <= KEEP or saves == 1, "what a killed clean-up left goes with the first save"
        within += any(what == "saving" for what, *_ in said) and (folder / f"{begun}{TEMPORARY}").exists()
    last = Child(lives.live_on, cache, folder)
    (_, step, _), (_, final, names) = last.hear(WAIT), last.hear(WAIT)
    last.process.join()
    assert whole <= step <= begun and final == step + 1
    assert set(names) == {str(step), str(final)}, "two are kept, and nothing else is left"
    assert step > len(ends), "the lives went on from each other"
    return within


@pytest.mark.slow
def test_five_lives_that_end_at_fixed_points(tmp_path):
    lead_lives(
        tmp_path / "checkpoints", [within_save(1), after("restored"), within_save(3), after("saved", 2), within_save(2)]
    )


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_a_hundred_lives_that_end_at_random(tmp_path):
    assert lead_lives(tmp_path / "checkpoints", [at_random(random.Random(seed_of(0)))] * 100) >= 30


# ---------------------------------------------------------------- a checkpoint that is replaced


class Killed(BaseException):
    """Stands for a kill of this process, which runs the test."""


def replaced_until(folder, end):
    """Replaces the checkpoint of step 20. Dies before or after a call that changes the folder, selected by `end`."""
    checkpoints, calls = Checkpoints(folder, KEEP), count()
    manager = checkpoints._manager

    def mortal(function):
        def call(*arguments, **options):
            if threading.current_thread() is not threading.main_thread():  # a thread of Orbax
                return function(*arguments, **options)
            if next(calls) == end:
                raise Killed
            result = function(*arguments, **options)
            if next(calls) == end:
                manager.wait_until_finished()
                raise Killed
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for where, name in ((os, "rename"), (shutil, "rmtree"), (manager, "save"), (manager, "delete")):
            patch.setattr(where, name, mortal(getattr(where, name)))
        try:
            checkpoints.save(state_at(21)._replace(step=jnp.int32(20)), 20)
            checkpoints.wait()
        except Killed:
            return True
        finally:
            manager.close()
    return False


def state_of_20(folder, **options):
    """The number of the state that the checkpoint of step 20 holds."""
    restored, step = Checkpoints(folder, KEEP, **options).restore(state_at(0))
    assert step == 20
    (which,) = np.unique(np.asarray(restored.params["net"] - state_at(0).params["net"]))
    np.testing.assert_array_equal(restored.optimizer["mean"], state_at(which / 1000).optimizer["mean"])
    return which / 1000


def test_a_checkpoint_that_is_replaced_is_there_at_every_moment(saved, tmp_path):
    found = []
    for end in count():
        folder = shutil.copytree(saved, tmp_path / f"killed-{end}")
        killed = replaced_until(folder, end)
        found.append(state_of_20(folder, read_only=True))
        assert state_of_20(folder) == found[-1], "a training finds what decoding finds"
        assert {path.name for path in folder.iterdir()} == {"10", "20"}, "and nothing else is left"
        if not killed:
            break
    assert found == sorted(found) and set(found) == {20, 21} and len(found) > 4


@pytest.mark.slow
def test_also_in_processes_that_are_killed(folder, tmp_path):
    last = 20
    for _ in range(4):
        child = Child(lives.replace, tmp_path / "cache", folder)
        while not (folder / f"20{TEMPORARY}").exists():
            assert child.process.is_alive()
        said = child.kill()
        whole = max([number for what, number, _ in said if what == "saved"], default=0)
        last = state_of_20(folder, read_only=True)
        assert last == state_of_20(folder) and last >= whole and last >= 20


# ------------------------------------------------------------------------- no space, no rights


def test_a_save_that_fails_behind_stops_the_run_at_the_next_step(tmp_path):
    """The save of step 200 fails while batch 200 is made: the run must stop before the save of step 300."""
    child = Child(lives.run_out_of_space, tmp_path / "cache", tmp_path / "run")
    error, batch, steps = child.hear(WAIT)
    assert error == (
        f"could not save the checkpoint of step 200 in {tmp_path / 'run/checkpoints'}: File too large: "
        "free some space and run the same command again"
    )
    assert batch == 200 and steps == [100]


@pytest.fixture
def public():
    """A folder that other users may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_a_folder_of_another_user_is_told_before_the_first_step_and_can_be_decoded(public, saved, tmp_path):
    """The folder is read-only, or it has a checkpoint or the rest of a killed save that cannot be deleted."""
    folders = [public / name for name in ("closed", "checkpoint", "debris")]
    for folder in folders:
        shutil.copytree(saved, folder)
    (folders[2] / f"9{TEMPORARY}").mkdir()
    closed = [folders[0], folders[1] / "10", folders[2] / f"9{TEMPORARY}"]
    for folder in folders:
        for path in (folder, *folder.iterdir()):
            path.chmod(0o555 if path in closed else 0o777)
    child = Child(lives.lack_rights, tmp_path / "cache", folders)
    for folder, path in zip(folders, closed):
        training, decoding = child.hear(WAIT)
        assert training == (
            f"cannot write checkpoints in {folder} ([Errno 13] Permission denied: '{path}'): "
            "fix it, or choose another folder"
        )
        assert decoding == 20
    for path in closed:
        path.chmod(0o755)


def test_a_file_where_the_folder_should_be_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "checkpoints"):
        with pytest.raises(UserError, match=rf"cannot write checkpoints in {folder} \(.*\): fix it, or choose another"):
            Checkpoints(folder)
    with pytest.raises(UserError, match=r"cannot read checkpoints in .*file \(.*Not a directory"):
        Checkpoints(tmp_path / "file", read_only=True)
