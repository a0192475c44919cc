"""The training loop, in one order: restore; then for each step: evaluate if due, save if due, batch, step, log.

The loop reads the metrics of step t - 1 after it has dispatched step t, so that the device never waits for the host.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training import hosts
from s2sjax.training.checkpoints import Checkpoints
from s2sjax.training.heartbeat import working
from s2sjax.training.mesh import global_batch
from s2sjax.training.preemption import Interrupted, Preemption
from s2sjax.training.programs import Programs
from s2sjax.training.progress import NOTHING, Log
from s2sjax.training.state import TrainState, TrainStep

Batch = Any
Batches = Callable[[int], Iterator[tuple[int, Batch]]]
"""batches(k) yields (k, batch), (k + 1, batch), ...: the rows of this process, leaves [rows, ...]."""


class Scores(NamedTuple):
    """The result of an evaluation; `value` decides which checkpoint is best."""

    name: str
    value: float
    higher_is_better: bool = True
    details: Mapping[str, Any] = NOTHING


class Best(NamedTuple):
    """The best evaluation so far; saved with each checkpoint, so that patience survives a restart."""

    value: float | None = None
    step: int = 0
    waited: int = 0
    """evaluations since then, none of them better"""
    evaluated: int = 0
    """the last step evaluated"""


class Result(NamedTuple):
    state: TrainState
    status: Literal["done", "stopped", "interrupted"]
    """all steps are done; train.patience ran out; a SIGTERM arrived"""
    best: Best


Evaluate = Callable[[TrainState, int], Scores | None]


def fit(
    template: TrainState,
    init: Callable[[], TrainState],
    train_step: TrainStep,
    batches: Batches,
    train: config.Train,
    checkpoints: Checkpoints | None = None,
    evaluate: Evaluate | None = None,
    log: Log | None = None,
    *,
    mesh: Mesh | None = None,
    shapes: Iterable[Batch] = (),
    compiler_options: dict[str, Any] | None = None,
) -> Result:
    """Trains until train.steps, from the newest checkpoint if there is one, else from init().

    `template` has the shapes and shardings of init() (`mesh.abstract_state`). init is called only if there is nothing
    to restore, so that there is never more than one state in memory. The state of init() is donated.
    A Ctrl-C saves, then raises Interrupted, a KeyboardInterrupt.
    `shapes` are batches, or their global shapes, to compile for ahead of time: one per bucket, in the order of use.
    """
    if train.steps < 1:
        raise ValueError("train.steps is 0, which s2sjax.train replaces by a number that suits the data: set it")
    log = log or Log(None, train.steps, train.log_every)
    with working("making or restoring the parameters"):
        state, step, best, partial_log = _restore_or_init(template, init, checkpoints)
    saved = step
    programs = Programs(train_step, template, mesh, compiler_options)
    stream: Iterator[tuple[int, Batch]] | None = None
    pending: tuple[int, Batch, dict] | None = None
    log.start(step, partial_log, best.evaluated)
    with contextlib.closing(log), contextlib.closing(programs), Preemption() as preemption:
        if step:
            log.print(f"already done: {step} steps" if _finished(step, best, train) else f"resumed after step {step}")
        while True:
            if checkpoints is not None:
                checkpoints.check()
            interrupted = preemption.reached(step)
            score = None
            if evaluate is not None and not interrupted and _evaluation_due(step, best, train):
                _flush(pending, train, log)
                pending = None
                with log.timed("evaluate"):
                    scores, interrupted = preemption.interruptible(partial(evaluate, state, step))
                if not interrupted and scores is not None:
                    score, best = scores.value, judge(best, scores, step)
                    log.scores(step, *scores)

            finished = _finished(step, best, train)
            due = step > saved and (finished or interrupted or step % train.save_every == 0)
            # The best score, or one that an earlier run left out, is saved with the checkpoint of its step.
            scored = score is not None and step in (best.step, saved)
            if checkpoints is not None and (due or scored):
                _flush(pending, train, log)
                pending = None
                if interrupted and preemption.by_keyboard:
                    log.print(f"saving step {step}; a second Ctrl-C ends at once")
                with log.timed("save"):
                    checkpoints.save(state, step, score, {"best": best._asdict(), "log": log.partial()})
                saved = step
            if finished or interrupted:
                _flush(pending, train, log)
                break

            if stream is None:  # a finished run reads and compiles nothing
                stream = batches(step)
                programs.prepare(shapes, log)
            at, batch = next(stream)
            assert at == step, f"expected the batch of step {step}, got that of step {at}"
            on_device = batch if mesh is None else global_batch(batch, mesh)
            if preemption.interruptible(partial(programs.wait, on_device, log))[1]:
                continue
            state, metrics = programs(state, on_device, log)
            _flush(pending, train, log)
            step += 1
            pending = (step, on_device, metrics)
        if checkpoints is not None:
            checkpoints.wait()
        if interrupted:
            what = f"saved step {step}; " if step == saved and step else f"after step {step}; " if step else ""
            log.print(f"interrupted: {what}run the same command again to continue")
            if preemption.by_keyboard:
                raise Interrupted
            return Result(state, "interrupted", best)
        return Result(state, "done" if step >= train.steps else "stopped", best)


def judge(best: Best, scores: Scores, step: int) -> Best:
    """The best evaluation after one more. Only a strictly better score is an improvement; NaN never is."""
    better = scores.value == scores.value and (
        best.value is None or (scores.value > best.value if scores.higher_is_better else scores.value < best.value)
    )
    if better:
        return Best(scores.value, step, 0, step)
    return best._replace(waited=best.waited + 1, evaluated=step)


def _restore_or_init(
    template: TrainState, init: Callable[[], TrainState], checkpoints: Checkpoints | None
) -> tuple[TrainState, int, Best, dict]:
    found = None if checkpoints is None else checkpoints.restore(template)
    if found is None or checkpoints is None:
        state = init()
        return state, int(state.step), Best(evaluated=int(state.step)), {}
    notes = checkpoints.notes(found[1])
    best = Best(**notes["best"])
    if 0 < best.step <= checkpoints.since:  # of other code
        best = Best(evaluated=best.evaluated)
    return *found, best, notes.get("log", {})  # older versions kept none


def _evaluation_due(step: int, best: Best, train: config.Train) -> bool:
    every = train.evaluate_every
    return every > 0 and step > best.evaluated and (step % every == 0 or step == train.steps)


def _finished(step: int, best: Best, train: config.Train) -> bool:
    return step >= train.steps or 0 < train.patience <= best.waited


def _flush(pending: tuple[int, Batch, dict] | None, train: config.Train, log: Log) -> None:
    """Waits for the metrics of a dispatched step, and logs them."""
    if pending is None:
        return
    step, batch, metrics = pending
    numbers = jax.device_get(metrics)
    (total, weight), norm = numbers["loss"], numbers["grad_norm"]
    if not (math.isfinite(total) and math.isfinite(norm)):
        skipped, examples = int(numbers["skipped"]), _examples(batch)
        log.print(f"step {step}: the loss or its gradient is not finite: skipped, {skipped} in a row")
        file = log.nonfinite(step, float(total) / float(weight) if weight else math.nan, norm, examples)
        if skipped >= train.max_skipped:
            hosts.wait_for_all("nonfinite")  # the leader may still write the file, and the first error ends a pod
            which = f"examples {', '.join(map(str, examples))}" if examples else "the data"
            which = f"the examples in {file}" if file else which
            raise UserError(
                f"{skipped} non-finite steps in a row, the last one step {step}: "
                f"check {which}, or lower train.learning_rate or train.clip"
            )
        numbers["loss"] = (0.0, 0.0)  # a skipped step does not count in the mean
    log.step(step, numbers)


def _examples(batch: Batch) -> list[int]:
    """The example numbers of a global batch, from its column `example`; -1 marks a padding row."""
    if not isinstance(batch, dict) or "example" not in batch:
        return []
    numbers = np.ravel(hosts.all_gather(batch["example"]))  # all processes get here: they see the same loss
    return [int(number) for number in numbers if number >= 0]
