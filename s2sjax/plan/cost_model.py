"""Predicts memory, time and MFU of a train step on a mesh of devices that are not available here.

The memory that a device holds between steps is exact: it follows from the shapes of the state and their shardings.
The temporary memory of a step comes from the compiler: the step is compiled (not run) for one local device, with few
and with many rows, and interpolated linearly: a fixed part + a part per row. On a mesh

    temporary = fixed * (held / whole) + gathered + row * rows * (1 - s + s / tensor)

because the gradients and updates of the fixed part are sharded like the parameters; with fsdp the parameters of a layer
are gathered while they are used; and a fraction s = 1/2 of the activations of a row, without its logits, is split over
`tensor` (the residual stream is not). A test compares this with programs compiled for eight simulated devices. The CPU
compiler stores bfloat16 in four bytes almost everywhere, so on a CPU a bfloat16 row is predicted like a float32 row.

Time is a roofline model of each operation (jaxpr_costs.py explains why XLA's cost analysis is not used):

    product      max(FLOPs / (ATTAINABLE * peak), bytes / bandwidth, LAUNCH)
    other        MOVED * bytes written / bandwidth
    update       (twice the state + three times the gradient) / bandwidth

plus the communication of each axis, over its slowest link:

    data      ring all-reduce of the gradients held       2 (n - 1) / n bytes
    fsdp      parameters gathered for forward and backward, gradients scattered       3 (n - 1) / n bytes
    tensor    activations all-reduced, twice per block forward and twice backward as in Megatron (Shoeybi et al. 2019):
              half of the products with a matrix that is split

Assumptions: a fraction OVERLAP of the communication of data and fsdp overlaps with computation; that of `tensor` does
not, because the next product waits for it; every micro-batch communicates again.
"""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh

from s2sjax.core.backend.device import compile_with, compiler_options
from s2sjax.data.batching import batch_plan
from s2sjax.plan.chips import Chip
from s2sjax.plan.jaxpr_costs import Kind, Work, count
from s2sjax.runs.train_run import make_init_fn
from s2sjax.tasks.task import Task
from s2sjax.training import jax_settings
from s2sjax.training import mesh as meshes
from s2sjax.training.device_memory import shard_bytes
from s2sjax.training.optimizers import optimizer
from s2sjax.training.train_state import make_train_step

ATTAINABLE = 0.8
"""fraction of the peak that products attain: a bare bf16 product has 797 of 989 TFLOP/s on an H200 (measured)"""
MOVED = 0.85
"""bytes moved to or from memory per byte that an operation writes: reads increase it, fusion reduces it.

The only calibrated constant: Transformer-base and -big on one H200, 27.4 and 48.3 ms (measured).
"""
LAUNCH = 5e-6
"""minimum time of a product in seconds: a step of an LSTM, 512 wide and 16 rows, takes 4.3 us (measured on an H200)"""
HOP = 5e-6
"""latency of a collective in seconds, for each doubling of its members"""
OVERLAP = 0.5
ACTIVATIONS_SPLIT = 0.5
USABLE = 0.75
"""usable fraction of a chip's memory: JAX reserves this much of a GPU by default; the rest is a margin for errors"""

State = Any


class Mesh(NamedTuple):
    data: int
    fsdp: int
    tensor: int
    context: int = 1

    @property
    def data_parallel_size(self) -> int:
        """The number of parts into which the rows are split."""
        return self.data * self.fsdp

    @property
    def size(self) -> int:
        return math.prod(self)

    @property
    def flags(self) -> str:
        """The options of `s2sjax train` that choose this mesh."""
        return " ".join(map("--train.mesh.{} {}".format, self._fields, self._shown))

    @property
    def _shown(self) -> tuple[int, ...]:
        return self if self.context > 1 else self[:3]

    def __str__(self) -> str:
        return " x ".join(map(str, self._shown))


class Held(NamedTuple):
    """Bytes on a device."""

    state: int
    """state between steps: parameters, optimizer, average"""
    params: int
    """parameters"""
    gathered: float
    """parameters gathered in a step from other devices of the `fsdp` axis"""
    at_once: float
    """gathered parameters that are present at the same time: one layer of a stack, and all parameters outside stacks"""


