"""Memory, time and MFU of an experiment's training step on a mesh of devices that are not here.

Memory of a device is exact for what it holds between steps: the shapes of the state and the table of shardings say it.
What a step needs besides is asked of the compiler: the step is compiled (not run) on the one device that is here, with
few and with many rows, and what lies between is a line: a fixed part + a part a row. On a mesh

    temporary = fixed * (held / whole) + gathered + row * rows * (1 - s + s / tensor)

for the gradients and updates of the fixed part lie where the parameters lie; with fsdp a layer's parameters are whole
while they are used; and a part s = 1/2 of a row's activations, without its logits, is split over `tensor` (the residual
stream is not). All of it is checked against programs compiled for eight fake devices. A CPU's compiler keeps bfloat16
in four bytes nearly everywhere, so that a row of bfloat16 is predicted there as one of float32 would be.

Time is a roofline, operation by operation (work.py says why it is not XLA's cost analysis):

    product      max(FLOPs / (ATTAINABLE * peak), bytes / bandwidth, LAUNCH)
    all else     MOVED * bytes written / bandwidth
    the update   (twice the state + three times the gradient) / bandwidth

and what each axis exchanges, over the slowest link on its way:

    data      a ring's all-reduce of the gradients held       2 (n - 1) / n bytes
    fsdp      parameters gathered for forward and backward, gradients scattered       3 (n - 1) / n bytes
    tensor    activations all-reduced, Megatron's two a block forward and two backward (Shoeybi et al. 2019): half of
              the products with a matrix that is split

Assumed: OVERLAP of what data and fsdp exchange hides behind computing; nothing of what `tensor` does, for the next
product waits for it; every micro-batch exchanges anew.
"""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from s2sjax import config, models
from s2sjax.core import sampled
from s2sjax.data import batches
from s2sjax.models import objectives
from s2sjax.models.contract import EncoderDecoder
from s2sjax.plan.chips import Chip
from s2sjax.plan.work import Kind, Work, count
from s2sjax.run import beginning
from s2sjax.train import mesh as meshes
from s2sjax.train.loop import compiler_options
from s2sjax.train.memory import shard_bytes
from s2sjax.train.schedules import optimizer
from s2sjax.train.state import make_train_step

ATTAINABLE = 0.8
"""of the peak: a bare bf16 product reaches 797 of 989 TFLOP/s on an H200 (measured)"""
MOVED = 1.2
"""bytes that travel to or from memory for each that an operation writes: reading adds to them, fusion takes away.

The one figure that is calibrated: Transformer-base and -big on one H200, 39.8 and 58.5 ms (measured).
"""
LAUNCH = 5e-6
"""seconds that no product falls below: a step of an LSTM, 512 wide and 16 rows, takes 4.3 us (measured on an H200)"""
HOP = 5e-6
"""seconds before a collective moves anything, for each doubling of its members"""
OVERLAP = 0.5
ACTIVATIONS_SPLIT = 0.5
USABLE = 0.75
"""of a chip's memory: what JAX takes of a GPU if nothing else is said, and room for what this page does not know"""

State = Any


class Mesh(NamedTuple):
    data: int
    fsdp: int
    tensor: int

    @property
    def data_parallel_size(self) -> int:
        """parts that the rows are cut into"""
        return self.data * self.fsdp

    @property
    def size(self) -> int:
        return self.data * self.fsdp * self.tensor

    def abstract(self) -> AbstractMesh:
        return AbstractMesh(tuple(self), meshes.AXES)


class Held(NamedTuple):
    """Bytes of a device."""

    state: int
    """between steps: parameters, optimizer, average"""
    params: int
    """of these the parameters"""
    gathered: float
    """of parameters that lie with the others of its `fsdp` axis, and are fetched in a step"""
    at_once: float
    """of these as many as are there at one time: of layers in a stack one, of all else all"""


class Prediction(NamedTuple):
    mesh: Mesh
    rows: int
    """of the global batch"""
    held: int
    """bytes of a device between steps: parameters, optimizer, average"""
    memory: int
    """bytes of a device in a step, all together"""
    computing: float
    """seconds of a step"""
    exchanging: float
    """seconds of a step that do not hide behind computing"""
    tokens: float
    """a second"""
    mfu: float
    """the FLOPs of the model's products, of what the devices could do at their peak"""

    @property
    def seconds(self) -> float:
        return self.computing + self.exchanging


