"""Training steps of s2sjax and of the same models in PyTorch, alternating in one run, on the device that JAX uses.

Each library does the same work: one batch, dropout, label smoothing, clipping and Adam, in the same type. PyTorch runs
in every mode of torch_peers.py, and s2sjax is compared with the best one.

FLOPs are those of the products, counted in the jaxpr of the step (plan/jaxpr_costs.py), including padding; utilisation
is their rate relative to that of a large product, measured in the same run. Tokens are those of source and target,
without padding.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import config, models
from s2sjax.bench import peers, pretrained_models, result_files, timing
from s2sjax.bench.result_files import Column, milliseconds, percent, ratio, si
from s2sjax.config import Luong, RNNsearch, Transformer
from s2sjax.core.backend.device import compiler_options, on_cpu
from s2sjax.core.special_tokens import PAD
from s2sjax.files import readable_size
from s2sjax.models import objectives
from s2sjax.plan import jaxpr_costs
from s2sjax.training import mesh as meshes
from s2sjax.training.loop import Programs
from s2sjax.training.optimizers import optimizer
from s2sjax.training.run_log import Log
from s2sjax.training.train_state import TrainState, create, make_train_step


class Case(NamedTuple):
    """A model and the shape of its batch."""

    model: config.ModelConfig
    vocabulary: int
    rows: int
    length: int
    pretrained: bool = False
    """whether the peer is the model of `transformers`, and not that of torch_peers.py"""


class Size(NamedTuple):
    """The cases of one size of the benchmark."""

    train: config.Train
    cases: dict[str, Case]


_SMALL = {
    "g2p (RNNsearch 128), 64 x 10": Case(RNNsearch(width=128, embedding_size=64, dropout=0.0), 43, 64, 10),
    "Luong 256, 64 x 32": Case(
        Luong(width=256, embedding_size=256, layers=1, bidirectional=True, input_feeding=False, dropout=0.0),
        8000, 64, 32,
    ),
    "RNNsearch 256, 64 x 32": Case(RNNsearch(width=256, embedding_size=256, dropout=0.0), 8000, 64, 32),
    "Transformer 256, 3+3, 64 x 32": Case(
        Transformer(width=256, heads=4, feedforward=1024, encoder_layers=3, decoder_layers=3, dropout=0.0), 8000, 64, 32
    ),
}  # fmt: skip
_BASE = {
    "Transformer-base, 384 x 64": Case(Transformer(dropout=0.1), 32_000, 384, 64),
    "Transformer-base, 96 x 256": Case(Transformer(dropout=0.1), 32_000, 96, 256),
    "Transformer-big, 128 x 128": Case(
        Transformer(width=1024, heads=16, feedforward=4096, dropout=0.1), 32_000, 128, 128
    ),
    "Luong 4 x 1024, 256 x 64": Case(
        Luong(width=1024, embedding_size=1024, layers=4, input_feeding=False, dropout=0.2), 32_000, 256, 64
    ),
    "RNNsearch 1024, 256 x 64": Case(RNNsearch(width=1024, embedding_size=512, dropout=0.1), 32_000, 256, 64),
}
SIZES = {
    "small": Size(config.Train(optimizer="adam"), _SMALL),
    "base": Size(config.Train(optimizer="adam", dtype="bfloat16", label_smoothing=0.1), _BASE),
}
PRETRAINED = {
    name: Size(SIZES["base"].train, {f"{name}, {rows} x 128": Case(model, vocabulary, rows, 128, True)})
    for name, (model, vocabulary) in pretrained_models.MODELS.items()
    for rows in [32 if vocabulary > 100_000 else 64]  # all modes of PyTorch must fit in one GPU
}
"""fine-tuning steps of pretrained models; float32 on a CPU"""

ROUND = 0.3
"""duration of a round in seconds; the device is idle before and after it"""
COLUMNS = (
    Column("library", "", 32, "  {}".format),
    Column("seconds", "ms/step", 10, milliseconds),
    Column("spread", "spread", 8, percent),
    Column("tokens_per_second", "tokens/s", 10, si),
    Column("utilisation", "MFU", 7, percent),
    Column("memory", "memory", 10, readable_size),
    Column("compile_seconds", "compile s", 11, "{:.1f}".format),
    Column("ratio", "s2sjax is faster by", 21, ratio),
)


def bench(
    size: str | None = None, rounds: int = 5, only: Sequence[str] = (), out: Path | None = None,
    model: str | None = None,
) -> None:  # fmt: skip
    """Prints the rows of each model and writes train.csv and train.json. The default size depends on the device.

    model: a name in PRETRAINED instead of a size.
    """
    size = model or size or default_size()
    s = {**SIZES, **PRETRAINED}[size]
    if model and on_cpu():
        s = s._replace(train=config.replace(s.train, dtype="float32"))
    cases = peers.select(s.cases, only)
    environment = result_files.environment()
    if out:
        result_files.open_folder(out)
    print(f"{size}: training steps in {s.train.dtype}, {result_files.describe(environment)}", flush=True)
    remarks = peers.remarks(size)
    for remark in remarks:
        print(remark)
    ceilings = timing.measure_ceilings(jnp.dtype(s.train.dtype))
    print(
        f"a large matrix product reaches {si(ceilings.flops, 'FLOP/s')}: MFU is relative to that",
        flush=True,
    )
    if why := _missing():
        print(f"PyTorch is left out: {why}")
    print(result_files.heading(COLUMNS), flush=True)
    rows: list[dict[str, Any]] = []
    for name, case in cases.items():
        print(name, flush=True)
        try:
            found, reasons = _measure(case, s.train, rounds, ceilings.flops, {} if why else _pytorch())
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            found, reasons = [], {"s2sjax": "it does not fit in the memory of this device"}
        peers.free()
        rows += [{"size": size, "model": name, **row} for row in found]
        result_files.show(COLUMNS, found, reasons)
        if len(found) > 1:
            best = min(found[1:], key=lambda row: row["seconds"])
            print(f"  {best['ratio']:.2f} times as fast as the best of them, {best['library']}", flush=True)
        if out:  # after each model, so that an interrupted run keeps its measurements
            facts = {"environment": environment, "remarks": remarks, "ceilings": ceilings._asdict()}
            written = result_files.write(out, "train", rows, **facts)
    if out:
        print("wrote " + ", ".join(map(str, written)))


def default_size() -> str:
    return "small" if on_cpu() else "base"


Builder = Callable[[Case, config.Train, np.ndarray, np.ndarray], peers.Once]
"""function that makes a trainer: trainer(steps) runs it; it has compile_seconds or None, and memory in bytes or None"""


def _missing() -> str:
    """The reason why PyTorch cannot run here, in one line, or an empty string."""
    try:
        _pytorch()
    except Exception as error:
        return peers.reason(error)
    return ""


def _pytorch() -> dict[str, Builder]:
    """Builders of the modes of PyTorch on this device, for one model."""
    from s2sjax.bench import torch_peers

    device = peers.torch_device()
    built: dict[bool, Any] = {}

    def build(mode: Any, case: Case, train: config.Train, source: np.ndarray, target: np.ndarray) -> Any:
        if not mode.graph:
            built[mode.compiled] = torch_peers.Trainer(case, source, target, train, device, mode)
            return built[mode.compiled]
        if mode.compiled not in built:
            raise RuntimeError("the same mode without a CUDA graph does not run")
        return torch_peers.Graph(built[mode.compiled])

    return {name: partial(build, mode) for name, mode in torch_peers.MODES[device].items()}


def _measure(
    case: Case, train: config.Train, rounds: int, ceiling: float, others: Mapping[str, Builder]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The row of each library, ours first, and the reasons why libraries were left out."""
    source, target = make_batch(case)
    ours = Trainer(case.model, case.vocabulary, source, target, train)
    steps = max(1, min(50, round(ROUND / timing.seconds(ours))))
    builders = {name: partial(build, case, train, source, target) for name, build in others.items()}
    timed = lambda once: peers.seconds(partial(once, steps)) / steps
    spans, reasons, trainers = peers.alternate(ours, builders, rounds, timed)
    tokens, flops = int((source != PAD).sum() + (target != PAD).sum()), count_flops(case, train)
    rows = []
    for name, each in spans.items():
        time = timing.Timing.of(each)
        rows.append({
            "library": name, "rows": case.rows, "length": case.length, "dtype": train.dtype, **time.fields(),
            "tokens_per_second": tokens / time.median, "flops": flops, "utilisation": flops / time.median / ceiling,
            "memory": trainers[name].memory, "compile_seconds": trainers[name].compile_seconds,
            "ratio": None if name == "s2sjax" else peers.ratio(each, spans["s2sjax"]),
        })  # fmt: skip
    return rows, reasons


