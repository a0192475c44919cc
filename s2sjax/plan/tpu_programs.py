"""Compiles the programs of an experiment for slices of TPU pods that are not available here. Nothing is run.

The train step of every bucket and the prediction programs are those of a run on that slice: the same functions, mesh,
shardings and donated buffers, traced for the target platform (core/backend/device.py). Memory, FLOPs and collectives
are read from the compiled program.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from s2sjax import config
from s2sjax.config import replace
from s2sjax.core.backend import device
from s2sjax.data.batching import batch_plan
from s2sjax.plan import hlo, tpu_slices
from s2sjax.runs.train_run import make_init_fn
from s2sjax.tasks.task import Task
from s2sjax.training import mesh as meshes
from s2sjax.training.compiled_steps import Programs
from s2sjax.training.device_memory import shard_bytes
from s2sjax.training.optimizers import optimizer
from s2sjax.training.train_state import make_train_step

GIB = 2**30
PADDED = 1.25
"""report arrays whose padded size exceeds this multiple of their size"""
Note = Callable[[str], None]


class Built(NamedTuple):
    """A compiled program. Sizes are bytes on one chip."""

    name: str
    bucket: tuple[int, ...]
    """bucket of a train step; () for other programs"""
    rows: int
    """rows of the global batch; 0 for other programs"""
    seconds: float
    """compilation time"""
    arguments: int
    """size of the arguments with padding: for a train step, the state and the batch"""
    held: int
    """size of the state, or of the parameters, without padding"""
    aliased: int
    """size of the results that reuse the memory of an argument"""
    temporary: int
    """size of everything else that the program needs while it runs, including its code"""
    code: int
    flops: float
    """FLOPs as the compiler counts them: the body of a loop counts once"""
    collectives: Sequence[hlo.Collective]
    padded: Sequence[tuple[str, float]]
    """arrays with the most padding: (array, padded size divided by its size)"""
    problems: Sequence[str]

    @property
    def memory(self) -> int:
        return self.arguments + self.temporary


class Lowered(NamedTuple):
    """A program before it is compiled."""

    name: str
    bucket: tuple[int, ...]
    rows: int
    held: Any
    """shapes of the arguments that stay on the chip"""
    program: Any


class DoesNotFit(Exception):
    """Raised when a program needs more memory than the chip has."""

    def __init__(self, name: str, used: float, limit: float):
        super().__init__(f"{name} needs {used / GIB:.2f} GiB of {limit / GIB:.2f}")
        self.name, self.used, self.limit = name, used, limit


class Target:
    """An experiment on one or several slices of a kind, with the mesh and the batch sizes for which it is compiled."""

    def __init__(self, task: Task, of: tpu_slices.Slice, note: Note = print, slices: int = 1):
        e = self.experiment = task.experiment
        self.task, self.slice, self.note, self.slices = task, of, note, slices
        self.devices = tpu_slices.devices(of, slices)
        self.mesh = meshes.make_mesh(e.train.mesh, self.devices)
        task.check_mesh(self.mesh.shape)
        self.rules = task.rules if self.mesh.shape["tensor"] > 1 else ()
        parts = meshes.data_parallel_size(self.mesh) * e.train.grad_accum_steps
        self.buckets = sorted(map(tuple, e.data.buckets), key=sum, reverse=True)  # type: ignore[arg-type]
        plan = batch_plan.Plan(np.array(self.buckets), self.buckets, e.data.batch_tokens, 0, parts)
        self.rows = dict(zip(self.buckets, plan.rows))

    @property
    def name(self) -> str:
        return self.slice.name if self.slices == 1 else f"{self.slices} slices of {self.slice.name}"

    def train_steps(self, buckets: Sequence[tuple[int, ...]] | None = None) -> list[Built]:
        """Compiles the train steps of all buckets, or of the given ones, largest first. Raises DoesNotFit."""
        e, buckets = self.experiment, self.buckets if buckets is None else buckets
        with device.compile_for(self.devices[0]):
            step = make_train_step(self.task.loss(), optimizer(e.train), e.train, e.seed)
            init = make_init_fn(self.task, self.rows[buckets[0]])
            state = meshes.abstract_state(init, self.mesh, self.rules, jax.random.key(0))
            programs = Programs(step, state, self.mesh)
            batch = lambda bucket: self.task.abstract_batch(bucket, self.rows[bucket])
            name = lambda bucket: f"train step, {self.rows[bucket]:,} rows of {' + '.join(map(str, bucket))}"
            return self._compiled(
                Lowered(name(bucket), bucket, self.rows[bucket], state, programs.lower(batch(bucket)))
                for bucket in buckets
            )

    def predictions(self) -> list[Built]:
        """Compiles the prediction programs of the tasks that define some."""
        with device.compile_for(self.devices[0]):
            params = meshes.abstract_state(self.task.init, self.mesh, self.rules, jax.random.key(0))
            found = self.task.lower_predictor(self.mesh, params)
            return self._compiled(Lowered(name, (), 0, params, one) for name, one in found.items())

    def _compiled(self, lowered: Iterable[Lowered]) -> list[Built]:
        """Traces the programs one by one, and compiles several at once."""
        options = device.compiler_options()
        sizes = dict(self.mesh.shape)
        within = sizes | {"data": sizes["data"] // self.slices}

        def build(one: Lowered) -> Built:
            begin = time.perf_counter()
            try:
                program = device.compile_with(one.program, options, self.note)
            except jax.errors.JaxRuntimeError as error:
                raise _explained(one.name, error) from error
            seconds = time.perf_counter() - begin
            self.note(f"compiled {one.name} in {seconds:.0f} s")
            return _measured(one, program, seconds, within)

        with ThreadPoolExecutor(device.compile_threads()) as pool:
            return list(pool.map(build, list(lowered)))


def _measured(one: Lowered, program: Any, seconds: float, mesh: dict[str, int]) -> Built:
    text, sizes = program.as_text(), program.memory_analysis()
    module = hlo.Module(text)
    made = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return Built(
        one.name, one.bucket, one.rows, seconds,
        arguments=sizes.argument_size_in_bytes,
        held=shard_bytes(one.held),
        aliased=sizes.alias_size_in_bytes,
        temporary=sizes.temp_size_in_bytes + made + sizes.generated_code_size_in_bytes,
        code=sizes.generated_code_size_in_bytes,
        flops=(program.cost_analysis() or {}).get("flops", 0.0),
        collectives=module.collectives(mesh),
        padded=_most_padded(module),
        problems=hlo.problems(text),
    )  # fmt: skip


def _most_padded(module: hlo.Module, count: int = 3) -> list[tuple[str, float]]:
    """The arrays that waste the most memory, among those larger than a hundredth of the largest."""
    found = {str(each): each for each in module.written() if each.bytes}
    largest = max((each.padded for each in found.values()), default=0)
    waste = [each for each in found.values() if each.padded > PADDED * each.bytes and each.padded > largest / 100]
    waste.sort(key=lambda each: each.bytes - each.padded)
    return [(str(each), each.padded / each.bytes) for each in waste[:count]]


# -------------------------------------------------------------------- programs that do not fit

# "Used 18.50G of 15.75G hbm", or "(18.50G) exceeds available HBM (15.75G)"
_USED = re.compile(r"(?:Used |\()([\d.]+)([KMGT]?)\)? (?:of|exceeds available HBM) \(?([\d.]+)([KMGT]?)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _explained(name: str, error: Exception) -> Exception:
    """DoesNotFit if the compiler reports too little memory, otherwise the error itself."""
    found = _USED.search(str(error))
    if not found:
        return error
    used, unit, limit, other = found.groups()
    return DoesNotFit(name, float(used) * _UNITS[unit], float(limit) * _UNITS[other])


class Change(NamedTuple):
    flags: str
    """command-line options that make the change"""
    experiment: config.Experiment


def changes(target: Target, held: int, params: int, failure: DoesNotFit) -> Iterator[Change]:
    """Yields changes that may make a program fit, the smallest first: micro-batches, recomputation, then fsdp.

    held, params: bytes of the state and of the parameters on a chip. With m micro-batches a program needs about 1/m of
    the activations, plus the sum of the gradients; a change that cannot save enough is not tried.
    """
    e, mesh = target.experiment, target.mesh.shape
    activations, limit = failure.used - held, failure.limit
    replicas = meshes.data_parallel_size(target.mesh)
    most = min(target.rows.values()) // replicas
    changed = lambda **options: replace(e, train=replace(e.train, **options))
    parts = e.train.grad_accum_steps
    while 2 * parts <= most:
        parts *= 2
        if held + params + activations * e.train.grad_accum_steps / parts < limit:
            yield Change(f"--train.grad_accum_steps {parts}", changed(grad_accum_steps=parts))
            break
    if e.train.remat != "layers" and held < limit:
        yield Change("--train.remat layers", changed(remat="layers"))
    fsdp = mesh["fsdp"]
    while replicas % (2 * fsdp) == 0:
        fsdp *= 2
        if held * mesh["fsdp"] / fsdp + activations < limit or 2 * fsdp > replicas:
            flags = f"--train.mesh.data {replicas // fsdp} --train.mesh.fsdp {fsdp}"
            yield Change(flags, changed(mesh=replace(e.train.mesh, data=replicas // fsdp, fsdp=fsdp)))
            break
