"""The host loop, in one order: restore; then for each step evaluate if due, save if due, batch, step, log the last one.

The loop reads the numbers of step t - 1 after it has sent off step t, so the device never waits for the host.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.train import hosts, memory
from s2sjax.train.checkpoints import Checkpoints
from s2sjax.train.mesh import ROWS, global_batch
from s2sjax.train.progress import NOTHING, Log
from s2sjax.train.state import TrainState, TrainStep

Batch = Any
Batches = Callable[[int], Iterator[tuple[int, Batch]]]
"""batches(k) yields (k, batch), (k + 1, batch), ...: this process's rows, leaves [rows, ...]."""


class Scores(NamedTuple):
    """What an evaluation found; `value` decides which checkpoint is best."""

    name: str
    value: float
    higher_is_better: bool = True
    details: Mapping[str, Any] = NOTHING


class Best(NamedTuple):
    """The best evaluation so far; saved with each checkpoint, so that patience survives a restart."""

    value: float | None = None
    step: int = 0
    waited: int = 0
    """evaluations since, all of them worse"""
    evaluated: int = 0
    """the last step evaluated"""


class Result(NamedTuple):
    state: TrainState
    status: Literal["done", "stopped", "interrupted"]
    """all steps made; patience ran out; a SIGTERM came: run the same command again"""
    best: Best


Evaluate = Callable[[TrainState, int], Scores | None]


