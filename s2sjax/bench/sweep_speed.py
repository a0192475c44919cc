"""Training steps of one run, and of the members of a sweep together, alternating in one process on the first device.

Alone is the program that `s2sjax train` runs, together the one that `s2sjax sweep` runs: each member has its own state,
batch, seed and learning rate. A speedup is that of each training: with M members, M times the time of a step alone,
divided by that of a step together.

Utilisation is the rate of the products, padding included, relative to that of a large product in the same run. Tokens
are those of source and target, without padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import config
from s2sjax.bench import peers, result_files, timing, train_speed
from s2sjax.bench.result_files import Column, ratio
from s2sjax.config import Data, Luong, RNNsearch, Train, Transformer
from s2sjax.core.backend.device import compiler_options
from s2sjax.core.special_tokens import PAD
from s2sjax.plan import jaxpr_costs
from s2sjax.runs import train_run
from s2sjax.tasks.translation import Translation, TranslationTask
from s2sjax.training import mesh as meshes
from s2sjax.training import population
from s2sjax.training.compiled_steps import Programs
from s2sjax.training.train_state import TrainStep


class Case(NamedTuple):
    """A model and its batches.

    model, train, bucket, rows: as in an experiment; each row has a source and a target of up to bucket[0] and bucket[1]
    tokens. sizes: entries of the vocabularies. members: sizes of the sweeps.
    """

    model: config.ModelConfig
    train: config.Train
    sizes: tuple[int, int]
    bucket: tuple[int, int]
    rows: int
    members: tuple[int, ...]


# As in experiments/g2p.py, with the third of its five buckets, and in experiments/reverse.py.
_G2P = Case(
    RNNsearch(width=128, embedding_size=48, attention_size=64, dropout=0.0),
    Train(learning_rate=4e-3, schedule="linear", label_smoothing=0.05, warmup_steps=100), (33, 43), (10, 9), 53, (2, 4),
)  # fmt: skip
_REVERSE = Case(
    Luong(width=64, embedding_size=32, layers=1, bidirectional=True, dropout=0.0),
    Train(learning_rate=5e-3, warmup_steps=50), (30, 30), (11, 11), 64, (2, 4),
)  # fmt: skip
_HALF = Train(dtype="bfloat16", label_smoothing=0.1)
SIZES = {
    "small": {
        "reverse (Luong 64), 64 x 11": _REVERSE,
        "g2p (RNNsearch 128), 53 x 10": _G2P,
        "Transformer 64, 2+2, 64 x 16": Case(
            Transformer(width=64, heads=4, feedforward=256, encoder_layers=2, decoder_layers=2, dropout=0.1),
            Train(label_smoothing=0.1), (1000, 1000), (16, 16), 64, (2, 4),
        ),
    },
    "base": {
        "g2p (RNNsearch 128), 53 x 10": _G2P._replace(members=(1, 4, 16)),
        "Transformer 256, 3+3, 128 x 32": Case(
            Transformer(width=256, heads=4, feedforward=1024, encoder_layers=3, decoder_layers=3, dropout=0.1),
            _HALF, (8000, 8000), (32, 32), 128, (1, 4, 8),
        ),
        "RNNsearch 512, 128 x 32": Case(
            RNNsearch(width=512, embedding_size=256, dropout=0.1), _HALF, (8000, 8000), (32, 32), 128, (4,)
        ),
    },
}  # fmt: skip
COLUMNS = (
    Column("members", "", 20, lambda members: f"  {'alone' if members == 0 else f'{members} together'}"),
    *train_speed.COLUMNS[1:-1],
    Column("ratio", "each training is faster by", 28, ratio),
)


def bench(
    size: str | None = None, rounds: int = 5, only: Sequence[str] = (), out: Path | None = None,
    members: Sequence[int] = (), dtype: str | None = None,
) -> None:  # fmt: skip
    """Prints the rows of each model and writes sweep.csv and sweep.json. Sizes that are not given suit the device."""
    size = size or train_speed.default_size()
    cases = {
        name: case._replace(
            train=config.replace(case.train, dtype=dtype or case.train.dtype), members=tuple(members) or case.members
        )
        for name, case in peers.select(SIZES[size], only).items()
    }
    environment = result_files.environment()
    if out:
        result_files.open_folder(out)
    print(f"{size}: training steps alone and in a sweep, {result_files.describe(environment)}", flush=True)
    remarks = peers.remarks(size)
    for remark in remarks:
        print(remark)
    ceilings: dict[str, timing.Ceilings] = {}
    rows: list[dict[str, Any]] = []
    print(result_files.heading(COLUMNS), flush=True)
    for name, case in cases.items():
        kind = case.train.dtype
        print(f"{name}, {kind}", flush=True)
        if kind not in ceilings:
            ceilings[kind] = timing.measure_ceilings(jnp.dtype(kind))
        found, reasons = measure(case, rounds, ceilings[kind].flops)
        peers.free()
        rows += [{"size": size, "model": name, **row} for row in found]
        result_files.show(COLUMNS, found, reasons)
        if out:  # after each model, so that an interrupted run keeps its measurements
            rates = {name: each._asdict() for name, each in ceilings.items()}
            written = result_files.write(
                out, "sweep", rows, environment=environment, remarks=remarks, ceilings=rates
            )  # fmt: skip
    if out:
        print("wrote " + ", ".join(map(str, written)))


def measure(case: Case, rounds: int, ceiling: float) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of a model, alone first, and the sizes that do not fit in memory, with the reason."""
    trainers: dict[int, Trainer] = {}
    reasons: dict[str, str] = {}
    for members in (0, *case.members):
        try:
            trainers[members] = Trainer(case, members)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or not members:
                raise
            reasons[f"{members} together"] = "it does not fit in the memory of this device"
    once = {
        members: partial(trainer, max(1, min(50, round(train_speed.ROUND / timing.seconds(trainer)))))
        for members, trainer in trainers.items()
    }
    spans: dict[int, list[float]] = {members: [] for members in trainers}
    for _ in range(rounds):
        for members, steps in once.items():
            spans[members].append(peers.seconds(steps) / steps.args[0])
    return list(_rows(case, trainers, spans, ceiling)), reasons


