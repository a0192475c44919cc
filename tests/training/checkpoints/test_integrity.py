"""Checkpoints that are proved damaged are set aside and reported; other errors in reading are reported as they are."""

import errno
import logging
import os
import shutil
import sys
import warnings

import absl.logging
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from lives import KEEP, state_at

from s2sjax.errors import UserError
from s2sjax.training.checkpoints.manager import Checkpoints
from s2sjax.training.checkpoints.store import CheckpointStore

TEMPORARY = ".orbax-checkpoint-tmp"


def largest(item):
    """The largest data file of an item."""
    return max((path for path in item.rglob("d/*") if path.is_file()), key=lambda path: path.stat().st_size)


HARMS = {
    "a missing shard": lambda newest: largest(newest / "params").unlink(),
    "a torn shard": lambda newest: os.truncate(largest(newest / "params"), 1000),
    "a missing item": lambda newest: shutil.rmtree(newest / "params"),
    "missing notes": lambda newest: shutil.rmtree(newest / "notes"),
    "torn notes": lambda newest: os.truncate(newest / "notes" / "metadata", 100),
    "nothing but a folder": lambda newest: (shutil.rmtree(newest), newest.mkdir()),
}


@zoo.each(HARMS, quick=(), rare=set(HARMS) - {"a torn shard"})
def test_a_damaged_checkpoint_is_told_in_one_line_by_training_and_by_decoding(folder, capfd, name):
    HARMS[name](folder / "20")
    for restore in (
        lambda checkpoints: checkpoints.restore(state_at(0)),
        lambda checkpoints: checkpoints.restore_params(),
        lambda checkpoints: checkpoints.restore_params(jax.tree.map(jnp.zeros_like, state_at(0).params)),
    ):
        restored, step = restore(Checkpoints(folder, KEEP, "max", read_only=True))
        told = capfd.readouterr()
        assert step == 10 and told.out.startswith("checkpoint of step 20 is damaged (")
        assert told.out.count("\n") == 1 and told.err == ""
        params = getattr(restored, "params", restored)
        np.testing.assert_array_equal(params["net"], state_at(10).params["net"])
    shutil.rmtree(folder / "10")
    with pytest.raises(UserError, match=r"every checkpoint in .* is damaged \(step 20: .*\): copy it again"):
        Checkpoints(folder, read_only=True).restore_params()
    assert capfd.readouterr() == ("", ""), "the error says it all"


def test_a_checkpoint_under_the_name_of_another_step_is_not_taken_for_it(folder, capfd):
    shutil.copytree(folder / "10", folder / "30")
    assert Checkpoints(folder, read_only=True).restore(state_at(0))[1] == 20
    assert capfd.readouterr().out == (
        "checkpoint of step 30 is damaged (it is the checkpoint of step 10): falling back to step 20\n"
    )


def test_what_others_left_in_the_folder_is_neither_taken_nor_touched(folder):
    (folder / "lost+found").mkdir()
    (folder / "30").write_text("a file, not a checkpoint")
    (folder / "README").write_text("hands off")
    (folder / f"25{TEMPORARY}").mkdir()
    checkpoints = Checkpoints(folder, KEEP)
    assert checkpoints.restore(state_at(0))[1] == 20
    checkpoints.save(state_at(21), 21)
    checkpoints.close()
    assert sorted(path.name for path in folder.iterdir()) == ["20", "21", "30", "README", "lost+found"]


def test_a_state_saved_twice_is_never_absent_in_between(folder):
    """A later score is written to notes.json: no file of Orbax changes, and the state is never deleted."""
    files = {path: path.stat().st_mtime_ns for path in (folder / "20").rglob("*")}
    checkpoints = Checkpoints(folder, KEEP, "max")
    state, _ = checkpoints.restore(state_at(0))
    checkpoints.save(state, 20, score=0.5, notes={"late": True})
    assert checkpoints.best_step() == 10
    checkpoints.close()
    again = Checkpoints(folder, KEEP, "max", read_only=True)
    assert again.best_step() == 10 and again.notes(20) == {"late": True} and again.restore(state_at(0))[1] == 20
    assert {path: path.stat().st_mtime_ns for path in (folder / "20").rglob("*")} == files