class Prediction(NamedTuple):
    mesh: Mesh
    rows: int
    """rows of the global batch"""
    held: int
    """bytes on a device between steps: parameters, optimizer, average"""
    memory: int
    """total bytes on a device in a step"""
    computing: float
    """seconds of computation in a step"""
    exchanging: float
    """seconds of communication in a step that do not overlap with computation"""
    tokens: float
    """tokens per second"""
    mfu: float
    """model FLOPs utilization: FLOP/s of the products of the model, divided by the peak of the devices"""

    @property
    def seconds(self) -> float:
        return self.computing + self.exchanging


class Program:
    """The train step of an experiment, with abstract arrays only."""

    def __init__(self, task: Task):
        self.task = task
        e = self.experiment = task.experiment
        self.rules = task.rules
        self.bucket = max(e.data.buckets, key=sum)
        self.step = make_train_step(task.loss(), optimizer(e.train), e.train, e.seed)
        self.state: State = jax.eval_shape(make_init_fn(task), jax.random.key(0))
        self.logits = task.output_bytes(self.bucket)
        self._held: dict[Mesh, Held] = {}
        self._temporary: dict[int, int] = {}
        self._work: list[tuple[int, Work]] = []

    @property
    def weights(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.state.params))

    @property
    def pairs(self) -> int:
        """The number of pairs in a batch of the largest bucket, as in training."""
        return batch_plan.Plan(np.array([self.bucket]), [self.bucket], self.experiment.data.batch_tokens, 0).rows[0]

    def rows(self, data_parallel_size: int) -> int:
        """The number of pairs in a batch, padded to a multiple of devices x micro-batches."""
        parts = data_parallel_size * self.experiment.train.grad_accum_steps
        return -(-self.pairs // parts) * parts

    def batch(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The columns of a batch that the step reads."""
        return self.task.abstract_batch(self.bucket, rows)

    # ----------------------------------------------------------------------------------- memory

    def held(self, mesh: Mesh) -> Held:
        """The bytes held on a device. Raises UserError if the mesh does not divide a dimension that a rule splits."""
        if mesh not in self._held:
            rules = self.rules if mesh.tensor > 1 else ()
            state = meshes.with_shardings(self.state, AbstractMesh(tuple(mesh), mesh._fields), rules)
            gathered = at_once = 0.0
            for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
                if "fsdp" in leaf.sharding.spec:
                    absent = shard_bytes(leaf) * (mesh.fsdp - 1)
                    gathered += absent
                    at_once += absent / (leaf.shape[0] if "/blocks/stack/" in meshes.path_of(path) else 1)
            self._held[mesh] = Held(shard_bytes(state), shard_bytes(state.params), gathered, at_once)
        return self._held[mesh]

    def compile(self, most: int) -> None:
        """Compiles a step of few rows and one of `most` rows, to measure their temporary memory on one device."""
        few = self.experiment.train.grad_accum_steps
        wanted = [rows for rows in (few, max(most, 2 * few)) if rows not in self._temporary]
        step = jax.jit(self.step, donate_argnums=0)
        # The program is never run: skip the optimization of machine code, which takes most of the time.
        quick = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}
        options = (found := compiler_options()) and found | quick

        def temporary(rows: int) -> int:
            analysis = compile_with(step.lower(self.state, self.batch(rows)), options).memory_analysis()
            assert analysis is not None, "this backend does not report the memory of its programs"
            return analysis.temp_size_in_bytes

        with ThreadPoolExecutor(2) as pool:  # XLA releases the GIL
            self._temporary |= zip(wanted, pool.map(jax_settings.inherit(temporary), wanted))

    def memory(self, mesh: Mesh, rows: int) -> int:
        """The bytes on a device in a step with `rows` rows per device: see the formula above."""
        points = sorted(self._temporary)
        row = (self._temporary[points[-1]] - self._temporary[points[0]]) / (points[-1] - points[0])
        fixed = max(0.0, self._temporary[points[0]] - row * points[0])
        held, whole = self.held(mesh), self.held(Mesh(1, 1, 1))
        logits = min(row, self.logits)
        share = 1 - ACTIVATIONS_SPLIT + ACTIVATIONS_SPLIT / mesh.tensor
        activations = rows / mesh.context * (logits + (row - logits) * share)
        temporary = fixed * held.params / whole.params + held.at_once + activations
        return round(held.state + temporary) + shard_bytes(self.batch(rows))

    # ------------------------------------------------------------------------------------- time

    def work(self, rows: float) -> Work:
        """The operations of a step of `rows` rows on one device, traced at two sizes and interpolated linearly."""
        if not self._work:
            few = self.experiment.train.grad_accum_steps
            self._work = [(rows, self._traced(rows)) for rows in (2 * few, 3 * few)]
        (r0, w0), (r1, w1) = self._work
        line = lambda a, b: a + (b - a) * (rows - r0) / (r1 - r0)
        return w0._replace(
            **{name: line(getattr(w0, name), getattr(w1, name)) for name in ("flops", "bytes", "narrow")}
        )

    def _traced(self, rows: int) -> Work:
        def is_split(path, leaf) -> bool:
            return any(re.search(pattern, meshes.path_of(path)) for pattern, _ in self.rules)

        state, batch = jax.tree.map(lambda leaf: None, (self.state, self.batch(rows)))
        state = state._replace(params=jax.tree_util.tree_map_with_path(is_split, self.state.params))
        split = jax.tree.leaves((state, batch), is_leaf=lambda leaf: leaf is None)
        return count(jax.make_jaxpr(self.step)(self.state, self.batch(rows)), split)

    def computing(self, mesh: Mesh, chip: Chip, rows: float) -> float:
        """Seconds of computation in a step with `rows` rows per device."""
        work, fixed = self.work(rows), self.work(0)
        products = work.kind != Kind.OTHER
        amount = lambda kind: (work.flops * work.times)[work.kind == kind].sum()
        split = amount(Kind.SPLIT) / max(1.0, amount(Kind.SPLIT) + amount(Kind.WHOLE))
        shares = {Kind.OTHER: ACTIVATIONS_SPLIT, Kind.SPLIT: 1.0, Kind.HEADS: 1.0, Kind.GRADIENT: split}
        share = np.array([shares.get(kind, 0.0) for kind in Kind])[work.kind]
        share = 1 - share + share / mesh.tensor

        peak = np.where(work.float32, chip.float32, chip.bf16) * ATTAINABLE
        each = np.maximum(work.flops * share / peak, work.bytes * share / chip.bandwidth)
        multiplying = (np.maximum(each, LAUNCH) * work.times)[products].sum()
        grown = (work.bytes - fixed.bytes) * share
        moved = MOVED * (grown * work.times)[~products].sum()
        # The update does not grow with the rows: one fused pass reads and writes the state; the gradient is written
        # once and read twice, for its norm and for the update. Each device updates its own shards.
        held = self.held(mesh)
        return multiplying + (moved + 2 * held.state + 3 * held.params) / chip.bandwidth

    def exchanging(self, mesh: Mesh, chip: Chip, rows: int) -> tuple[float, float]:
        """Seconds of communication over data and fsdp, and over tensor."""
        data, fsdp, tensor, _ = mesh
        held = self.held(mesh)
        often = self.experiment.train.grad_accum_steps
        over = lambda count, stride, size, calls: (
            size / chip.axis(stride, count) + calls * HOP * math.log2(count) if count > 1 else 0.0
        )
        seconds = often * over(data, fsdp * tensor, 2 * (data - 1) / data * held.params, 1)
        seconds += often * over(fsdp, tensor, 3 * held.gathered, 3)
        work = self.work(rows)
        splits = work.kind == Kind.SPLIT
        reduced = (work.narrow * work.times)[splits].sum() / 2
        return seconds, over(tensor, 1, 2 * (tensor - 1) / tensor * reduced, work.times[splits].sum() / 2)

    # ------------------------------------------------------------------------------ prediction

    def predict(self, mesh: Mesh, chip: Chip) -> Prediction:
        rows = self.rows(mesh.data_parallel_size)
        own = rows // mesh.data_parallel_size
        computing = self.computing(mesh, chip, own)
        hidden, waited = self.exchanging(mesh, chip, own)
        exchanging = hidden - min(OVERLAP * hidden, computing) + waited
        seconds = computing + exchanging
        peak = chip.float32 if self.experiment.train.dtype == "float32" else chip.bf16
        return Prediction(
            mesh, rows, self.held(mesh).state, self.memory(mesh, own), computing, exchanging,
            tokens=self.pairs * sum(self.bucket) / seconds,
            mfu=self.work(self.pairs).products / (seconds * mesh.size * peak),
        )  # fmt: skip
