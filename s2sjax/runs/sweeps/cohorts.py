"""Cohorts: members of a sweep that are trained together by one program (training/population.py).

Members share a program if their experiments are equal but for numbers that are no shapes (`config.numbers`), and if
these numbers do not change the program while it is traced, as a dropout rate of 0 does (core/traced_numbers.py).
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from s2sjax import config
from s2sjax.core.backend import device
from s2sjax.core.traced_numbers import Disagree
from s2sjax.data.batching import batch_plan
from s2sjax.runs import evaluations, folder, stored_code, train_run
from s2sjax.runs.dev_evaluation import DevEvaluation
from s2sjax.runs.run import Run
from s2sjax.runs.sweeps.sweep_results import has_diverged
from s2sjax.tasks.task import Task
from s2sjax.training import device_memory, population
from s2sjax.training import mesh as meshes
from s2sjax.training.compiled_steps import Programs
from s2sjax.training.run_log import METRICS, Log, read_lines
from s2sjax.training.train_state import TrainState

DEVICE_SHARE, HOST_SHARE = 0.9, 0.5
"""share of the memory of an accelerator, and of a host that computes on its CPU, that a cohort may use"""


@dataclass(eq=False)
class Member:
    """A member of a sweep: an ordinary run, whose folder is open for training."""

    name: str
    path: Path
    inputs: train_run.Inputs
    task: Task

    def __post_init__(self):
        # Two at least: if a process ends while it saves the members in turn, all of them still have the step before.
        self.checkpoints, step = train_run.open_checkpoints(self.path, self.task, self.inputs.code, least=2)
        stored_code.keep(self.path, self.inputs.code, step)

    @property
    def experiment(self) -> Any:
        return self.task.experiment

    @cached_property
    def run(self) -> Run:
        return Run(self.path, self.task)

    @property
    def step(self) -> int:
        """The newest step that is saved."""
        return max(self.checkpoints.steps(), default=0)

    def rank(self, step: int) -> tuple[bool, float]:
        """A key that sorts members by their score at a step, the best first, those without one last."""
        lines = [line for line in read_lines(self.path / METRICS) if line.get("step") == step and "score" in line]
        score = lines[-1][lines[-1]["score"]] if lines else None
        return (True, 0.0) if score is None else (False, -score if self.task.higher_is_better else score)

    @property
    def diverged(self) -> bool:
        """Whether training has ended because too many steps in a row were not finite."""
        return has_diverged(self.path, self.experiment.train.max_skipped)

    @property
    def over(self) -> bool:
        """Whether no step is left: all are done, train.patience is over, or training has diverged."""
        return population.is_finished(self.experiment.train, self.checkpoints) or self.diverged

    @property
    def is_evaluated(self) -> bool:
        """Whether there is an evaluation of the default split with the best checkpoint."""
        split, best = self.task.default_split, self.checkpoints.best_step() or self.step
        return any(each.split == split and each.step == best for each in evaluations.read_all(self.path))


def structure(experiment: Any) -> str:
    """All settings that are no numbers. Members of a cohort have equal ones; `train.steps` may differ."""
    free = {"name", "train.steps", *config.numbers(experiment)}
    settings = folder.flat(config.to_json(experiment))
    return json.dumps({name: value for name, value in settings.items() if name not in free}, default=str)


class Cohort:
    """The data and the programs of some members.

    places: number of states that the programs hold, at least that of the members.
    """

    def __init__(self, members: Sequence[Member], made: dict[Any, Any], places: int = 0):
        self.members, self._made, self.leader = members, made, members[0]
        self._inits: dict[str, Callable[..., TrainState]] = {}
        e = self.leader.experiment
        self.alone, self.mesh = self.leader.inputs.mesh, meshes.population_mesh(e.train.mesh, max(len(members), places))
        axis = self.mesh.shape[meshes.MEMBERS]
        self.places = -(-max(len(members), places) // axis) * axis
        self.steps = max(member.experiment.train.steps for member in members)
        self.shared = len({member.experiment.order_seed for member in members}) == 1
        self.data = [self._data(member) for member in (members[:1] if self.shared else members)]
        columns, plan = self.data[0]
        self.template = meshes.abstract_state(
            train_run.make_init_fn(self.leader.task, plan.rows[0]), *train_run.placement(self.leader.task, self.alone)
        )
        numbers = [config.numbers(member.experiment) for member in members]
        values = {name: tuple(each[name] for each in numbers) for name in numbers[0]}
        self.train_step = train_run.make_step(self.leader.task, columns, values)

    def _data(self, member: Member) -> tuple[Any, batch_plan.Plan]:
        """The columns of a member and the plan of its batches, made once for all members that share them."""
        e, task = member.experiment, member.task
        seed = e.order_seed if task.columns_use_seed else None
        columns = self._once(("columns", structure(e), seed), lambda: task.columns(member.inputs.examples["train"]))
        multiple = meshes.data_parallel_size(self.mesh) * e.train.grad_accum_steps
        key = ("plan", structure(e), e.order_seed, multiple)
        return columns, self._once(key, lambda: task.plan(columns, multiple))

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def describe(self) -> list[str]:
        """Lines on the model, the devices and the data."""
        leader = self.leader
        return train_run.describe(leader.inputs, leader.task, *self.data[0], self.template, self.mesh)

    # ------------------------------------------------------------------------------------ trace

    def trace(self) -> None:
        """Traces the step of one member. Raises Disagree if the members need different programs."""
        weak = lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype, weak_type=True)
        numbers = {name: weak(value) for name, value in _arguments(self.leader).items()}
        columns, plan = self.data[0]
        batch = train_run.batch_shapes(columns, plan, plan.used_buckets[0])
        jax.eval_shape(self.train_step, self.template, batch, numbers)

    # ------------------------------------------------------------------------------------ batches

    def batch(self, step: int) -> Any:
        """The batches of all members, [places, B, ...]; of one member, [B, ...], if they share them."""
        batches = [batch_plan.make_batch(columns, plan, step) for columns, plan in self.data]
        if self.shared:
            return batches[0]
        batches += [batches[-1]] * (self.places - len(batches))
        return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}

    def shapes(self, buckets: Sequence[int]) -> list[Any]:
        columns, plan = self.data[0]
        found = [train_run.batch_shapes(columns, plan, bucket) for bucket in buckets]
        if self.shared:
            return found
        stack = lambda leaf: jax.ShapeDtypeStruct((self.places, *leaf.shape), leaf.dtype)
        return [jax.tree.map(stack, each) for each in found]

    # ------------------------------------------------------------------------------------ programs

    @cached_property
    def together(self) -> TrainState:
        return meshes.stacked(self.template, self.mesh, self.places)

    @cached_property
    def programs(self) -> Programs:
        numbers = [_arguments(member) for member in self.members]
        options = device.compiler_options()
        return population.programs_of(
            self.train_step, self.together, numbers, self.mesh, self.shared, options
        )  # fmt: skip

    def memory(self, log: Log) -> device_memory.Memory | None:
        """The memory of the largest program of the cohort; None if the backend does not report it."""
        _, plan = self.data[0]
        return self.programs.needs(self.shapes(plan.used_buckets[-1:])[0], log)

    # ------------------------------------------------------------------------------------ train

    def fit(self, log: Log, until: int | None = None) -> list[population.Status]:
        """Trains the members, to their last step or to `until`. Returns how each ended."""
        parts = [self._part(member, log) for member in self.members]
        _, plan = self.data[0]
        start = population.common_step([each.checkpoints for each in self.members])
        stream = lambda step: batch_plan.prefetched(self.batch, step, self.steps, self.leader.experiment.data.prefetch)
        return population.fit(
            self.programs, stream, template=self.template, together=self.together, members=parts, mesh=self.mesh,
            shared=self.shared, log=log, until=until, shapes=self.shapes(plan.first_uses(start, until or self.steps)),
        )  # fmt: skip

    def _part(self, member: Member, log: Log) -> population.Member:
        e = member.experiment
        own = train_run.open_log(member.path, e, sweep=log)
        return population.Member(
            e.train, partial(self._init, member), member.checkpoints, self._evaluation(member, own), own
        )  # fmt: skip

    def _init(self, member: Member) -> TrainState:
        """The initial state of a member. Members with the same model share the program that makes it."""
        task, rows, source = member.task, self.data[0][1].rows[0], member.inputs.source
        if source is not None:
            return train_run.initial_state(task, self.alone, rows, source=source)
        mesh, rules, seed = train_run.placement(task, self.alone)
        if _model(member) not in self._inits:  # not of other cohorts, whose optimizer may have another state
            init = train_run.make_init_fn(task, rows)
            self._inits[_model(member)] = meshes.init_program(init, mesh, rules, seed)
        return self._inits[_model(member)](seed)

    def _evaluation(self, member: Member, log: Log) -> DevEvaluation | None:
        """The dev evaluation of a member. Members with the same model share its programs."""
        if not member.experiment.train.evaluate_every:
            return None
        key = ("evaluation", structure(member.experiment), _model(member))
        task, dev = member.task, member.inputs.examples["dev"]
        first = self._once(key, lambda: DevEvaluation(task, dev, task.predictor(self.alone), log, mesh=self.alone))
        own = copy.copy(first)
        own.log, member.run.predictor = log, own.predict
        return own


def _model(member: Member) -> str:
    return json.dumps(config.to_json(member.experiment.model), default=str)


def _arguments(member: Member) -> dict[str, np.ndarray]:
    return {name: config.argument(name, value) for name, value in config.numbers(member.experiment).items()}


def split(members: Sequence[Member], left: Sequence[Member], made: dict[Any, Any]) -> Iterator[list[Member]]:
    """Splits members into groups that share a program, and yields those with members that are left to train."""
    by_structure: dict[str, list[Member]] = {}
    for member in members:
        by_structure.setdefault(structure(member.experiment), []).append(member)
    for some in by_structure.values():
        if any(member in left for member in some):
            yield from (group for group in _split(some, made) if any(member in left for member in group))


def _split(members: list[Member], made: dict[Any, Any]) -> Iterator[list[Member]]:
    try:
        Cohort(members, made).trace()
    except Disagree as disagreement:
        parts: dict[Any, list[Member]] = {}
        for member, answer in zip(members, disagreement.answers):
            parts.setdefault(answer, []).append(member)
        for part in parts.values():
            yield from _split(part, made)
    else:
        yield members


def in_parts(
    members: list[Member], left: Sequence[Member], made: dict[Any, Any], most: int, log: Log
) -> list[Cohort]:  # fmt: skip
    """Cohorts of the members of a group that are left to train. All of them have one program.

    A cohort has as many places as fit in memory, which is measured by compiling, at most `most`. Members keep their
    company when a sweep is started again, so that it computes the same numbers. most: 0 for no limit on an accelerator,
    and for one member on each device of a CPU, which trains several at once no faster.
    """
    free = len(jax.devices()) if device.on_cpu() else len(members)
    count = min(len(members), most or free)
    while True:
        first = Cohort(members[:count], made)
        needs = first.memory(log)
        if needs is None or needs.total <= budget() or count == 1:
            break
        count = max(1, min(count - 1, int(count * budget() / needs.total)))
    even = -(-len(members) // -(-len(members) // count))
    parts = [members[begin : begin + even] for begin in range(0, len(members), even)]
    chosen = [some for part in parts for some in _by_step([member for member in part if member in left])]
    return [first if some == first.members else Cohort(some, made, even) for some in chosen]


def _by_step(members: list[Member]) -> list[list[Member]]:
    """Members that continue from the same step: all, if none loses more than the steps between two checkpoints."""
    common = population.common_step([member.checkpoints for member in members])
    if all(member.step - common <= member.experiment.train.save_every for member in members):
        return [members] if members else []
    by_step: dict[int, list[Member]] = {}
    for member in members:
        by_step.setdefault(member.step, []).append(member)
    return list(by_step.values())


def budget() -> float:
    """The memory in bytes that the members on one device may use."""
    limit = device_memory.limit(jax.local_devices()[0])
    if limit is not None:
        return DEVICE_SHARE * limit
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return HOST_SHARE * host / len(jax.local_devices())