def make_batch(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Draws the sources and targets of a batch."""
    rng = np.random.default_rng(0)
    return draw(rng, case.vocabulary, case.rows, case.length), draw(rng, case.vocabulary, case.rows, case.length)


def draw(rng: np.random.Generator, vocabulary: int, rows: int, length: int) -> np.ndarray:
    """Draws random ids, int32 [rows, length]. Each row ends at a random position of its second half."""
    ids = rng.integers(4, vocabulary, (rows, length)).astype(np.int32)
    ends = rng.integers(length // 2, length + 1, rows)
    ids[np.arange(length) >= ends[:, None]] = PAD
    return ids


# ----------------------------------------------------------------------------------------- ours


class Steps:
    """Training steps on one batch: steps(n) runs n of them. `memory` is in bytes, or None."""

    def __init__(self, programs: Programs, state: TrainState, batch: Any):
        self._programs, self._state, self._batch = programs, state, batch
        self._log = _Silent(None, 1, 1)
        with timing.without_cache():
            self()
        self.compile_seconds = sum(programs.seconds.values())
        self.memory = max((memory.total for memory in programs.memory.values()), default=None)

    def __call__(self, steps: int = 1) -> None:
        """Runs steps. Waits for the device only after the last one."""
        for _ in range(steps):
            self._state, _ = self._programs(self._state, self._batch, self._log)
        jax.block_until_ready(self._state)


class Trainer(Steps):
    """The program that `s2sjax train` runs, on the first device, with a state and one batch."""

    def __init__(
        self, model: config.ModelConfig, vocabulary: int, source: np.ndarray, target: np.ndarray, train: config.Train
    ):
        init, step = _functions(model, vocabulary, train)
        mesh = meshes.make_mesh(config.Mesh(), jax.devices()[:1])
        key = jax.random.key(0)
        programs = Programs(step, meshes.abstract_state(init, mesh, (), key), mesh, compiler_options())
        batch = meshes.global_batch({"source": source, "target": target}, mesh)
        super().__init__(programs, meshes.init_sharded(init, mesh, (), key), batch)


class _Silent(Log):
    def print(self, text: str) -> None:
        """Prints nothing: compilation has its own column."""


def _functions(model: config.ModelConfig, vocabulary: int, train: config.Train) -> tuple[Callable, Callable]:
    """Returns init(key) -> state, and the train step."""
    module = models.build(model, vocabulary, vocabulary, train.dtype, remat_policy=train.remat)
    update, one = optimizer(train), np.ones((1, 1), np.int32)
    init = lambda key: create(module.init(key, one, one)["params"], update)
    return init, make_train_step(objectives.choose(module, train), update, train, seed=0)


def count_flops(case: Case, train: config.Train) -> float:
    """The FLOPs of the products of one step.

    They are counted in float32, where attention consists of products; in bfloat16 on a GPU it is an opaque call of
    cuDNN.
    """
    init, step = _functions(case.model, case.vocabulary, config.replace(train, dtype="float32"))
    ids = jax.ShapeDtypeStruct((case.rows, case.length), np.int32)
    state = jax.eval_shape(init, jax.random.key(0))
    program = jax.make_jaxpr(step)(state, {"source": ids, "target": ids})
    return jaxpr_costs.count(program, [None] * len(program.jaxpr.invars)).products
