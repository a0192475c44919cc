"""Writing checkpoints with Orbax, completely or not at all, and reading them, verified by their fingerprints.

A checkpoint has three items of arrays, `params`, `ema` (if an average is kept) and `rest` (step, optimizer, counters;
the carry, if the task has one), and a small JSON item, `notes`, the header: the step, the fingerprint of every array,
the score, and the notes of the loop.
A checkpoint is never changed. A later score or later notes are written to notes.json, next to the checkpoints.
Another state of the same step replaces the former one, which is kept as 20.replaced until the new one is complete.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from s2sjax.errors import UserError
from s2sjax.files import in_storage, replace_file
from s2sjax.training import multihost
from s2sjax.training.checkpoints import fast_reader, folders
from s2sjax.training.checkpoints.fingerprints import fingerprints, named_leaves
from s2sjax.training.checkpoints.integrity import Damaged, attempt, quiet, reason, same_for_all, seal, unseal

if TYPE_CHECKING:  # slow to import, and decoding rarely needs it
    import orbax.checkpoint as ocp

Tree = Any
NOTES = "notes.json"


class OutageError(UserError):
    """Object storage could not be reached: nothing is lost, and the state can be saved again later."""


class CheckpointStore:
    """The checkpoints in a folder. `read_only` writes, renames and deletes nothing."""

    def __init__(self, folder: Path, read_only: bool):
        self.folder, self._read_only = folder, read_only
        self._in_storage = in_storage(folder)
        self._last, self._saving, self._replacing, self._failed = 0, False, False, False
        self._manager: Any = None
        try:
            if not read_only:
                self._manager = self._open()
            self._found = fast_reader.steps_in(folder) if read_only and folder.exists() else []
        except OSError as error:
            what = f"cannot {'read' if read_only else 'write'} checkpoints in {folder} ({reason(error)})"
            raise UserError(f"{what}: fix it, or choose another folder") from error
        self._changed_notes = self._read_changed_notes()

    def select(self, steps: Sequence[int]) -> set[int]:
        """The steps to keep; called with all steps after each save."""
        return set(steps)

    def _open(self) -> ocp.CheckpointManager:
        """Opens the folder for writing. Checks the permissions now, not at the first save."""
        if not self._in_storage and self.folder.exists() and not self.folder.is_dir():
            raise _os_error(errno.ENOTDIR, self.folder)
        if not self._in_storage and self.folder.exists():
            for path in (self.folder, *self.folder.glob("[0-9]*")):  # including those to be deleted later
                if not os.access(path, os.W_OK | os.X_OK) and path.is_dir():
                    raise _os_error(errno.EACCES, path)
        with multihost.leader_first("replaced checkpoints"):
            if multihost.is_leader():
                self._finish_replacements()
                folders.remove_incomplete(self.folder)
        with quiet():
            manager = _manager(self.folder, self.select)
        if self._in_storage and sorted(manager.all_steps()) != fast_reader.steps_in(self.folder):
            raise OSError(errno.EIO, "not all checkpoints could be listed", str(self.folder))
        return manager

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        if self._manager is None:
            return self._found
        return sorted(step for step in self._manager.all_steps() if not (self._failed and step == self._last))

    @property
    def is_saving(self) -> bool:
        """Whether a save in the background may be incomplete."""
        return self._saving

    def reopen(self) -> None:
        """Opens the folder again if a save has failed in an outage: its files are deleted, and it is no checkpoint."""
        if self._failed:
            with contextlib.suppress(Exception):
                self._manager.close()
            self._manager = self._open()
            self._failed = False

    # ----------------------------------------------------------------------------------- write

    @contextlib.contextmanager
    def saving(self, step: int | None = None) -> Iterator[None]:
        """Reports an error in the block as a failure to save this step, by default the last one."""
        self._last = self._last if step is None else step
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if self._is_outage(error):
                self._failed = True
                what = f"could not save the checkpoint of step {self._last} in {self.folder}"
                raise OutageError(f"{what} ({reason(error)}): run the same command again") from error
            text = f"{type(error).__name__}: {error} {error.__cause__ or ''}"
            full = next((c for c in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) if os.strerror(c) in text), None)
            why = os.strerror(full) if full else text.splitlines()[0].strip()
            remedy = "free some space" if full else "fix it"
            raise UserError(
                f"could not save the checkpoint of step {self._last} in {self.folder}: {why}: "
                f"{remedy} and run the same command again"
            ) from error

    def write(self, step: int, items: dict[str, Tree], header: dict) -> None:
        """Copies the items off the devices; a thread writes them. Replaces a checkpoint of the same step."""
        import orbax.checkpoint as ocp

        if step in self.steps():
            self.rename([step], [fast_reader.REPLACED])
            self._replacing = True
        arrays = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
        self._saving = True
        self._manager.save(step, args=ocp.args.Composite(notes=ocp.args.JsonSave(seal(header)), **arrays), force=True)

    def _is_outage(self, error: Exception) -> bool:
        if not self._in_storage:
            return False
        from s2sjax import object_storage

        return object_storage.is_outage(error)

    def rename(self, steps: list[int], suffixes: list[str]) -> None:
        """Adds to the name of each checkpoint the first suffix that makes a new name."""
        with multihost.leader_first(f"set aside {steps}"):
            for step in steps if multihost.is_leader() else []:
                names = [f"{step}{suffix}" for suffix in suffixes]
                free = next(name for name in names if not (self.folder / name).exists())
                folders.move(self.folder / str(step), self.folder / free)
        self._manager.reload()

    def _finish_replacements(self) -> None:
        """Deletes 20.replaced if the new 20 is complete; renames it to 20 if the process was killed before that."""
        for former in folders.found(self.folder, f"*{fast_reader.REPLACED}"):
            if folders.exists(new := former.with_suffix("")):
                folders.remove(former)
            else:
                folders.move(former, new)

    def check(self) -> None:
        """Raises if the save in the background has failed; does not wait for one that is still running."""
        # Orbax's check_for_errors would take the error from its thread, which would then delete older checkpoints.
        if self._saving and not self._manager.is_saving_in_progress():
            self.wait()

    def wait(self) -> None:
        """Returns when the last save is complete; raises if it has failed."""
        if self._manager is None:
            return
        with self.saving():
            self._saving = False
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
            if self._replacing and multihost.is_leader():
                self._finish_replacements()
            self._replacing = False

    def close(self) -> None:
        """Waits for the last save and ends the threads."""
        if self._manager is not None:
            self.wait()
            self._manager.close()

    # ---------------------------------------------------------------------------------- header

    def header(self, step: int) -> dict:
        """Step, fingerprints ("leaves"), score and notes of a checkpoint. Raises Damaged."""
        where = fast_reader.path_in(self.folder, step)

        def read() -> dict:
            notes = where / "notes"
            if where.is_dir() and not notes.is_dir():
                raise Damaged("its notes are missing")
            sealed = self._read_notes(notes)
            header = unseal(sealed)
            if header["step"] != step:
                raise Damaged(f"it is the checkpoint of step {header['step']}")
            changed = self._changed_notes.get(str(step), {})
            return header | (changed if changed.get("crc32") == sealed["crc32"] else {}) | {"crc32": sealed["crc32"]}

        return attempt(read, where)

    def change_notes(self, step: int, score: float | None, notes: dict) -> None:
        """Writes notes.json: {"20": {"crc32": checksum of the header, "score": 0.5, "notes": {}}, ...}, sealed."""
        kept = {name: entry for name, entry in self._changed_notes.items() if int(name) in self.steps()}
        changed = {"crc32": self.header(step)["crc32"], "score": score, "notes": notes}
        self._changed_notes = kept | {str(step): changed}
        if multihost.is_leader():
            replace_file(self.folder / NOTES, json.dumps(seal(self._changed_notes)))

    def _read_changed_notes(self) -> dict[str, dict]:
        path = self.folder / NOTES
        if not path.exists():
            return {}
        try:
            return unseal(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError, Damaged) as error:
            print(f"{path} is damaged ({reason(error)}): using the scores of the checkpoints", flush=True)
            return {}

    # ------------------------------------------------------------------------------------ read

    def read(self, step: int, template: dict[str, Tree], params_only: bool) -> dict[str, Tree]:
        """Reads and verifies the items of the template. If one process finds damage, all raise Damaged.

        params_only: the template has only `params`, for which the average is read if one was kept.
        """
        with same_for_all(f"read the checkpoint of step {step}"):
            found, wanted, shardings = self._read_local(step, template, params_only)
        with same_for_all(f"verify the checkpoint of step {step}"):
            for path, leaf in fingerprints(found).items():
                if leaf != wanted[path]:
                    raise Damaged(f"{path} does not match its fingerprint")
        if not params_only:
            return found
        (params,) = jax.device_put(found, shardings).values()
        return {"params": params}

    def _read_local(
        self, step: int, template: dict[str, Tree], params_only: bool
    ) -> tuple[dict[str, Tree], dict[str, list], dict[str, Tree]]:
        """Reads what this process needs, possibly as NumPy arrays. Returns items, their fingerprints and shardings."""
        saved = self.header(step)["leaves"]
        if params_only and any(path.startswith("ema/") for path in saved):
            template = {"ema": template["params"]}
        wanted = {path: leaf for path, leaf in saved.items() if path.split("/")[0] in template}
        trees = {name: _nested(wanted) if tree is None else tree for name, tree in template.items()}
        self._compare_shapes(step, wanted, dict(named_leaves(trees)))
        abstract = jax.tree.map(_abstract, trees)
        whole = params_only and not multihost.is_multiprocess()  # then this process may read every array as a whole
        where = fast_reader.path_in(self.folder, step)

        def read_item(name: str, tree: Tree) -> Tree:
            found = fast_reader.read_arrays(where / name, tree) if whole else None
            return self._restore_arrays(where / name, tree) if found is None else found

        read = lambda: {name: read_item(name, tree) for name, tree in abstract.items()}
        found = attempt(read, where, lambda: fast_reader.metadata_fault(where, saved))
        return found, wanted, jax.tree.map(lambda leaf: leaf.sharding, abstract)

    def _compare_shapes(self, step: int, saved: dict[str, list], wanted: dict[str, Any]) -> None:
        where = f"the checkpoint of step {step} in {self.folder}"
        remedy = "use the model and data it was trained with, or another run folder"
        for path, leaf in wanted.items():
            if path not in saved:
                raise UserError(f"{where} has no {path}, shape {tuple(leaf.shape)}: {remedy}")
            shape, dtype, _ = saved[path]
            if (tuple(shape), dtype) != (tuple(leaf.shape), str(leaf.dtype)):
                raise UserError(
                    f"{where} has {path} as {dtype}{tuple(shape)}, but this model has it as "
                    f"{leaf.dtype}{tuple(leaf.shape)}: {remedy}"
                )
        for path in saved:
            if path not in wanted:
                raise UserError(f"{where} has {path}, shape {tuple(saved[path][0])}, which this model lacks: {remedy}")

    def _read_notes(self, item: Path) -> dict:
        return json.loads((item / "metadata").read_text(encoding="utf-8"))

    def _restore_arrays(self, item: Path, template: Tree) -> Tree:
        """Reads an item by Orbax's handler, not by its manager, which would wait for processes that failed to read."""
        import orbax.checkpoint as ocp
        from etils import epath  # the paths of Orbax's handlers

        if self._in_storage:
            folders.adapt_orbax()
        return ocp.StandardCheckpointHandler().restore(epath.Path(item), args=ocp.args.StandardRestore(template))


