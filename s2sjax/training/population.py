"""Trains the members of a sweep together: one compiled step advances all of them.

The states of M members are stacked, [M, ...], and `jax.vmap` maps the train step over them. Every member keeps its own
evaluations, checkpoints and log, as if it were trained alone. A member that stops early keeps its place, and its result
is ignored: the others compute the same numbers with and without it.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.training.checkpoints.manager import Checkpoints
from s2sjax.training.compiled_steps import Programs
from s2sjax.training.heartbeat import working
from s2sjax.training.loop import Batch, Batches, Best, Evaluate, Progress, log_step, next_batch, restore_or_init
from s2sjax.training.mesh import MEMBERS, ROWS
from s2sjax.training.preemption import Interrupted, Preemption
from s2sjax.training.run_log import Log
from s2sjax.training.train_state import TrainState, TrainStep

Tree = Any
Status = Literal["done", "stopped", "diverged", "paused", "interrupted"]
"""done: all steps are done; stopped: train.patience ran out; diverged: train.max_skipped steps in a row were not
finite; paused: `until` is reached; interrupted: a SIGTERM arrived"""


class Member(NamedTuple):
    """A training that is a part of a sweep."""

    train: config.Train
    init: Callable[[], TrainState]
    checkpoints: Checkpoints
    evaluate: Evaluate | None
    log: Log


def programs_of(
    train_step: TrainStep, template: Tree, numbers: Sequence[Mapping[str, np.ndarray]], mesh: Mesh, shared: bool,
    compiler_options: dict[str, Any] | None = None,
) -> Programs:  # fmt: skip
    """The programs that advance all members by one step.

    template: abstract arrays of their stacked states. numbers: those of each member. shared: whether all members have
    the same batches.
    """
    count = jax.tree.leaves(template)[0].shape[0]
    padded = [*numbers, *[numbers[-1]] * (count - len(numbers))]
    stacked = {name: np.stack([each[name] for each in padded]) for name in numbers[0]}
    own, everywhere = PartitionSpec(MEMBERS), PartitionSpec()
    together = jax.vmap(train_step, in_axes=(0, None if shared else 0, 0))
    if count == mesh.shape[MEMBERS]:  # one member on each device, which needs no other layout of its arrays
        together = partial(_first, train_step, shared)
    if mesh.shape[MEMBERS] > 1:
        # Each device has its own members. Left to XLA's partitioner, mapped convolutions of width 1 were wrong.
        specs = (own, everywhere if shared else own, own)
        together = jax.shard_map(
            together, mesh=mesh, in_specs=specs, out_specs=own, axis_names={MEMBERS}, check_vma=False
        )  # fmt: skip
    return Programs(together, template, mesh, compiler_options, stacked, own, batch_spec(shared))


def _first(train_step: TrainStep, shared: bool, state: Tree, batch: Tree, numbers: Tree) -> Any:
    """The train step of the only member of a device, [1, ...]."""
    only = lambda tree: jax.tree.map(lambda leaf: leaf[0], tree)
    found = train_step(only(state), batch if shared else only(batch), only(numbers))
    return jax.tree.map(lambda leaf: leaf[None], found)


def batch_spec(shared: bool) -> PartitionSpec:
    return ROWS if shared else PartitionSpec(MEMBERS, *ROWS)


def common_step(several: Sequence[Checkpoints]) -> int:
    """The newest step that all members have saved, 0 without one: a process may end while it saves them in turn."""
    return max(set.intersection(*({0, *checkpoints.steps()} for checkpoints in several))) if several else 0


def is_finished(train: config.Train, checkpoints: Checkpoints) -> bool:
    """Whether a training has no step left, or its patience is over."""
    step = max(checkpoints.steps(), default=0)
    best = Best(**checkpoints.notes(step)["best"]) if step else Best()
    return step >= train.steps or 0 < train.patience <= best.waited


def fit(
    programs: Programs,
    batches: Batches,
    *,
    template: TrainState,
    together: TrainState,
    members: Sequence[Member],
    mesh: Mesh,
    shared: bool,
    log: Log,
    shapes: Iterable[Batch] = (),
    until: int | None = None,
) -> list[Status]:
    """Trains the members to their last step, or to `until`, from the newest step that all of them have saved.

    Returns how each of them ended. Ctrl-C saves all of them, then raises Interrupted.

    batches: batches(k) yields (k, batch), (k + 1, batch), ...; leaves [M, B, ...], or [B, ...] if they are shared.
    template, together: abstract arrays of the state of one member, and of the stacked states.
    """
    run = _Population(members, log, Preemption(), programs, template, until)
    with working("making or restoring the parameters"):
        run.restore(together)
    stream: Iterator[tuple[int, Batch]] | None = None
    log.start(run.step)
    with contextlib.closing(log), contextlib.closing(programs), run.preemption:
        if run.step:
            log.print(f"resumed after step {run.step}")
        while True:
            run.evaluate_and_save()
            if not run.active or run.interrupted or run.step == until:
                return run.end()
            if stream is None:
                with log.clock.spent("start"):
                    stream = batches(run.step)
                programs.prepare(shapes, log)
            batch = next_batch(stream, run.step, run.pending, log)
            run.advance(jax.device_put(batch, NamedSharding(mesh, batch_spec(shared))))


@dataclass
class _Population:
    """The progress of all members, and the parts of the loop."""

    members: Sequence[Member]
    log: Log
    preemption: Preemption
    programs: Programs
    template: TrainState
    until: int | None
    step: int = 0
    interrupted: bool = False
    pending: tuple[int, Batch, dict, list[int]] | None = None
    """last dispatched step, its batch and its metrics, until they are logged, and the members it has advanced"""

    def restore(self, together: TrainState) -> None:
        """Restores or makes the states of the members, and starts their logs."""
        self.ended: dict[int, Status] = {}
        self.active = list(range(len(self.members)))
        self.step = common_step([member.checkpoints for member in self.members])
        self.parts: dict[int, Progress] = {}
        shapes = jax.tree.map(lambda leaf: leaf.sharding, together)
        fill = jax.jit(
            lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), together), out_shardings=shapes
        )
        insert = jax.jit(lambda stack, one, i: jax.tree.map(lambda a, b: a.at[i].set(b), stack, one), donate_argnums=0)
        alone = jax.tree.map(
            lambda leaf: NamedSharding(leaf.sharding.mesh, PartitionSpec(*leaf.sharding.spec[1:])), together
        )
        self.stack = fill()
        places = jax.tree.leaves(together)[0].shape[0]
        for i, member in enumerate(self.members):
            state, step, best, sums = restore_or_init(self.template, member.init, member.checkpoints, self.step)
            member.log.start(step, sums, best.evaluated)
            self.parts[i] = Progress(
                step, best, member.train, member.checkpoints, member.log, self.preemption, step, state
            )
            # The first state also fills the places without a member.
            for place in [i] if i else range(places):
                self.stack = insert(self.stack, jax.device_put(state, alone), place)
            del self.parts[i].state, state
        self._take = jax.jit(lambda stack, i: jax.tree.map(lambda leaf: leaf[i], stack))

    def evaluate_and_save(self) -> None:
        """Evaluates and saves the members for which that is due; all of them before an interruption or a pause."""
        self.interrupted = self.preemption.reached(self.step)
        paused = self.step == self.until
        for i in [*self.active]:
            self._evaluate_and_save(i, paused)
        if self.interrupted:
            for i in self.active:  # an evaluation may have been interrupted after some of them
                self._evaluate_and_save(i, paused)

    def _evaluate_and_save(self, i: int, paused: bool) -> None:
        part, member = self.parts[i], self.members[i]
        part.interrupted = self.interrupted
        with part.through_outage():
            member.checkpoints.check()
        part.end_outage(member.checkpoints)
        if not (part.evaluation_due() or part.save_due() or paused):
            return
        self.flush()
        if i not in self.active:  # it has diverged at this step
            return
        part.state = self._state(i)
        with self.log.timed("evaluate"):
            score = part.evaluate_if_due(member.evaluate)
        self.interrupted |= part.interrupted
        with self.log.timed("save"):
            part.save_if_due(score, paused)
        del part.state
        if part.finished:
            self._end(i, "done" if part.step >= member.train.steps else "stopped")

    def _state(self, i: int) -> TrainState:
        """The state of one member, sharded as that of a training alone."""
        where = jax.tree.map(lambda leaf: leaf.sharding, self.template)
        return jax.device_put(self._take(self.stack, i), where)

    def advance(self, batch: Batch) -> None:
        """Dispatches a step of all members, then logs the step before."""
        if self.preemption.interruptible(partial(self.programs.wait, batch, self.log))[1]:
            return
        self.stack, metrics = self.programs(self.stack, batch, self.log)
        self.flush()
        self.step += 1
        for i in self.active:
            self.parts[i].step = self.step
        self.pending = (self.step, batch, metrics, [*self.active])

    def flush(self) -> None:
        """Logs the last dispatched step of each member, if that has not been done."""
        if self.pending is None:
            return
        (step, batch, metrics, advanced), self.pending = self.pending, None
        numbers = jax.device_get(metrics)
        sums = [0.0, 0.0]
        for i in advanced:
            own = jax.tree.map(operator.itemgetter(i), numbers)
            try:
                log_step(step, own, partial(_examples, batch, i), train=self.members[i].train, log=self.members[i].log)
                sums = [sum(pair) for pair in zip(sums, own["loss"])]  # 0 for a step that was skipped
            except UserError as error:
                self.members[i].log.print(f"stopped: {error}")
                self._end(i, "diverged")
        self.log.step(step, {"loss": tuple(sums)})

    def _end(self, i: int, status: Status) -> None:
        self.ended[i] = status
        self.active.remove(i)
        part, member = self.parts[i], self.members[i]
        if status == "diverged":  # the stack is a step ahead: after an outage, there is nothing to save again
            with part.through_outage():
                member.checkpoints.wait()
        else:
            part.state = self._state(i)
            part.wait(member.checkpoints)
            del part.state
        member.log.close()

    def end(self) -> list[Status]:
        """Waits for the last saves. Raises Interrupted after a Ctrl-C."""
        self.flush()
        for i in [*self.active]:
            self._end(i, "interrupted" if self.interrupted else "paused")
        if self.interrupted:
            self.log.print(f"interrupted: saved step {self.step}; run the same command again to continue")
            if self.preemption.by_keyboard:
                raise Interrupted
        else:
            self.log.end()
        return [self.ended[i] for i in range(len(self.members))]


def _examples(batch: Batch, i: int) -> list[int]:
    """The example numbers of the batch of a member, from its column `example`; -1 marks a padding row."""
    if not isinstance(batch, dict) or "example" not in batch:
        return []
    numbers = np.asarray(batch["example"])
    return [int(number) for number in (numbers[i] if numbers.ndim == 2 else numbers) if number >= 0]
