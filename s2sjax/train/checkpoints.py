"""Checkpoints that are saved whole or not at all, and checked when they are read. Orbax writes them.

A checkpoint has three items of arrays, `params`, `ema` (where one is kept) and `rest` (step, optimizer, counters), and
a small JSON item, `notes`, with the step, the fingerprint of every array, the score, and whatever the loop wants to
remember.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

import absl.logging
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from s2sjax.errors import UserError
from s2sjax.train import hosts
from s2sjax.train.mesh import path_of
from s2sjax.train.state import TrainState

Tree = Any


# -------------------------------------------------------------------------------- fingerprints


def fingerprint(array: jax.Array) -> jax.Array:
    """One uint32 for an array's bits: sum over i of mix(bits_i XOR mix(i)), modulo 2^32.

    `mix` permutes the 32-bit words, so one changed word always shows; i is the position, so swapped words show too; and
    a sum of integers has no order, so the fingerprint is the same however the array is spread over devices.
    """
    bits = (
        jax.lax.bitcast_convert_type(array, _UNSIGNED[min(array.dtype.itemsize, 4)]) if array.dtype != bool else array
    )
    bits = bits.astype(jnp.uint32)
    position = jnp.zeros(bits.shape, jnp.uint32)
    for dimension, length in enumerate(bits.shape):
        position = position * jnp.uint32(length) + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, dimension)
    return jnp.sum(_mix(bits ^ _mix(position)), dtype=jnp.uint32)


_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def _mix(x: jax.Array) -> jax.Array:
    """A permutation of the 32-bit words that spreads every bit (the finaliser of MurmurHash3, Appleby 2011)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@jax.jit
def _fingerprint_each(arrays: list[jax.Array]) -> list[jax.Array]:
    """All in one program: of many programs at once, hosts that meet over the network may not meet in the same order."""
    return [fingerprint(array) for array in arrays]


def _fingerprints(tree: Tree) -> dict[str, list]:
    """{"params/encoder/kernel": [[64, 256], "float32", 2882343476], ...}"""
    leaves = dict(_named(tree))
    values = jax.device_get(_fingerprint_each(list(leaves.values())))
    return {
        name: [list(leaf.shape), str(leaf.dtype), int(value)]
        for (name, leaf), value in zip(leaves.items(), values, strict=True)
    }


def _named(tree: Tree) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield path_of(path), leaf


class _Damaged(Exception):
    """This checkpoint cannot be trusted; the message says why."""


# --------------------------------------------------------------------------------- checkpoints


