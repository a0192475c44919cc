"""The train step, compiled ahead of time once per batch shape.

Compilation runs in background threads, because XLA releases the GIL. A run starts when the program of its first batch
is ready; a batch of another bucket waits only for its own program.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from s2sjax.core.backend import device
from s2sjax.errors import UserError
from s2sjax.training import device_memory, jax_settings, multihost
from s2sjax.training.mesh import EVERYWHERE, ROWS, column_sharding, path_of, put
from s2sjax.training.run_log import Log
from s2sjax.training.train_state import TrainState, TrainStep

Batch = Any


class Compiled(NamedTuple):
    program: Any
    """compiled program; the train step itself in JAX's debugging modes (jax_settings.py)"""
    seconds: float
    memory: device_memory.Memory | None
    """memory of the program, None if the backend does not report it"""


class Programs:
    """The compiled train steps.

        programs.prepare(shapes, log)                   starts compiling, in this order
        programs.wait(batch, log)                       waits for the program of this batch; prints what is ready
        state, metrics = programs(state, batch, log)    waits, then runs the program
        programs.close()                                cancels compilations that have not started

    An error of a background compilation is raised only where its program is needed.

    numbers: third argument of the train step, if it takes one. members, rows: the sharding of the numbers and of the
    batches; a sweep has an axis for its members.
    """

    def __init__(
        self,
        train_step: TrainStep,
        template: TrainState,
        mesh: Mesh | None = None,
        compiler_options: dict[str, Any] | None = None,
        numbers: Mapping[str, np.ndarray] | None = None,
        members: PartitionSpec = EVERYWHERE,
        rows: PartitionSpec = ROWS,
    ):
        self._state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), template)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self._state)
        self._step = jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, None))
        self._mesh, self._options = mesh, compiler_options
        self._rows = rows
        self._numbers = [] if numbers is None else [put(numbers, mesh, members)]
        self._pool = ThreadPoolExecutor(device.compile_threads(), "compile")
        self._tracing = threading.Lock()
        """lock of tracing, which holds the GIL: the first program must not share it with the others"""
        self._programs: dict[Any, Any] = {}
        self._compiling: dict[Any, tuple[Batch, Future[Compiled]]] = {}
        self._printed: set[str] = set()
        self._notes: list[str] = []
        self.seconds: dict[Any, float] = {}
        """compilation time of each program, by the shapes of its batch"""
        self.memory: dict[Any, device_memory.Memory] = {}
        """memory of each program, by the shapes of its batch, where the backend reports it"""

    def prepare(self, batches: Iterable[Batch], log: Log) -> None:
        """Starts compiling for these batches, or their shapes, in this order."""
        missing = {_shapes(batch): batch for batch in batches}
        for key, batch in missing.items():
            if key not in self._programs and key not in self._compiling:
                self._compiling[key] = batch, self._submit(batch)
        if multihost.is_multiprocess():
            # Compile everything before the first step. Otherwise a process that is ready would wait in a collective,
            # which times out, for one that still compiles; and GPUs that tune their kernels together wait for all.
            for batch in missing.values():
                self.wait(batch, log)
            with log.timed("compile"):
                multihost.wait_for_all("compile")  # only some processes may find their programs in the cache

    def wait(self, batch: Batch, log: Log) -> None:
        """Waits until the program of this batch is ready. Prints a line for each program that has become ready."""
        key = _shapes(batch)
        if key not in self._programs:
            with log.timed("compile"):
                self._finish(key, batch, log)
        for other, (_, future) in list(self._compiling.items()):
            if future.done() and not future.exception():
                self._take(other, log)

    def __call__(self, state: TrainState, batch: Batch, log: Log) -> tuple[TrainState, dict]:
        self.wait(batch, log)
        program = self._programs[_shapes(batch)]
        if program is not self._step:
            return program(state, batch, *self._numbers)
        plain = jax.tree.map(lambda number: number.item(), self._numbers)
        try:
            # Without the mesh, whose sharding constraints JAX cannot apply op by op.
            return program(state, batch, *plain)
        except FloatingPointError as error:
            raise UserError(
                f"step {int(state.step) + 1}: {jax_settings.reason(error)} ({jax_settings.place_of(error)}): "
                "lower train.learning_rate or train.clip_norm, or turn off jax_debug_nans and jax_debug_infs "
                "to skip such steps"
            ) from error

    def needs(self, batch: Batch, log: Log) -> device_memory.Memory | None:
        """The memory of the program of this batch; None if the backend does not report it."""
        self.wait(batch, log)
        return self.memory.get(_shapes(batch))

    def close(self) -> None:
        """Cancels pending compilations. Does not wait for running ones: XLA cannot be interrupted."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _finish(self, key: Any, batch: Batch, log: Log) -> None:
        if key not in self._compiling:  # `prepare` was not called for it
            self._compiling[key] = batch, self._submit(batch)
        try:
            self._compiling[key][1].result()
        except jax.errors.JaxRuntimeError as error:
            # While a step runs, an accelerator may have too little memory to autotune kernels. Now none is running.
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            log.print(f"compiling the train step for batches of {_describe(batch)} failed ({reason}): trying once more")
            self._compiling[key] = batch, self._submit(batch)
        self._take(key, log)

    def _submit(self, batch: Batch) -> Future[Compiled]:
        return self._pool.submit(jax_settings.inherit(self._compile), batch, self._notes.append)

    def _take(self, key: Any, log: Log) -> None:
        batch, future = self._compiling[key]
        self._programs[key], self.seconds[key], needs = future.result()
        del self._compiling[key]
        while self._notes:
            log.print(self._notes.pop(0))
        if self._programs[key] is not self._step:
            log.print(f"compiled the train step for batches of {_describe(batch)} in {self.seconds[key]:.1f} s")
        if needs:
            self.memory[key] = needs
            most = max(self.memory.values(), key=lambda each: each.total)
            for line in device_memory.describe(most, self._mesh, device_memory.limit(jax.local_devices()[0])):
                if line not in self._printed:  # printed again only if this program needs more than those before
                    log.print(line)
                self._printed.add(line)
            log.once(device_memory_bytes=most.total)

    def lower(self, batch: Batch) -> Any:
        """Lowers the train step for batches of these shapes, ready to be compiled."""
        with self._tracing, contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh):
            return self._step.lower(self._state, self._abstract(batch), *map(_weak, self._numbers))

    def _abstract(self, batch: Batch) -> Batch:
        where = lambda shape: None if self._mesh is None else column_sharding(self._mesh, shape, self._rows)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where(x.shape)), batch)

    def _compile(self, batch: Batch, note: Callable[[str], None] = print) -> Compiled:
        if jax_settings.debugged():
            return Compiled(self._step, 0.0, None)
        begin = time.perf_counter()
        program = device.compile_with(self.lower(batch), self._options, note)
        needs = device_memory.measure(self._state, self._abstract(batch), program)
        return Compiled(program, time.perf_counter() - begin, needs)


def _weak(numbers: dict[str, jax.Array]) -> dict[str, jax.ShapeDtypeStruct]:
    """Abstract numbers that take the dtype of the arrays they meet, as Python numbers do."""
    weak = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=True, sharding=x.sharding)
    return {name: weak(number) for name, number in numbers.items()}


def _shapes(batch: Batch) -> Any:
    leaves, structure = jax.tree.flatten(batch)
    return structure, tuple((tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves)


def _describe(batch: Batch) -> str:
    """The shapes of a batch as text: "source 64x16, target 64x16". Columns with one value per row are omitted."""
    shapes = {path_of(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(batch)}
    wide = {name: shape for name, shape in shapes.items() if len(shape) > 1} or shapes
    return ", ".join(f"{name} {'x'.join(map(str, shape))}".strip() for name, shape in wide.items())