class Program:
    """An experiment's training step, without any array."""

    def __init__(self, experiment: config.Experiment, module: EncoderDecoder):
        e = self.experiment = experiment
        self.rules = models.tensor_rules(e.model)
        self.bucket = max(e.data.buckets, key=sum)
        self.step = make_train_step(_objective(module, e), optimizer(e.train), e.train, e.seed)
        self.state: State = jax.eval_shape(beginning(module, e.train), jax.random.key(0))
        self.logits = 2 * 4 * self.bucket[1] * module.target_size  # bytes a row: float32, and their gradient
        self._held: dict[Mesh, Held] = {}
        self._temporary: dict[int, int] = {}
        self._work: list[tuple[int, Work]] = []

    @property
    def weights(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.state.params))

    @property
    def pairs(self) -> int:
        """Of a batch of the largest bucket, as training would plan it."""
        return batches.Plan(np.array([self.bucket]), [self.bucket], self.experiment.data.tokens, 0).rows[0]

    def rows(self, ways: int) -> int:
        """The same with rows of padding, so that they divide among devices and micro-batches."""
        parts = ways * self.experiment.train.micro_batches
        return -(-self.pairs // parts) * parts

    def batch(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """What the step looks at of a batch."""
        S, T = self.bucket
        shapes: dict[str, tuple[int, ...]] = {"source": (rows, S), "target": (rows, T)}
        if self.experiment.data.packing:
            shapes |= {"source_segments": (rows, S), "target_segments": (rows, T)}
        if self.experiment.train.softmax.subset:
            shapes["part"] = (rows,)
        return {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}

    # ----------------------------------------------------------------------------------- memory

    def held(self, mesh: Mesh) -> Held:
        """Refused where the mesh does not divide what a rule splits."""
        if mesh not in self._held:
            rules = self.rules if mesh.tensor > 1 else ()
            state = meshes.with_shardings(self.state, mesh.abstract(), rules)

            def missing(path, leaf) -> tuple[int, float]:
                absent = shard_bytes(leaf) * (mesh.fsdp - 1) if "fsdp" in leaf.sharding.spec else 0
                layers = leaf.shape[0] if "/blocks/stack/" in meshes.path_of(path) else 1
                return absent, absent / layers

            absent = jax.tree_util.tree_map_with_path(missing, state.params)
            gathered, at_once = np.array(jax.tree.leaves(absent)).reshape(-1, 2).sum(0).tolist()
            self._held[mesh] = Held(shard_bytes(state), shard_bytes(state.params), gathered, at_once)
        return self._held[mesh]

    def compile(self, most: int) -> None:
        """Asks the compiler what a step of few rows and one of `most` rows need besides the state, on one device."""
        few = self.experiment.train.micro_batches
        wanted = [rows for rows in (few, max(most, 2 * few)) if rows not in self._temporary]
        step = jax.jit(self.step, donate_argnums=0)
        # How good the machine code of a program that is never run is, matters not, and takes most of the time.
        quick = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}
        options = compiler_options()
        options = options and options | quick

        def temporary(rows: int) -> int:
            analysis = step.lower(self.state, self.batch(rows)).compile(compiler_options=options).memory_analysis()
            assert analysis is not None, "this backend does not tell what its programs need"
            return analysis.temp_size_in_bytes

        with ThreadPoolExecutor(2) as pool:  # most of the work is outside Python
            self._temporary |= zip(wanted, pool.map(temporary, wanted))

    def memory(self, mesh: Mesh, rows: int) -> int:
        """Bytes of a device in a step of so many rows of its own: see above."""
        points = sorted(self._temporary)
        row = (self._temporary[points[-1]] - self._temporary[points[0]]) / (points[-1] - points[0])
        fixed = max(0.0, self._temporary[points[0]] - row * points[0])
        held, whole = self.held(mesh), self.held(Mesh(1, 1, 1))
        logits = min(row, self.logits)
        share = 1 - ACTIVATIONS_SPLIT + ACTIVATIONS_SPLIT / mesh.tensor
        temporary = fixed * held.params / whole.params + held.at_once + rows * (logits + (row - logits) * share)
        return round(held.state + temporary) + shard_bytes(self.batch(rows))

    # ------------------------------------------------------------------------------------- time

    def work(self, rows: float) -> Work:
        """The operations of a step of so many rows, on one device: traced at two sizes, and a line through them."""
        if not self._work:
            few = self.experiment.train.micro_batches
            self._work = [(rows, self._traced(rows)) for rows in (2 * few, 3 * few)]
        (r0, w0), (r1, w1) = self._work
        line = lambda a, b: a + (b - a) * (rows - r0) / (r1 - r0)
        return w0._replace(
            **{name: line(getattr(w0, name), getattr(w1, name)) for name in ("flops", "bytes", "narrow")}
        )

    def _traced(self, rows: int) -> Work:
        def owner(path, leaf) -> bool:
            return any(re.search(pattern, meshes.path_of(path)) for pattern, _ in self.rules)

        nothing = jax.tree.map(lambda leaf: None, (self.state, self.batch(rows)))
        params = jax.tree_util.tree_map_with_path(owner, self.state.params)
        owners = (nothing[0]._replace(params=params), nothing[1])
        flat = jax.tree.leaves(owners, is_leaf=lambda leaf: leaf is None)
        return count(jax.make_jaxpr(self.step)(self.state, self.batch(rows)), flat)

    def computing(self, mesh: Mesh, chip: Chip, rows: float) -> float:
        """Seconds, with so many rows a device."""
        work, fixed = self.work(rows), self.work(0)
        products = work.kind != Kind.OTHER
        amount = lambda kind: (work.flops * work.times)[work.kind == kind].sum()
        split = amount(Kind.SPLIT) / max(1.0, amount(Kind.SPLIT) + amount(Kind.WHOLE))
        shares = {
            Kind.OTHER: ACTIVATIONS_SPLIT,
            Kind.WHOLE: 0.0,
            Kind.SPLIT: 1.0,
            Kind.HEADS: 1.0,
            Kind.GRADIENT: split,
        }
        share = np.array([shares[kind] for kind in Kind])[work.kind]
        share = 1 - share + share / mesh.tensor

        peak = np.where(work.float32, chip.float32, chip.bf16) * ATTAINABLE
        each = np.maximum(work.flops * share / peak, work.bytes * share / chip.bandwidth)
        multiplying = (np.maximum(each, LAUNCH) * work.times)[products].sum()
        grown = (work.bytes - fixed.bytes) * share
        moved = MOVED * (grown * work.times)[~products].sum()
        # What does not grow with the rows is the update: one fused pass that reads and writes the state, and the
        # gradient, which is written, and read for its norm and for the update. Each device updates what it holds.
        held = self.held(mesh)
        return multiplying + (moved + 2 * held.state + 3 * held.params) / chip.bandwidth

    def exchanging(self, mesh: Mesh, chip: Chip, rows: int) -> tuple[float, float]:
        """Seconds that data and fsdp exchange for, and that tensor does."""
        data, fsdp, tensor = mesh
        held = self.held(mesh)
        often = self.experiment.train.micro_batches
        over = lambda ways, stride, size, calls: (
            size / chip.axis(stride, ways) + calls * HOP * math.log2(ways) if ways > 1 else 0.0
        )
        seconds = often * over(data, fsdp * tensor, 2 * (data - 1) / data * held.params, 1)
        seconds += often * over(fsdp, tensor, 3 * held.gathered, 3)
        work = self.work(rows)
        splits = work.kind == Kind.SPLIT
        reduced = (work.narrow * work.times)[splits].sum() / 2
        return seconds, over(tensor, 1, 2 * (tensor - 1) / tensor * reduced, work.times[splits].sum() / 2)

    # -------------------------------------------------------------------------------- together

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


def _objective(module: EncoderDecoder, experiment: config.Experiment):
    """The loss that the experiment asks for; which words it draws or takes matters not, only how many."""
    softmax = experiment.train.softmax
    proposal = sampled.log_uniform(module.target_size) if softmax.samples else None
    words = jnp.zeros((1, softmax.subset), jnp.int32) if softmax.subset else None
    return objectives.choose(module, experiment.train, proposal, words)