class Checkpoints:
    """The checkpoints of one run: the newest `keep` and, by `best`, the one with the lowest or highest score.

    `read_only` is for decoding beside a running training: nothing is cleaned up or deleted.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int = 2,
        best: Literal["min", "max"] | None = None,
        read_only: bool = False,
    ):
        absl.logging.set_verbosity(absl.logging.FATAL)  # what the user must know is said here, in one line
        logging.getLogger("asyncio").addFilter(_retrieved)
        self.folder = Path(folder).absolute()
        self._best, self._read_only = best, read_only
        self._scores: dict[int, float] = {}
        self._unscored: dict[int, _Damaged] = {}
        self._damaged: set[int] = set()
        self._last, self._behind = 0, False
        self._manager: Any = None
        if self.folder.exists() or not read_only:
            self._manager = self._open(keep)
        for step in self.steps():
            self._read_score(step)

    def _open(self, keep: int) -> ocp.CheckpointManager:
        """What would keep the first save from being written is told before the first step."""
        try:
            if self.folder.exists() and not self.folder.is_dir():
                raise _os_error(errno.ENOTDIR, self.folder)
            if self.folder.exists() and not self._read_only:
                for path in (self.folder, *self.folder.glob("[0-9]*")):  # those it will have to delete, too
                    if not os.access(path, os.W_OK | os.X_OK) and path.is_dir():
                        raise _os_error(errno.EACCES, path)
            return ocp.CheckpointManager(self.folder, options=self._options(keep))
        except OSError as error:
            what = "read" if self._read_only else "write"
            raise UserError(
                f"cannot {what} checkpoints in {self.folder} ({_reason(error)}): mend it, or name another folder"
            ) from error

    def _options(self, keep: int) -> ocp.CheckpointManagerOptions:
        return ocp.CheckpointManagerOptions(
            cleanup_tmp_directories=not self._read_only,  # what killed saves left
            read_only=self._read_only,
            create=not self._read_only,
            preservation_policy=_NewestAndBest(keep, self.best_step),
            lightweight_initialize=True,  # a damaged checkpoint must not keep the others from being found
        )

    # ------------------------------------------------------------------------------------ save

    def save(self, state: TrainState, step: int, score: float | None = None, notes: dict | None = None) -> None:
        """Copies the state off the devices and returns; it is written behind. An earlier failure to save shows here.

        A state that is there already stays untouched: its score and notes take the place of the former ones.
        """
        self.wait()
        self._last = step
        try:
            leaves = _fingerprints(_items(state))
            body = json.dumps({"step": step, "leaves": leaves, "score": score, "notes": notes or {}})
            sealed = {"body": body, "crc32": zlib.crc32(body.encode())}
            there = self._holds(step, leaves)
            self._scores.pop(step, None)
            if score is not None:
                self._scores[step] = score
            if there:
                self._rewrite(step, sealed)
                return
            for old in sorted(self._damaged | {step} & set(self.steps())):
                self._manager.delete(old)
            self._damaged.clear()
            items = {name: ocp.args.StandardSave(tree) for name, tree in _items(state).items()}
            self._behind = True
            self._manager.save(step, args=ocp.args.Composite(notes=ocp.args.JsonSave(sealed), **items), force=True)
        except Exception as error:
            raise self._failed(error) from error

    def _holds(self, step: int, leaves: dict[str, list]) -> bool:
        try:
            return step in set(self.steps()) - self._damaged and self._header(step)["leaves"] == leaves
        except _Damaged:
            return False

    def _rewrite(self, step: int, sealed: dict) -> None:
        """The notes alone, whole or not at all: to save the state anew would be to delete it first."""
        if hosts.is_leader():
            draft = self.folder / str(step) / "notes" / "partial"
            draft.write_text(json.dumps(sealed), encoding="utf-8")
            os.replace(draft, draft.with_name("metadata"))

    def check(self) -> None:
        """Raises if the save behind has failed; does not wait for one that is under way."""
        # Orbax's own check_for_errors would take the error away from its thread, which then deletes older checkpoints.
        if self._behind and not self._manager.is_saving_in_progress():
            self.wait()

    def wait(self) -> None:
        """Returns when the last save is whole; raises if it is not going to be."""
        if self._manager is None:
            return
        try:
            self._behind = False
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Waits and lets go of the threads."""
        if self._manager is not None:
            self.wait()
            self._manager.close()

    def _failed(self, error: BaseException) -> UserError:
        text = f"{type(error).__name__}: {error} {error.__cause__ or ''}"
        full = next((c for c in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) if os.strerror(c) in text), None)
        reason = os.strerror(full) if full else text.splitlines()[0].strip()
        remedy = "free some space" if full else "mend it"
        return UserError(
            f"could not save checkpoint of step {self._last} in {self.folder}: {reason}: "
            f"{remedy} and run the same command again"
        )

    # --------------------------------------------------------------------------------- look up

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        return [] if self._manager is None else sorted(self._manager.all_steps())

    def best_step(self) -> int | None:
        """The step with the best score; of equals the earliest."""
        scores = {step: score for step, score in self._scores.items() if score == score}  # not NaN
        if self._best is None or not scores:
            return None
        sign = 1 if self._best == "min" else -1
        return min(scores, key=lambda step: (sign * scores[step], step))

    def notes(self, step: int) -> dict:
        """What `save` was given as notes."""
        return self._header(step)["notes"]

    # --------------------------------------------------------------------------------- restore

    def restore(self, template: TrainState, step: int | None = None) -> tuple[TrainState, int] | None:
        """(state, step) of the newest whole checkpoint, or of a given step; None where there is no checkpoint.

        The template (arrays, or only their shapes and shardings) says where each array shall lie: it need not be
        where, or on as many devices as, it was saved. A damaged checkpoint is told and the next older one is taken.
        """
        found = self._newest_whole(_items(template), step)
        if found is None:
            return None
        items, step = found
        rest = {name: items["rest"][name] for name in ("step", "optimizer", "skipped", "skipped_total")}
        return TrainState(params=items["params"], ema=items.get("ema"), **rest), step

    def restore_params(self, template: Tree | None = None, step: int | None = None) -> tuple[Tree, int]:
        """(the parameters to decode with, step): the average where one was kept. The optimizer need not be known.

        By default the best checkpoint, else the newest. Without a template: nested dicts, on the first device.
        """
        if step is None and (step := self.best_step()) is not None:
            for other, damage in self._unscored.items():
                print(f"checkpoint of step {other} is damaged ({damage}): it is left out", flush=True)
        found = self._newest_whole({"params": template}, step, alone=True)
        if found is None:
            raise UserError(f"there is no checkpoint in {self.folder}: train first")
        items, step = found
        return items["params"], step

    def restore_average(self, last: int, template: Tree | None = None) -> tuple[Tree, int]:
        """(the mean of what `restore_params` gives for each of the newest `last` checkpoints, the newest step)."""
        whole: list[tuple[int, Tree]] = []
        for step in self.steps()[::-1]:
            if len(whole) == last:
                break
            try:
                whole.append((step, self._read(step, {"params": template}, alone=True)["params"]))
            except _Damaged as damage:
                print(f"checkpoint of step {step} is damaged ({damage}): it is left out", flush=True)
        if len(whole) < last:
            raise UserError(
                f"there are {len(whole)} whole checkpoints in {self.folder}, too few to average {last}: "
                "average fewer, or train with a higher train.keep"
            )
        mean = jax.tree.map(
            lambda *leaves: (sum(leaves[1:], leaves[0]) / last).astype(leaves[0].dtype), *(t for _, t in whole)
        )
        return mean, whole[0][0]

    def _newest_whole(self, template: dict[str, Tree], step: int | None, alone: bool = False):
        steps = self.steps()
        if step is not None and step not in steps:
            raise UserError(f"there is no checkpoint of step {step} in {self.folder}: there are {steps or 'none'}")
        tries = steps[::-1] if step is None else [step, *(s for s in steps[::-1] if s != step)]
        for candidate, following in zip_longest(tries, tries[1:]):
            try:
                return self._read(candidate, template, alone), candidate
            except _Damaged as damage:
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

    def _read(self, step: int, template: dict[str, Tree], alone: bool) -> dict[str, Tree]:
        """The items named by the template, compared with their fingerprints; the average as `params` if `alone`."""
        saved = self._header(step)["leaves"]
        names = {name: name for name in template}
        if alone and any(path.startswith("ema/") for path in saved):
            names = {"params": "ema"}
        wanted = {path: leaf for path, leaf in saved.items() if path.split("/")[0] in names.values()}
        trees = {names[name]: _nested(wanted, names[name]) if tree is None else tree for name, tree in template.items()}
        self._compare_shapes(step, wanted, dict(_named(trees)))
        args = {name: ocp.args.StandardRestore(jax.tree.map(_abstract, tree)) for name, tree in trees.items()}

        def read() -> dict[str, Tree]:
            found = self._manager.restore(step, args=ocp.args.Composite(**args))
            found = {name: found[name] for name in args}
            for path, leaf in _fingerprints(found).items():
                if leaf != wanted[path]:
                    raise _Damaged(f"{path} is not what was saved")
            return {name: found[names[name]] for name in names}

        return _attempt(read)

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

    def _header(self, step: int) -> dict:
        def read() -> dict:
            if not (self.folder / str(step) / "notes").is_dir():
                raise _Damaged("its notes are missing")
            sealed = self._manager.restore(step, args=ocp.args.Composite(notes=ocp.args.JsonRestore()))["notes"]
            if zlib.crc32(sealed["body"].encode()) != sealed["crc32"]:
                raise _Damaged("its notes are not what was saved")
            header = json.loads(sealed["body"])
            if header.get("step", step) != step:
                raise _Damaged(f"it is that of step {header['step']}")
            return header

        return _attempt(read)

    def _read_score(self, step: int) -> None:
        try:
            score = self._header(step)["score"]
        except _Damaged as damage:
            self._unscored[step] = damage  # told when it is restored, or not chosen
            return
        if score is not None:
            self._scores[step] = score


def _attempt(read: Callable[[], dict]) -> dict:
    """read(), or _Damaged with the reason in a few words."""
    with _unheard():
        try:
            return read()
        except Exception as error:
            reason = _reason(error)
        time.sleep(0.2)  # for the other reads of this checkpoint, still under way
        gc.collect()
    raise _Damaged(reason)


def _os_error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


def _reason(error: Exception) -> str:
    """Why, in a few words of one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """A failed read leaves tasks behind, which complain on standard error when they end or are collected."""
    hook = sys.unraisablehook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.unraisablehook = lambda _: None
        try:
            yield
        finally:
            sys.unraisablehook = hook


def _retrieved(record: logging.LogRecord) -> bool:
    """Drops asyncio's complaint of errors nobody asked for: Orbax raises the first of a failed save's, we tell it."""
    return "exception was never retrieved" not in record.getMessage()


class _NewestAndBest(NamedTuple):
    """Orbax asks it what to keep."""

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
    }
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
