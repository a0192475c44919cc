"""The checkpoints of a run: which are kept, which is the best, and which are damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import jax

from s2sjax.errors import UserError
from s2sjax.files import as_path
from s2sjax.training import multihost
from s2sjax.training.checkpoints.fingerprints import fingerprints
from s2sjax.training.checkpoints.integrity import Damaged
from s2sjax.training.checkpoints.store import CheckpointStore, OutageError
from s2sjax.training.train_state import TrainState

Tree = Any


class Checkpoints(CheckpointStore):
    """The checkpoints of one run: the newest `keep` and, if `best` is given, the one with the lowest or highest score.

    read_only: for decoding, also during training: writes, renames and deletes nothing.
    verify: called before each save; raises to prevent it.
    since: a step; checkpoints up to it were trained with other code. None of them is the best, or averaged with later
        ones.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int = 2,
        best: Literal["min", "max"] | None = None,
        *,
        read_only: bool = False,
        verify: Callable[[], None] = lambda: None,
        since: int = 0,
    ):
        self.since, self._keep, self._best, self._verify = since, keep, best, verify
        self._scores: dict[int, float] = {}
        self._unscored: dict[int, Damaged] = {}
        """damaged checkpoints whose scores cannot be read; reported when they are restored or skipped"""
        super().__init__(as_path(folder).absolute(), read_only)
        for step in self.steps():
            try:
                score = self.header(step)["score"]
                self._scores |= {} if score is None else {step: score}
            except Damaged as damage:
                self._unscored[step] = damage
        self._damaged = set() if read_only else set(self._unscored)
        """damaged checkpoints that the next save sets aside"""

    def best_step(self) -> int | None:
        """The step with the best score, the earliest among equals."""
        scores = {step: score for step, score in self._scores.items() if score == score and step > self.since}  # no NaN
        if self._best is None or not scores:
            return None
        sign = 1 if self._best == "min" else -1
        return min(scores, key=lambda step: (sign * scores[step], step))

    def select(self, steps: Sequence[int]) -> set[int]:
        newest, best = set(sorted(steps)[-self._keep :]), self.best_step()
        return newest if best is None else newest | {best}

    def notes(self, step: int) -> dict:
        """The notes that were given to `save`."""
        return self.header(step)["notes"]

    # ------------------------------------------------------------------------------------ save

    def save(self, state: TrainState, step: int, score: float | None = None, notes: dict | None = None) -> None:
        """Copies the state off the devices and returns; a thread writes it. Raises if the previous save has failed.

        An OutageError loses nothing: save again later.

        If the same state is already saved, only its score and notes change.
        """
        self._prepare(step)
        with self.saving(step):
            leaves = fingerprints(_items(state))
            exists = step in self.steps() and not any(multihost.all_gather_text("save", self._difference(step, leaves)))
            self._scores.pop(step, None)
            if score is not None:
                self._scores[step] = score
            if exists:
                self.change_notes(step, score, notes or {})
                return
            self._set_damaged_aside()
            header = {"step": step, "leaves": leaves, "score": score, "notes": notes or {}}
            self.write(step, _items(state), header)

    def _prepare(self, step: int) -> None:
        """Verifies that this process may save, and that the previous save is complete."""
        outage = ""
        try:
            with self.saving(step):
                self._verify()
            self.wait()
        except OutageError as error:
            outage = str(error)
        if self._in_storage and (outage := next(filter(None, multihost.all_gather_text("outage", outage)), "")):
            self._failed = True
            raise OutageError(outage)
        with self.saving(step):
            self.reopen()

    def _difference(self, step: int, leaves: dict[str, list]) -> str:
        """The reason why the checkpoint of this step does not hold this state; "" if it does."""
        try:
            same = step not in self._damaged and self.header(step)["leaves"] == leaves
        except Damaged as damage:
            return str(damage)
        return "" if same else "another state"

    def _set_damaged_aside(self) -> None:
        """Renames 30 to 30.damaged: a damaged checkpoint is not used again, but never deleted."""
        found = multihost.all_gather_text("damaged", " ".join(map(str, sorted(self._damaged))))
        damaged = {int(step) for text in found for step in text.split()} & set(self.steps())
        if damaged:
            self.rename(sorted(damaged), [".damaged", *(f".damaged-{n}" for n in range(1, 1000))])
        self._damaged.clear()

    # --------------------------------------------------------------------------------- restore

    def restore(self, template: TrainState, step: int | None = None) -> tuple[TrainState, int] | None:
        """(state, step) of the newest checkpoint, or of the given step; None if there is no checkpoint.

        template: arrays, or their shapes and shardings. The devices may be others than when it was saved.
        If a checkpoint is damaged, this prints a line and restores the next older one.
        """
        found = self._newest_readable(_items(template), step)
        if found is None:
            return None
        items, step = found
        return TrainState(params=items["params"], ema=items.get("ema"), **items["rest"]), step

    def restore_params(self, template: Tree | None = None, step: int | None = None) -> tuple[Tree, int]:
        """(parameters to decode with, step): the average if one is kept. The optimizer need not be known.

        The default is the best checkpoint, else the newest. Without a template: nested dicts, on the first device.
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
        """(mean over the `last` newest checkpoints of the parameters to decode with, newest step)."""
        read: list[tuple[int, Tree]] = []
        for step in self.steps()[::-1]:
            if len(read) == last or (read and step <= self.since):
                break
            try:
                read.append((step, self.read(step, {"params": template}, params_only=True)["params"]))
            except Damaged as damage:
                print(f"checkpoint of step {step} is damaged ({damage}): skipped", flush=True)
        if len(read) < last:
            raise UserError(
                f"there are {len(read)} readable checkpoints in {self.folder}, but {last} are to be averaged: "
                "average fewer, or train with a higher train.max_to_keep"
            )
        mean = jax.tree.map(
            lambda *leaves: (sum(leaves[1:], leaves[0]) / last).astype(leaves[0].dtype), *(tree for _, tree in read)
        )
        return mean, read[0][0]

    def _newest_readable(
        self, template: dict[str, Tree], step: int | None, params_only: bool = False
    ) -> tuple[dict[str, Tree], int] | None:
        """(items, step) of the given or the newest checkpoint, or of the newest one that is not damaged."""
        steps = self.steps()
        if step is not None and step not in steps:
            raise UserError(f"there is no checkpoint of step {step} in {self.folder}: there are {steps or 'none'}")
        tries = steps[::-1] if step is None else [step, *(s for s in steps[::-1] if s != step)]
        for candidate, following in zip_longest(tries, tries[1:]):
            try:
                return self.read(candidate, template, params_only), candidate
            except Damaged as damage:
                self._damaged.add(candidate)
                self._scores.pop(candidate, None)
                if following is None:
                    why = f"every checkpoint in {self.folder} is damaged (step {candidate}: {damage})"
                    copy, delete = "copy it again from where the run was made", "delete it to start over"
                    raise UserError(f"{why}: {copy if self._read_only else delete}") from None
                then = f"falling back to step {following}"
                print(f"checkpoint of step {candidate} is damaged ({damage}): {then}", flush=True)
        return None


def _items(state: TrainState) -> dict[str, Tree]:
    """The items of a checkpoint: params, rest and, if there is an average, ema."""
    rest = {name: tree for name, tree in state._asdict().items() if name not in ("params", "ema", "carry")}
    rest |= {} if state.carry is None else {"carry": state.carry}
    return {"params": state.params, "rest": rest} | ({} if state.ema is None else {"ema": state.ema})