def fit(
    state: TrainState,
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
    """Trains until train.steps, from the newest checkpoint if there is one. The given state is used up (donated).

    `shapes` are batches, or their global shapes, to compile for ahead of time: one a bucket.
    """
    log = log or Log(None, train.steps, train.log_every)
    state, step, best = _restored(state, checkpoints)
    saved = step
    programs = Programs(train_step, state, mesh, compiler_options)
    stream: Iterator[tuple[int, Batch]] | None = None
    pending: tuple[int, Batch, dict] | None = None
    log.start(step)
    with contextlib.closing(log), _Preemption() as preemption:
        if step:
            log.say(f"already done: {step} steps" if _finished(step, best, train) else f"resumed after step {step}")
        while True:
            if checkpoints is not None:
                checkpoints.check()
            interrupted = preemption.reached(step)
            score = None
            if evaluate is not None and not interrupted and _evaluation_due(step, best, train):
                _flush(pending, train, log)
                pending = None
                with log.timed("evaluate"), preemption.at_once() as evaluation:
                    scores = evaluate(state, step)
                interrupted = evaluation.cut_short
                if not interrupted and scores is not None:
                    score, best = scores.value, judge(best, scores, step)
                    log.scores(step, *scores)

            finished = _finished(step, best, train)
            due = step > saved and (finished or interrupted or step % train.save_every == 0)
            # An evaluation that is the best yet, or was made up for, is noted in the checkpoint of its step.
            noted = score is not None and step in (best.step, saved)
            if checkpoints is not None and (due or noted):
                _flush(pending, train, log)
                pending = None
                with log.timed("save"):
                    checkpoints.save(state, step, score, {"best": best._asdict()})
                saved = step
            if finished or interrupted:
                _flush(pending, train, log)
                break

            if stream is None:  # nothing is read or compiled for a run that has ended
                stream = batches(step)
                with log.timed("compile"), preemption.at_once() as compilation:
                    programs.prepare(shapes, log)
                if compilation.cut_short:
                    continue
                for line in programs.what_lives_where():
                    log.say(line)
            at, batch = next(stream)
            assert at == step, f"asked for the batch of step {step}, got that of step {at}"
            on_device = batch if mesh is None else global_batch(batch, mesh)
            state, metrics = programs(state, on_device, log)
            _flush(pending, train, log)
            step += 1
            pending = (step, batch, metrics)
        if checkpoints is not None:
            checkpoints.wait()
        if interrupted and not finished:
            log.say(f"interrupted after step {step}: run the same command again to go on")
            return Result(state, "interrupted", best)
        return Result(state, "done" if step >= train.steps else "stopped", best)


def judge(best: Best, scores: Scores, step: int) -> Best:
    """The best evaluation after one more: only a strictly better score is an improvement, NaN never is."""
    better = scores.value == scores.value and (
        best.value is None or (scores.value > best.value if scores.higher_is_better else scores.value < best.value)
    )
    if better:
        return Best(scores.value, step, 0, step)
    return best._replace(waited=best.waited + 1, evaluated=step)


def _restored(state: TrainState, checkpoints: Checkpoints | None) -> tuple[TrainState, int, Best]:
    found = None if checkpoints is None else checkpoints.restore(state)
    if found is None or checkpoints is None:
        return state, int(state.step), Best(evaluated=int(state.step))
    return *found, Best(**checkpoints.notes(found[1])["best"])


def _evaluation_due(step: int, best: Best, train: config.Train) -> bool:
    every = train.evaluate_every
    return every > 0 and step > best.evaluated and (step % every == 0 or step == train.steps)


def _finished(step: int, best: Best, train: config.Train) -> bool:
    return step >= train.steps or 0 < train.patience <= best.waited


def _flush(pending: tuple[int, Batch, dict] | None, train: config.Train, log: Log) -> None:
    """Waits for the numbers of a step already sent off, and tells them."""
    if pending is None:
        return
    step, batch, metrics = pending
    numbers = jax.device_get(metrics)
    (total, weight), norm = numbers["loss"], numbers["grad_norm"]
    if not (math.isfinite(total) and math.isfinite(norm)):
        skipped, examples = int(numbers["skipped"]), _examples(batch)
        log.say(f"step {step}: the loss or its gradient is not finite: skipped, {skipped} in a row")
        file = log.nonfinite(step, float(total) / float(weight) if weight else math.nan, norm, examples)
        if skipped >= train.max_skipped:
            which = f"examples {', '.join(map(str, examples))}" if examples else "the data"
            which = f"the examples in {file}" if file else which
            raise UserError(
                f"{skipped} non-finite steps in a row, the last one step {step}: "
                f"look at {which}, or lower train.learning_rate or train.clip"
            )
        numbers["loss"] = (0.0, 0.0)  # one bad step must not spoil the mean of its neighbours
    log.step(step, numbers)


def _examples(batch: Batch) -> list[int]:
    """The examples of a global batch that carries their numbers as `example`, -1 in a row of padding."""
    if not isinstance(batch, dict) or "example" not in batch:
        return []
    numbers = hosts.all_gather(batch["example"])  # all come here, for all have seen the same loss
    return [int(number) for number in numbers.ravel() if number >= 0]


def compiler_options() -> dict[str, Any] | None:
    """How a train step is best compiled for the devices at hand."""
    if jax.default_backend() != "cpu":
        return None
    return {
        # XLA's own fusions are faster on the small products of a recurrent step than those of its newest CPU library.
        "xla_cpu_experimental_ynn_fusion_type": "",
        # A CPU alone drops the barriers that hold back what is computed again until the backward pass asks for it.
        "xla_disable_hlo_passes": "cse_barrier_expander",
    }


class Programs:
    """The train step, compiled ahead of time once for each shape of batch; `seconds` proves there are no others."""

    def __init__(
        self,
        train_step: TrainStep,
        state: TrainState,
        mesh: Mesh | None = None,
        compiler_options: dict[str, Any] | None = None,
    ):
        where = jax.tree.map(lambda leaf: leaf.sharding, state)
        self._step = jax.jit(train_step, donate_argnums=0, out_shardings=(where, None))
        self._state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        self._mesh, self._options = mesh, compiler_options
        self._programs: dict[Any, Any] = {}
        self.seconds: dict[Any, float] = {}
        """seconds that each program took to compile, by the shapes of its batch"""
        self.memory: dict[Any, memory.Memory] = {}
        """what each of them needs, where the backend tells"""

    def __call__(self, state: TrainState, batch: Batch, log: Log) -> tuple[TrainState, dict]:
        if _shapes(batch) not in self._programs:
            with log.timed("compile"):
                self.prepare([batch], log)
        return self._programs[_shapes(batch)](state, batch)

    def prepare(self, batches: Iterable[Batch], log: Log) -> None:
        """Compiles for these batches, two at a time: most of the work is outside Python."""
        missing = {_shapes(b): b for b in batches if _shapes(b) not in self._programs}
        if not missing:
            return
        pool = ThreadPoolExecutor(2)
        try:
            compiled = pool.map(self._compile, missing.values())
            for key, (program, seconds, needs) in zip(missing, compiled, strict=True):
                self._programs[key], self.seconds[key] = program, seconds
                self.memory |= {key: needs} if needs else {}
                log.say(f"compiled train step {len(self._programs)} in {seconds:.1f} s")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # whoever was told to stop does not wait for XLA

    def what_lives_where(self) -> list[str]:
        """Lines on the program that needs the most."""
        most = max(self.memory.values(), key=lambda needs: needs.total, default=None)
        return [] if most is None else memory.describe(most, self._mesh, memory.limit(jax.local_devices()[0]))

    def _compile(self, batch: Batch) -> tuple[Any, float, memory.Memory | None]:
        begin = time.perf_counter()
        sharding = None if self._mesh is None else NamedSharding(self._mesh, ROWS)
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), batch)
        with contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh):
            program = self._step.lower(self._state, abstract).compile(compiler_options=self._options)
        return program, time.perf_counter() - begin, memory.measure(self._state, abstract, program)


def _shapes(batch: Batch) -> Any:
    leaves, structure = jax.tree.flatten(batch)
    return structure, tuple((tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves)


class _CutShort(BaseException):
    """Raised by the SIGTERM handler into work that can be dropped; no `except Exception` may catch it."""


class _Aside:
    cut_short = False


class _Preemption:
    """Notes a SIGTERM, so that the loop can save at the next step; a second one ends the process at once.

    With several processes JAX has its own notice, which lets all of them stop at the same step.
    """

    def __init__(self):
        self._several = jax.distributed.is_initialized()
        self._noted = False
        self._impatient = False
        self._former: Any = None

    def __enter__(self) -> _Preemption:
        if not self._several and threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_) -> None:
        if self._former is not None:
            signal.signal(signal.SIGTERM, self._former)

    def _note(self, *_) -> None:
        self._noted = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._impatient:
            raise _CutShort

    @contextlib.contextmanager
    def at_once(self) -> Iterator[_Aside]:
        """What runs inside can be dropped: a SIGTERM ends it there and then, and `cut_short` tells."""
        aside = _Aside()
        self._impatient = True
        try:
            yield aside
        except _CutShort:
            aside.cut_short = True
        finally:
            self._impatient = False

    def reached(self, step: int) -> bool:
        return multihost_utils.reached_preemption_sync_point(step) if self._several else self._noted