def _rows(
    case: Case, trainers: dict[int, Trainer], spans: dict[int, list[float]], ceiling: float
) -> Iterator[dict[str, Any]]:
    flops = count_flops(case)
    for members, trainer in trainers.items():
        time, count = timing.Timing.of(spans[members]), members or 1
        one_by_one = [count * seconds for seconds in spans[0]]
        yield {
            "members": members, "rows": case.rows, "source": case.bucket[0], "target": case.bucket[1],
            "dtype": case.train.dtype, **time.fields(), "tokens_per_second": trainer.tokens / time.median,
            "flops": count * flops, "utilisation": count * flops / time.median / ceiling,
            "memory": trainer.memory, "compile_seconds": trainer.compile_seconds,
            "ratio": peers.ratio(one_by_one, spans[members]) if members else None,
        }  # fmt: skip


# ------------------------------------------------------------------------------------ programs


class Trainer(train_speed.Steps):
    """The program of a run (members 0) or of a sweep, on the first device, with states and one batch for each."""

    def __init__(self, case: Case, members: int):
        tasks = [make_task(case, member) for member in range(members or 1)]
        step, arguments = make_step(tasks)
        batches = [make_batch(case, member) for member in range(members or 1)]
        self.tokens = sum(int((ids != PAD).sum()) for batch in batches for ids in batch.values())
        alone, init = meshes.make_mesh(config.Mesh(), jax.devices()[:1]), train_run.make_init_fn(tasks[0])
        template = meshes.abstract_state(init, *train_run.placement(tasks[0], alone))
        # Not under vmap: QR, which makes orthogonal matrices, may wait forever on a CPU if it is batched.
        states = [meshes.init_sharded(init, *train_run.placement(task, alone)) for task in tasks]
        if members:
            mesh = meshes.population_mesh(config.Mesh(), members, jax.devices()[:1])
            template = meshes.stacked(template, mesh, members)
            programs = population.programs_of(step, template, arguments, mesh, False, compiler_options())
            state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
            batch = {name: np.stack([each[name] for each in batches]) for name in batches[0]}
            spec = population.batch_spec(shared=False)
        else:
            mesh, state, batch, spec = alone, states[0], batches[0], meshes.ROWS
            programs = Programs(step, template, mesh, compiler_options(), arguments[0])
        state = jax.device_put(state, jax.tree.map(lambda leaf: leaf.sharding, template))
        super().__init__(programs, state, meshes.put(batch, mesh, spec))


def make_task(case: Case, member: int = 0) -> TranslationTask:
    """The task of a member, which has its own seed and learning rate. It has no data."""
    train = config.replace(case.train, learning_rate=case.train.learning_rate * 0.9**member)
    data = Data(config.Synthetic("copy"), buckets=(case.bucket,), batch_tokens=case.rows * sum(case.bucket))
    search = config.Search(max_length=case.bucket[1])
    task = Translation(name="bench", data=data, model=case.model, train=train, search=search, seed=member).task()
    return task.replace(assets=task.assumed_assets(case.sizes))  # type: ignore[return-value]


def make_step(tasks: Sequence[TranslationTask]) -> tuple[TrainStep, list[dict[str, np.ndarray]]]:
    """The train step that the tasks share, and the numbers of each."""
    numbers = [config.numbers(task.experiment) for task in tasks]
    values = {name: tuple(each[name] for each in numbers) for name in numbers[0]}
    no_columns: Any = None  # only sampled losses read them
    step = train_run.make_step(tasks[0], no_columns, values)
    return step, [{name: config.argument(name, value) for name, value in each.items()} for each in numbers]


def make_batch(case: Case, member: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(member)
    sides = zip(("source", "target"), case.sizes, case.bucket)
    return {side: train_speed.draw(rng, size, case.rows, length) for side, size, length in sides}


def count_flops(case: Case) -> float:
    """The FLOPs of the products of one step alone. They are counted in float32: see train_speed.count_flops."""
    task = make_task(case._replace(train=config.replace(case.train, dtype="float32")))
    step, (numbers,) = make_step([task])
    state = jax.eval_shape(train_run.make_init_fn(task), jax.random.key(0))
    program = jax.make_jaxpr(step)(state, task.abstract_batch(case.bucket, case.rows), numbers)
    return jaxpr_costs.count(program, [None] * len(program.jaxpr.invars)).products