def _manager(folder: Path, select: Callable[[Sequence[int]], set[int]]) -> ocp.CheckpointManager:
    import orbax.checkpoint as ocp

    class Manager(ocp.CheckpointManager):
        def reached_preemption(self, step: int) -> bool:
            """False: at a preemption Orbax would use the time of the last checkpoint, which it has not read."""
            return False

    temporary = None
    if in_storage(folder):
        from orbax.checkpoint.path import atomicity

        folders.adapt_orbax()
        temporary = atomicity.CommitFileTemporaryPath

    class Preservation:
        def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
            kept = select([checkpoint.step for checkpoint in checkpoints])
            return [checkpoint.step in kept for checkpoint in checkpoints]

    options = ocp.CheckpointManagerOptions(
        cleanup_tmp_directories=temporary is None,  # left by saves that were killed
        temporary_path_class=temporary,
        preservation_policy=Preservation(),
        lightweight_initialize=True,  # a damaged checkpoint must not hide the others
    )
    return Manager(folder, options=options)


def _os_error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _nested(leaves: dict[str, list]) -> dict:
    """A tree of shapes: {"params/a/b": [[2], "float32", ...]} -> {"a": {"b": ShapeDtypeStruct((2,), float32)}}."""
    tree: dict = {}
    for path, (shape, dtype, _) in leaves.items():
        *folders, name = path.split("/")[1:]
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))
    return tree