def test_a_damaged_notes_file_is_reported_and_not_used(folder, capsys):
    checkpoints = Checkpoints(folder, KEEP, "max")
    checkpoints.save(state_at(20), 20, score=0.5, notes={"late": True})
    checkpoints.close()
    notes = folder / "notes.json"
    for content in (notes.read_text().replace("0.5", "0.7"), notes.read_text()[:-20], "[]"):
        notes.write_text(content)
        again = Checkpoints(folder, KEEP, "max", read_only=True)
        assert again.best_step() == 20 and again.notes(20) == {}
        out = capsys.readouterr().out
        assert out.startswith(f"{notes} is damaged (") and out.count("\n") == 1


def test_changed_notes_go_with_their_state(folder):
    """The notes of a state do not pass to another state that replaces it."""
    checkpoints = Checkpoints(folder, KEEP, "max")
    checkpoints.save(state_at(20), 20, score=0.5, notes={"late": True})
    checkpoints.save(state_at(21)._replace(step=jnp.int32(20)), 20, score=30, notes={"other": True})
    checkpoints.close()
    again = Checkpoints(folder, KEEP, "max", read_only=True)
    assert again.notes(20) == {"other": True} and again.best_step() == 20


MACHINE = {
    "memory": MemoryError("out of memory"),
    "permission": PermissionError(errno.EACCES, "Permission denied", "params"),
    "stale": OSError(errno.ESTALE, "Stale file handle", "params"),
    "disk": OSError(errno.EIO, "Input/output error", "params"),
    "open files": OSError(errno.EMFILE, "Too many open files", "params"),
    "stale in TensorStore": ValueError("NOT_FOUND: Error reading local file: Stale file [os_error_code='116']"),
    "disk in TensorStore": ValueError("DATA_LOSS: Error reading local file: Input/output error [os_error_code='5']"),
    "network": ValueError("UNAVAILABLE: Error opening driver"),
    "permission in TensorStore": ValueError("PERMISSION_DENIED: Error opening driver"),
    "time-out": TimeoutError("reading took too long"),
    "connection": ConnectionResetError("the server went away"),
    "device memory": jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate"),
    "a file of somebody else": FileNotFoundError(errno.ENOENT, "No such file or directory", "/usr/lib/libzstd.so"),
}
CODE = [
    KeyError("tree_metadata"), TypeError("unexpected keyword argument"), ValueError("shapes do not match"),
    AttributeError("no attribute"), RuntimeError("a bug"), NotImplementedError(), AssertionError(), ImportError("zstd"),
    KeyboardInterrupt(), SystemExit(1), UserError("another model: use another run folder"),
]  # fmt: skip
READERS = {"arrays": "_restore_arrays", "notes": "_read_notes", "shapes": "_compare_shapes"}


def fail_in(reader, error, patch):
    def fail(*_, **__):
        raise error

    patch.setattr(CheckpointStore, READERS[reader], fail)


def assert_nothing_is_called_damaged(folder, capsys):
    """Without the error, everything works as before."""
    checkpoints = Checkpoints(folder, KEEP)
    assert checkpoints.restore(state_at(0))[1] == 20
    checkpoints.save(state_at(21), 21)
    checkpoints.close()
    assert not list(folder.glob("*.damaged*")) and "damaged" not in capsys.readouterr().out


@pytest.mark.parametrize("reader", ["arrays", "notes"])
@pytest.mark.parametrize("error", MACHINE.values(), ids=MACHINE)
def test_an_error_of_the_machine_is_not_damage_and_is_told_in_one_line(folder, monkeypatch, capsys, error, reader):
    with monkeypatch.context() as patch:
        fail_in(reader, error, patch)
        with pytest.raises(UserError) as caught:
            Checkpoints(folder, KEEP).restore(state_at(0))
    assert caught.value.__cause__ is error
    where = folder / ("10" if reader == "notes" else "20")
    assert str(caught.value) == f"cannot read {where} ({error}): fix it, and run the same command again"
    assert_nothing_is_called_damaged(folder, capsys)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("error", zoo.first(3, CODE), ids=lambda error: type(error).__name__)
def test_an_error_of_the_code_is_not_damage_and_is_raised_as_it_is(folder, monkeypatch, capsys, error, reader):
    with monkeypatch.context() as patch:
        fail_in(reader, error, patch)
        with pytest.raises(type(error)) as caught:
            Checkpoints(folder, KEEP).restore(state_at(0))
    assert caught.value is error
    assert_nothing_is_called_damaged(folder, capsys)


