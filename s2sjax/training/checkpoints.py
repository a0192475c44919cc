"""Checkpoints that are saved completely or not at all, and verified when they are read. Orbax writes them.

A checkpoint has three items of arrays, `params`, `ema` (if an average is kept) and `rest` (step, optimizer, counters;
the carry, if the task has one), and a small JSON item, `notes`, with the step, the fingerprint of every array, the
score, and the notes of the loop.
A checkpoint is never changed. A score or notes that come later go to notes.json, a file of ours beside the checkpoints.
Another state of the same step takes the place of the former, which is kept as 20.replaced until the new one is whole.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from s2sjax.errors import UserError
from s2sjax.files import replace_file
from s2sjax.training import hosts, reading
from s2sjax.training.damage import Damaged, attempt, quiet, reason, same_for_all, seal, unseal
from s2sjax.training.fingerprints import fingerprints, named_leaves
from s2sjax.training.state import TrainState

if TYPE_CHECKING:  # it is slow to import, and decoding mostly does without it
    import orbax.checkpoint as ocp

Tree = Any
NOTES = "notes.json"


class Checkpoints:
    """The checkpoints of one run: the newest `keep` and, if `best` is given, the one with the lowest or highest score.

    `read_only` is for decoding while a training is running: nothing is written, renamed or deleted.
    verify: called before each save, which it refuses by an error. since: a step; no checkpoint up to it is the best
    one, or averaged with those after it, because it was trained with other code.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int = 2,
        best: Literal["min", "max"] | None = None,
        read_only: bool = False,
        verify: Callable[[], None] = lambda: None,
        since: int = 0,
    ):
        self.folder, self.since = Path(folder).absolute(), since
        self._best, self._read_only, self._verify = best, read_only, verify
        self._scores: dict[int, float] = {}
        self._unscored: dict[int, Damaged] = {}
        self._damaged: set[int] = set()
        self._last, self._saving, self._replacing = 0, False, False
        self._manager: Any = None if read_only else self._open(keep)
        self._found = self._list() if read_only else []
        self._changed_notes = self._read_changed_notes()
        for step in self.steps():
            self._read_score(step)
        self._damaged |= set() if read_only else set(self._unscored)

    def _list(self) -> list[int]:
        try:
            return reading.steps_in(self.folder) if self.folder.exists() else []
        except OSError as error:
            raise self._inaccessible(error) from error

    def _open(self, keep: int) -> ocp.CheckpointManager:
        """Checks the permissions now, not at the first save."""
        import orbax.checkpoint as ocp

        try:
            if self.folder.exists() and not self.folder.is_dir():
                raise _os_error(errno.ENOTDIR, self.folder)
            if self.folder.exists():
                for path in (self.folder, *self.folder.glob("[0-9]*")):  # including those to be deleted later
                    if not os.access(path, os.W_OK | os.X_OK) and path.is_dir():
                        raise _os_error(errno.EACCES, path)
            with hosts.leader_first("replaced checkpoints"):
                if hosts.is_leader():
                    self._finish_replacements()
            manager: Any = ocp.CheckpointManager
            with quiet():
                # Orbax would take the time since the last checkpoint at a preemption, whose time it has not read.
                found = type("Manager", (manager,), {"reached_preemption": lambda self, step: False})
                return found(self.folder, options=self._options(keep))
        except OSError as error:
            raise self._inaccessible(error) from error

    def _inaccessible(self, error: OSError) -> UserError:
        what = "read" if self._read_only else "write"
        return UserError(
            f"cannot {what} checkpoints in {self.folder} ({reason(error)}): fix it, or choose another folder"
        )

    def _options(self, keep: int) -> ocp.CheckpointManagerOptions:
        import orbax.checkpoint as ocp

        return ocp.CheckpointManagerOptions(
            cleanup_tmp_directories=True,  # left by saves that were killed
            preservation_policy=_NewestAndBest(keep, self.best_step),
            lightweight_initialize=True,  # a damaged checkpoint must not hide the others
        )

    # ------------------------------------------------------------------------------------ save

    def save(self, state: TrainState, step: int, score: float | None = None, notes: dict | None = None) -> None:
        """Copies the state off the devices and returns; a thread writes it. Raises if the previous save has failed.

        If the same state is saved already, only its score and notes change.
        """
        import orbax.checkpoint as ocp

        self._verify()
        self.wait()
        self._last = step
        try:
            leaves = fingerprints(_items(state))
            exists = step in self.steps() and not any(hosts.all_gather_text("save", self._differs(step, leaves)))
            self._scores.pop(step, None)
            if score is not None:
                self._scores[step] = score
            if exists:
                self._change_notes(step, score, notes or {})
                return
            self._set_damaged_aside()
            if step in self.steps():
                self._set_aside([step], [reading.REPLACED])
                self._replacing = True
            sealed = seal({"step": step, "leaves": leaves, "score": score, "notes": notes or {}})
            items = {name: ocp.args.StandardSave(tree) for name, tree in _items(state).items()}
            self._saving = True
            self._manager.save(step, args=ocp.args.Composite(notes=ocp.args.JsonSave(sealed), **items), force=True)
        except Exception as error:
            raise self._failed(error) from error

    def _differs(self, step: int, leaves: dict[str, list]) -> str:
        """Why the checkpoint of this step does not hold this state; empty if it does."""
        try:
            same = step not in self._damaged and self._header(step)["leaves"] == leaves
        except Damaged as damage:
            return str(damage)
        return "" if same else "another state"

    def _set_damaged_aside(self) -> None:
        """30 becomes 30.damaged: a damaged checkpoint is not used again, but never deleted."""
        found = hosts.all_gather_text("damaged", " ".join(map(str, sorted(self._damaged))))
        self._damaged = {int(step) for text in found for step in text.split()} & set(self.steps())
        if self._damaged:
            self._set_aside(sorted(self._damaged), [".damaged", *(f".damaged-{n}" for n in range(1, 1000))])
            self._damaged.clear()

    def _set_aside(self, steps: list[int], endings: list[str]) -> None:
        """Renames checkpoints, each by the first ending that makes a new name."""
        with hosts.leader_first(f"set aside {steps}"):
            for step in steps if hosts.is_leader() else []:
                names = [f"{step}{ending}" for ending in endings]
                free = next(name for name in names if not (self.folder / name).exists())
                os.rename(self.folder / str(step), self.folder / free)
        self._manager.reload()

    def _finish_replacements(self) -> None:
        """Deletes 20.replaced if the new 20 is whole; if a kill came before that, the former becomes 20 again."""
        for former in self.folder.glob(f"*{reading.REPLACED}"):
            if (new := former.with_suffix("")).exists():
                shutil.rmtree(former)
            else:
                os.rename(former, new)

    def check(self) -> None:
        """Raises if the save in the background has failed; does not wait for one that is still running."""
        # Orbax's own check_for_errors would take the error from its thread, which would then delete older checkpoints.
        if self._saving and not self._manager.is_saving_in_progress():
            self.wait()

    def wait(self) -> None:
        """Returns when the last save is complete; raises if it has failed."""
        if self._manager is None:
            return
        try:
            self._saving = False
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
            if self._replacing and hosts.is_leader():
                self._finish_replacements()
            self._replacing = False
        except Exception as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Waits and ends the threads."""
        if self._manager is not None:
            self.wait()
            self._manager.close()

    def _failed(self, error: BaseException) -> UserError:
        if isinstance(error, UserError):
            return error
        text = f"{type(error).__name__}: {error} {error.__cause__ or ''}"
        full = next((c for c in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) if os.strerror(c) in text), None)
        reason = os.strerror(full) if full else text.splitlines()[0].strip()
        remedy = "free some space" if full else "fix it"
        return UserError(
            f"could not save the checkpoint of step {self._last} in {self.folder}: {reason}: "
            f"{remedy} and run the same command again"
        )

    # --------------------------------------------------------------------------------- look up

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        return self._found if self._manager is None else sorted(self._manager.all_steps())

    def best_step(self) -> int | None:
        """The step with the best score; of equal ones the earliest."""
        scores = {step: score for step, score in self._scores.items() if score == score and step > self.since}  # no NaN
        if self._best is None or not scores:
            return None
        sign = 1 if self._best == "min" else -1
        return min(scores, key=lambda step: (sign * scores[step], step))

    def notes(self, step: int) -> dict:
        """The notes that were given to `save`."""
        return self._header(step)["notes"]

    def _read_score(self, step: int) -> None:
        try:
            score = self._header(step)["score"]
        except Damaged as damage:
            self._unscored[step] = damage  # reported when it is restored, or passed over
            return
        if score is not None:
            self._scores[step] = score

    def _header(self, step: int) -> dict:
        """Step, fingerprints, score and notes of a checkpoint."""

        where = reading.path_in(self.folder, step)

        def read() -> dict:
            notes = where / "notes"
            if where.is_dir() and not notes.is_dir():
                raise Damaged("its notes are missing")
            sealed = reading.read_json(notes) or self._restore_notes(step)
            header = unseal(sealed)
            if header["step"] != step:
                raise Damaged(f"it is the checkpoint of step {header['step']}")
            changed = self._changed_notes.get(str(step), {})
            return header | (changed if changed.get("crc32") == sealed["crc32"] else {}) | {"crc32": sealed["crc32"]}

        return attempt(read, where)

    def _change_notes(self, step: int, score: float | None, notes: dict) -> None:
        """notes.json: {"20": {"crc32": of the notes in the checkpoint, "score": 0.5, "notes": {}}, ...}, sealed."""
        kept = {name: notes for name, notes in self._changed_notes.items() if int(name) in self.steps()}
        changed = {"crc32": self._header(step)["crc32"], "score": score, "notes": notes}
        self._changed_notes = kept | {str(step): changed}
        if hosts.is_leader():
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

    # --------------------------------------------------------------------------------- restore

    def restore(self, template: TrainState, step: int | None = None) -> tuple[TrainState, int] | None:
        """(state, step) of the newest checkpoint, or of the given step; None if there is no checkpoint.

        The template (arrays, or their shapes and shardings) says where to put each array: the devices need not be those
        of the save, nor as many. If a checkpoint is damaged, this is printed and the next older one is restored.
        """
        found = self._newest_readable(_items(template), step)
        if found is None:
            return None
        items, step = found
        rest = {name: items["rest"][name] for name in ("step", "optimizer", "skipped", "skipped_total")}
        return TrainState(params=items["params"], ema=items.get("ema"), carry=items["rest"].get("carry"), **rest), step

    def restore_params(self, template: Tree | None = None, step: int | None = None) -> tuple[Tree, int]:
        """(the parameters to decode with, step): the average if one was kept. The optimizer need not be known.

        By default of the best checkpoint, else of the newest. Without a template: nested dicts, on the first device.
        """
        if step is None and (step := self.best_step()) is not None:
            for other, damage in self._unscored.items():
                print(f"checkpoint of step {other} is damaged ({damage}): skipped", flush=True)
        found = self._newest_readable({"params": template}, step, params_only=True)
        if found is None:
            raise UserError(f"there is no checkpoint in {self.folder}: train first")
        items, step = found
        return items["params"], step

    def restore_average(self, last: int, template: Tree | None = None) -> tuple[Tree, int]:
        """(the mean of what `restore_params` gives for each of the `last` newest checkpoints, the newest step)."""
        whole: list[tuple[int, Tree]] = []
        for step in self.steps()[::-1]:
            if len(whole) == last or (whole and step <= self.since):
                break
            try:
                whole.append((step, self._read(step, {"params": template}, params_only=True)["params"]))
            except Damaged as damage:
                print(f"checkpoint of step {step} is damaged ({damage}): skipped", flush=True)
        if len(whole) < last:
            raise UserError(
                f"there are {len(whole)} readable checkpoints in {self.folder}, but {last} are to be averaged: "
                "average fewer, or train with a higher train.keep"
            )
        mean = jax.tree.map(
            lambda *leaves: (sum(leaves[1:], leaves[0]) / last).astype(leaves[0].dtype), *(t for _, t in whole)
        )
        return mean, whole[0][0]

    def _newest_readable(self, template: dict[str, Tree], step: int | None, params_only: bool = False):
        steps = self.steps()
        if step is not None and step not in steps:
            raise UserError(f"there is no checkpoint of step {step} in {self.folder}: there are {steps or 'none'}")
        tries = steps[::-1] if step is None else [step, *(s for s in steps[::-1] if s != step)]
        for candidate, following in zip_longest(tries, tries[1:]):
            try:
                return self._read(candidate, template, params_only), candidate
            except Damaged as damage:
                self._damaged.add(candidate)
                self._scores.pop(candidate, None)
                if following is None:
                    remedy = (
                        "copy it again from where the run was made" if self._read_only else "delete it to start over"
                    )
                    why = f"step {candidate}: {damage}"
                    raise UserError(f"every checkpoint in {self.folder} is damaged ({why}): {remedy}") from None
                then = f"falling back to step {following}"
                print(f"checkpoint of step {candidate} is damaged ({damage}): {then}", flush=True)
        return None

    # By their handlers, not by the manager, which would wait for processes that have failed to read.

    def _restore_notes(self, step: int) -> dict:
        import orbax.checkpoint as ocp

        return ocp.JsonCheckpointHandler().restore(self._path(step, "notes"), args=ocp.args.JsonRestore())

    def _restore_arrays(self, step: int, name: str, template: Tree) -> Tree:
        import orbax.checkpoint as ocp

        handler = ocp.StandardCheckpointHandler()
        return handler.restore(self._path(step, name), args=ocp.args.StandardRestore(template))

    def _path(self, step: int, name: str) -> Any:
        from etils import epath  # what Orbax's handlers take

        return epath.Path(reading.path_in(self.folder, step) / name)

    def _read(self, step: int, template: dict[str, Tree], params_only: bool) -> dict[str, Tree]:
        """The items of the template, compared with their fingerprints. With `params_only`, the average as `params`.

        If one process finds damage, all raise Damaged, and go on to the same step.
        """
        with same_for_all(f"read the checkpoint of step {step}"):
            found, wanted, names, shardings = self._read_local(step, template, params_only)
        with same_for_all(f"verify the checkpoint of step {step}"):
            for path, leaf in fingerprints(found).items():
                if leaf != wanted[path]:
                    raise Damaged(f"{path} does not match its fingerprint")
        placed = jax.device_put(found, shardings) if params_only else found
        return {name: placed[names[name]] for name in names}

    def _read_local(
        self, step: int, template: dict[str, Tree], params_only: bool
    ) -> tuple[dict[str, Tree], dict[str, list], dict[str, str], dict[str, Tree]]:
        """What this process reads: the items, their fingerprints, the item that each name of the template means, and
        the shardings of the items: what is read here may be NumPy arrays.
        """
        saved = self._header(step)["leaves"]
        names = {name: name for name in template}
        if params_only and any(path.startswith("ema/") for path in saved):
            names = {"params": "ema"}
        wanted = {path: leaf for path, leaf in saved.items() if path.split("/")[0] in names.values()}
        trees = {names[name]: _nested(wanted, names[name]) if tree is None else tree for name, tree in template.items()}
        self._compare_shapes(step, wanted, dict(named_leaves(trees)))
        abstract = jax.tree.map(_abstract, trees)
        alone = params_only and not hosts.is_multiprocess()  # then every array can be read whole

        def read_item(name: str, tree: Tree) -> Tree:
            found = reading.read_arrays(reading.path_in(self.folder, step) / name, tree) if alone else None
            return self._restore_arrays(step, name, tree) if found is None else found

        read = lambda: {name: read_item(name, tree) for name, tree in abstract.items()}
        where = reading.path_in(self.folder, step)
        found = attempt(read, where, lambda: reading.metadata_fault(where, saved))
        return found, wanted, names, jax.tree.map(lambda leaf: leaf.sharding, abstract)

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


def _os_error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


class _NewestAndBest(NamedTuple):
    """The preservation policy of the Orbax manager."""

    keep: int
    best_step: Any

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        newest = sorted(c.step for c in checkpoints)[-self.keep :]
        return [c.step in newest or c.step == self.best_step() for c in checkpoints]


def _items(state: TrainState) -> dict[str, Tree]:
    rest = {
        "step": state.step,
        "optimizer": state.optimizer,
        "skipped": state.skipped,
        "skipped_total": state.skipped_total,
    } | ({} if state.carry is None else {"carry": state.carry})
    return {"params": state.params, "rest": rest} | ({} if state.ema is None else {"ema": state.ema})


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _nested(leaves: dict[str, list], item: str) -> dict:
    """{"params/a/b": [[2], "float32", ...]}, "params" -> {"a": {"b": ShapeDtypeStruct((2,), float32)}}"""
    tree: dict = {}
    for path, (shape, dtype, _) in leaves.items():
        *folders, name = path.split("/")[1:]
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))
    return tree
