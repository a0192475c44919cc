"""The training loop: restore; then for each step: evaluate if due, save if due or pre-empted, batch, step, log.

The loop reads the metrics of step t - 1 after it has dispatched step t, so that the device never waits for the host.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training import multihost
from s2sjax.training.checkpoints.manager import Checkpoints
from s2sjax.training.checkpoints.store import OutageError
from s2sjax.training.compiled_steps import Programs
from s2sjax.training.heartbeat import working
from s2sjax.training.mesh import global_batch
from s2sjax.training.preemption import Interrupted, Preemption
from s2sjax.training.profiling import Profile
from s2sjax.training.run_log import NOTHING, Log
from s2sjax.training.train_state import TrainState, TrainStep

SHORTEST_DELAY, LONGEST_DELAY = 5.0, 60.0
"""seconds until a checkpoint is saved again after an outage of object storage; they double from the one to the other"""
LAST_SAVE = 1800.0
"""seconds that the end of a run tries to save its last checkpoint"""
Batch = Any
Batches = Callable[[int], Iterator[tuple[int, Batch]]]
"""batches(k) yields (k, batch), (k + 1, batch), ...; a batch has the rows of this process, leaves [rows, ...]"""
Evaluate = Callable[[TrainState, int], "Scores | None"]


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
    """number of evaluations since the best one"""
    evaluated: int = 0
    """last step that was evaluated"""


class FitResult(NamedTuple):
    """The final state of a training run."""

    state: TrainState
    status: Literal["done", "stopped", "interrupted"]
    """done: all steps are done; stopped: train.patience ran out; interrupted: a SIGTERM arrived"""
    best: Best


def fit(
    train_step: TrainStep,
    batches: Batches,
    *,
    template: TrainState,
    init: Callable[[], TrainState],
    train: config.Train,
    checkpoints: Checkpoints | None = None,
    evaluate: Evaluate | None = None,
    log: Log | None = None,
    mesh: Mesh | None = None,
    shapes: Iterable[Batch] = (),
    compiler_options: dict[str, Any] | None = None,
    numbers: Mapping[str, np.ndarray] | None = None,
    profile: Profile | None = None,
) -> FitResult:
    """Trains until train.steps, from the newest checkpoint if there is one, else from init().

    Ctrl-C saves, then raises Interrupted, a KeyboardInterrupt.

    template: shapes and shardings of init() (`mesh.abstract_state`).
    init: makes the initial state, which is donated. Called only if there is nothing to restore, so that there is never
        more than one state in memory.
    shapes: batches, or their global shapes, to compile for ahead of time: one per bucket, in the order of use.
    numbers: third argument of the train step, if it takes one (`config.numbers`).
    profile: traces some steps.
    """
    if train.steps < 1:
        raise ValueError("train.steps is 0, which only s2sjax.train replaces by a number that suits the data: set it")
    log = log or Log(None, train.steps, train.log_every)
    with working("making or restoring the parameters"):
        state, step, best, partial_log = restore_or_init(template, init, checkpoints)
    run = _Run(step, best, train, checkpoints, log, Preemption(), step, state)
    del state  # only `run` holds it: each step donates it
    programs = Programs(train_step, template, mesh, compiler_options, numbers)
    stream: Iterator[tuple[int, Batch]] | None = None
    log.start(step, partial_log, best.evaluated)
    tracing = contextlib.nullcontext() if profile is None else contextlib.closing(profile)
    with contextlib.closing(log), contextlib.closing(programs), run.preemption, tracing:
        if step:
            log.print(f"already done: {step} steps" if run.finished else f"resumed after step {step}")
        if profile is not None:
            profile.begin(step)
        while True:
            run.check()
            score = run.evaluate_if_due(evaluate)
            run.save_if_due(score)
            if profile is not None:
                profile.reached(run.step, run.flush)
            if run.finished or run.interrupted:
                return run.end()
            if stream is None:  # a finished run reads and compiles nothing
                with log.clock.spent("start"):
                    stream = batches(run.step)
                programs.prepare(shapes, log)
            with jax.profiler.StepTraceAnnotation("train", step_num=run.step + 1):
                batch = next_batch(stream, run.step, run.pending, log)
                run.advance(programs, batch if mesh is None else global_batch(batch, mesh))


@dataclass
class Progress:
    """The progress of a training: its evaluations and checkpoints."""

    step: int
    best: Best
    train: config.Train
    checkpoints: Checkpoints | None
    log: Log
    preemption: Preemption
    saved: int
    """last step that was saved or restored"""
    state: TrainState
    interrupted: bool = False
    score: tuple[int, float | None] = (0, None)
    """the last step to be saved, and its score"""
    delay: float = 0.0
    """seconds between two attempts to save during an outage of the storage; 0 without one"""
    retry_at: float = math.inf
    """when to save again, by `time.monotonic`"""

    @property
    def finished(self) -> bool:
        return self.step >= self.train.steps or 0 < self.train.patience <= self.best.waited

    def check(self) -> None:
        """Raises if a save in the background has failed; finds out whether the run is interrupted."""
        if self.checkpoints is not None:
            with self.through_outage():
                self.checkpoints.check()
            self.end_outage(self.checkpoints)
        self.interrupted = self.preemption.reached(self.step)

    @contextlib.contextmanager
    def through_outage(self) -> Iterator[None]:
        """Continues after an OutageError in the block, which is said once, and saves again later."""
        try:
            yield
        except OutageError as outage:
            if not self.delay:
                self.log.print(f"{str(outage).rpartition(': ')[0]}: the training goes on, and saves again later")
            self.delay = min(2 * self.delay, LONGEST_DELAY) or SHORTEST_DELAY
            self.retry_at = time.monotonic() + self.delay
            self.saved = max(self.checkpoints.steps(), default=0) if self.checkpoints else 0

    def end_outage(self, checkpoints: Checkpoints) -> None:
        """Says that the first save after an outage is complete."""
        if self.delay and self.retry_at == math.inf and not checkpoints.is_saving:
            self.log.print(f"saved step {self.saved}: {checkpoints.folder} can be written again")
            self.delay = 0.0

    def flush(self) -> None:
        """Logs the last dispatched step, if that has not been done."""

    def evaluation_due(self) -> bool:
        step, every = self.step, self.train.evaluate_every
        return every > 0 and step > self.best.evaluated and (step % every == 0 or step == self.train.steps)

    def evaluate_if_due(self, evaluate: Evaluate | None) -> float | None:
        """Returns the score; None if no evaluation is due, or if a signal interrupts it."""
        if evaluate is None or self.interrupted or not self.evaluation_due():
            return None
        self.flush()
        with self.log.timed("evaluate"):
            scores, self.interrupted = self.preemption.interruptible(partial(evaluate, self.state, self.step))
        if self.interrupted or scores is None:
            return None
        self.best = judge(self.best, scores, self.step)
        self.log.scores(self.step, scores.name, scores.value, scores.details)
        return scores.value

    def save_due(self) -> bool:
        # Processes save together, and their clocks differ: several of them save again at the next regular step.
        again = not multihost.is_multiprocess() and time.monotonic() >= self.retry_at
        due = self.finished or self.interrupted or self.step % self.train.save_every == 0 or again
        return self.step > self.saved and due

    def save_if_due(self, score: float | None, paused: bool = False) -> None:
        """Saves every train.save_every steps, at the end, before an interruption or a pause, and with a score."""
        due = self.save_due() or (paused and self.step > self.saved)
        # The best score, or one that an earlier run did not compute, is saved with the checkpoint of its step.
        scored = score is not None and self.step in (self.best.step, self.saved)
        if self.checkpoints is None or not (due or scored):
            return
        self.flush()
        if self.interrupted and self.preemption.by_keyboard:
            self.log.print(f"saving step {self.step}; a second Ctrl-C ends at once")
        self.score = self.step, score
        with self.log.timed("save"), self.through_outage():
            self.save(self.checkpoints)

    def save(self, checkpoints: Checkpoints) -> None:
        """Saves the state, with the score of its step."""
        self.log.flush()
        notes = {"best": self.best._asdict(), "log": self.log.partial()}
        checkpoints.save(self.state, self.step, self.score[1] if self.score[0] == self.step else None, notes)
        self.saved, self.retry_at = self.step, math.inf

    def wait(self, checkpoints: Checkpoints) -> None:
        """Waits for the last save. After an outage it saves again, for at most LAST_SAVE seconds."""
        end = time.monotonic() + LAST_SAVE
        while True:
            is_last = time.monotonic() > end
            with contextlib.nullcontext() if is_last else self.through_outage():
                if self.retry_at < math.inf:
                    self.save(checkpoints)
                checkpoints.wait()
                self.end_outage(checkpoints)
                return
            time.sleep(self.delay)


@dataclass
class _Run(Progress):
    """The progress of a run, and the parts of the loop."""

    pending: tuple[int, Batch, dict] | None = None
    """last dispatched step, its batch and its metrics, until they are logged"""

    def advance(self, programs: Programs, batch: Batch) -> None:
        """Dispatches a step, then logs the step before. Does nothing if a signal interrupts the compilation."""
        if self.preemption.interruptible(partial(programs.wait, batch, self.log))[1]:
            return
        self.state, metrics = programs(self.state, batch, self.log)
        self.flush()
        self.step += 1
        self.pending = (self.step, batch, metrics)

    def flush(self) -> None:
        if self.pending is not None:
            step, batch, metrics = self.pending
            log_step(step, jax.device_get(metrics), partial(_examples, batch), train=self.train, log=self.log)
            self.pending = None

    def end(self) -> FitResult:
        """Waits for the last save. Raises Interrupted after a Ctrl-C."""
        self.flush()
        if self.checkpoints is not None:
            with self.log.timed("save"):
                self.wait(self.checkpoints)
        if not self.interrupted:
            self.log.end()
            return FitResult(self.state, "done" if self.step >= self.train.steps else "stopped", self.best)
        where = f"saved step {self.step}; " if self.step == self.saved else f"after step {self.step}; "
        self.log.print(f"interrupted: {where if self.step else ''}run the same command again to continue")
        if self.preemption.by_keyboard:
            raise Interrupted
        return FitResult(self.state, "interrupted", self.best)


def next_batch(stream: Iterator[tuple[int, Batch]], step: int, pending: Sequence[Any] | None, log: Log) -> Batch:
    """The batch of a step. pending: the step before, with its metrics: while it runs, waiting costs no time."""

    def computing() -> bool:
        leaves: list[Any] = jax.tree.leaves(pending[2]) if pending else []
        return not all(leaf.is_ready() for leaf in leaves)

    with log.clock.spent("input", unless=computing):
        at, batch = next(stream)
    if at != step:
        raise ValueError(f"expected the batch of step {step}, got that of step {at}: see `loop.Batches`")
    return batch


def judge(best: Best, scores: Scores, step: int) -> Best:
    """The best evaluation after one more. Only a strictly better score is an improvement; NaN never is."""
    better = scores.value == scores.value and (
        best.value is None or (scores.value > best.value if scores.higher_is_better else scores.value < best.value)
    )
    if better:
        return Best(scores.value, step, 0, step)
    return best._replace(waited=best.waited + 1, evaluated=step)


def restore_or_init(
    template: TrainState, init: Callable[[], TrainState], checkpoints: Checkpoints | None, step: int | None = None
) -> tuple[TrainState, int, Best, dict]:
    """(state, step, best evaluation, sums of the log) of the newest checkpoint or of a step, else of init()."""
    if checkpoints is None or step == 0 or (found := checkpoints.restore(template, step)) is None:
        state = init()
        return state, int(state.step), Best(evaluated=int(state.step)), {}
    notes = checkpoints.notes(found[1])
    best = Best(**notes["best"])
    if 0 < best.step <= checkpoints.since:  # it was found by other code
        best = Best(evaluated=best.evaluated)
    return *found, best, notes.get("log", {})  # older versions saved none


def log_step(step: int, numbers: dict, examples_of: Callable[[], list[int]], *, train: config.Train, log: Log) -> None:
    """Logs the metrics of a step. Raises after train.max_skipped steps whose loss or gradient is not finite."""
    (total, weight), norm = numbers["loss"], numbers["grad_norm"]
    if not (math.isfinite(total) and math.isfinite(norm)):
        skipped, examples = int(numbers["skipped"]), examples_of()
        log.print(f"step {step}: the loss or its gradient is not finite: skipped, {skipped} in a row")
        file = log.nonfinite(step, float(total) / float(weight) if weight else math.nan, norm, examples)
        if skipped >= train.max_skipped:
            # The leader may still be writing the file, and the first error ends a pod.
            multihost.wait_for_all("nonfinite")
            which = f"examples {', '.join(map(str, examples))}" if examples else "the data"
            which = f"the examples in {file}" if file else which
            raise UserError(
                f"{skipped} non-finite steps in a row, the last one step {step}: "
                f"check {which}, or lower train.learning_rate or train.clip_norm"
            )
        numbers["loss"] = (0.0, 0.0)  # a skipped step does not count in the mean
    log.step(step, numbers)


def _examples(batch: Batch) -> list[int]:
    """The example numbers of a global batch, from its column `example`; -1 marks a padding row."""
    if not isinstance(batch, dict) or "example" not in batch:
        return []
    numbers = np.ravel(multihost.all_gather(batch["example"]))  # all processes call it: they see the same loss
    return [int(number) for number in numbers if number >= 0]