def test_a_checkpoint_that_disappears_is_not_damaged(folder):
    """Training may delete it while this process decodes, or its disk may be unmounted."""
    checkpoints = Checkpoints(folder, KEEP, read_only=True)
    shutil.rmtree(folder / "20")
    with pytest.raises(UserError, match=f"cannot read {folder / '20'} .*: fix it, and run the same command again"):
        checkpoints.restore_params()


@pytest.mark.parametrize("file", ["rest/_METADATA", "params/_METADATA", "rest/array_metadatas/process_0"])
@pytest.mark.parametrize("key", zoo.first(1, ["param_name", "write_shape", "key_type", "net", "optimizer"]))
def test_metadata_with_another_key_or_name_is_damage(folder, capsys, file, key):
    """The metadata can be parsed, but Orbax may fail on it with any error, or not at all."""
    path = folder / "20" / file
    whole = path.read_text()
    path.write_text(whole.replace(f'"{key}"', f'"{key}x"', 1))
    restored, step = Checkpoints(folder, KEEP, read_only=True).restore(state_at(0))
    jax.tree.map(np.testing.assert_array_equal, restored, state_at(step))
    told = capsys.readouterr().out
    assert (step, told.count("checkpoint of step 20 is damaged (")) in ((10, 1), (20, 0))
    if f'"{key}"' in whole and key != "write_shape":
        assert step == 10, told


def test_processes_agree_on_the_step_they_fall_back_to(folder, monkeypatch, capsys):
    """The other process finds a truncated shard of step 20, which only it reads: both fall back."""
    gather = lambda what, text: [text, "Da shard is torn" if what == "read the checkpoint of step 20" else ""]
    monkeypatch.setattr("s2sjax.training.multihost.all_gather_text", gather)
    checkpoints = Checkpoints(folder, KEEP)
    assert checkpoints.restore(state_at(0))[1] == 10
    assert capsys.readouterr().out == "checkpoint of step 20 is damaged (a shard is torn): falling back to step 10\n"
    checkpoints.save(state_at(11), 11)
    checkpoints.close()
    assert {"20.damaged", "10", "11"} == {path.name for path in folder.iterdir()}


def test_an_error_of_another_process_ends_this_one_too_and_is_not_damage(folder, monkeypatch):
    gather = lambda what, text: [text, "E[Errno 116] Stale file handle" if what.startswith("read") else ""]
    monkeypatch.setattr("s2sjax.training.multihost.all_gather_text", gather)
    with pytest.raises(UserError) as caught:
        Checkpoints(folder, KEEP).restore(state_at(0))
    assert str(caught.value) == (
        "another process could not read the checkpoint of step 20: [Errno 116] Stale file handle: fix it, and run "
        "the same command again"
    )
    assert not list(folder.glob("*.damaged*"))


def test_an_older_damaged_checkpoint_is_set_aside_too(folder):
    """It is never restored, but the next saves do not delete it."""
    os.truncate(folder / "10" / "notes" / "metadata", 100)
    checkpoints = Checkpoints(folder, KEEP, "max")
    assert checkpoints.restore(state_at(0))[1] == 20
    for step in (21, 22, 23):
        checkpoints.save(state_at(step), step)
    checkpoints.close()
    assert (folder / "10.damaged" / "params").is_dir()


def test_nobody_elses_logging_is_changed(folder):
    """Logging of Orbax and asyncio, warnings and hooks are unchanged, also after a damaged checkpoint."""

    def settings():
        asyncio_filters = list(logging.getLogger("asyncio").filters)
        return absl.logging.get_verbosity(), asyncio_filters, sys.unraisablehook, list(warnings.filters)

    before = settings()
    largest(folder / "20" / "params").unlink()
    checkpoints = Checkpoints(folder, KEEP)
    assert checkpoints.restore(state_at(0))[1] == 10
    checkpoints.save(state_at(11), 11)
    assert settings() == before
    checkpoints.close()
    assert settings() == before


def test_another_state_of_the_same_step_takes_the_place_of_the_former(folder):
    checkpoints = Checkpoints(folder, KEEP)
    other = state_at(21)._replace(step=jnp.int32(20))
    checkpoints.save(other, 20)
    checkpoints.close()
    restored, step = Checkpoints(folder, read_only=True).restore(state_at(0))
    assert step == 20
    np.testing.assert_array_equal(restored.params["net"], other.params["net"])
