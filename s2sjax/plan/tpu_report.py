"""Report on an experiment compiled for slices of TPU pods, compared with the prediction."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from s2sjax import config
from s2sjax.config import replace
from s2sjax.errors import UserError
from s2sjax.files import readable_size
from s2sjax.plan import chips, recorded_errors, tpu_slices
from s2sjax.plan.cost_model import Mesh, Program
from s2sjax.plan.mesh_report import aligned, task_with_assets
from s2sjax.plan.tpu_programs import GIB, Built, DoesNotFit, Note, Target, changes
from s2sjax.training import mesh as meshes

LANES, SUBLANES = 128, 8
"""tile of a TPU: the last two dimensions of an array are padded to multiples of these"""


def plan(
    experiment: Any,
    topology: str,
    mesh: str | None,
    sizes: tuple[int, int] | None,
    command: str,
    start_jax: Callable[[], Path],
    note: Note = print,
    slices: int = 1,
) -> Iterator[str]:
    """Yields the lines of the report, each as soon as it is known.

    `start_jax` returns the compilation cache directory; `note` is called whenever a program is compiled.
    """
    of = tpu_slices.find(topology)
    if slices < 1:
        raise UserError(f"--slices is {slices}: it must be at least 1")
    if why := tpu_slices.missing():
        raise UserError(why)
    if mesh is not None:
        experiment = replace(experiment, train=replace(experiment.train, mesh=parse_mesh(mesh)))
    cache = start_jax()
    task = task_with_assets(experiment, sizes)
    target = Target(task, of, note, slices)
    yield from _head(target)
    yield from _advice(target)
    shape = Mesh(*target.mesh.shape.values())
    program = Program(task)
    largest = target.rows[target.buckets[0]] // meshes.data_parallel_size(target.mesh)
    program.compile(largest)
    held = program.held(shape)
    try:
        steps = target.train_steps()
        others = target.predictions()
    except DoesNotFit as failure:
        raise UserError("\n".join(_remedy(target, held.state, held.params, failure))) from failure
    most = record(target, program, steps[0])
    with contextlib.suppress(OSError):  # the report does not need the record
        recorded_errors.keep(cache / recorded_errors.FILE, [most])
    yield from ("", *_table([*steps, *others], chips.CHIPS[of.chip]), "")
    yield from _collectives(steps[0], shape, slices)
    yield from _warnings(steps, others)
    yield (
        f"the prediction for {steps[0].name}: {readable_size(most.predicted)} per chip, {most.error:+.0%} compared "
        f"with the compiler; its products take {_flops(most.products)} per chip, with every iteration of a loop counted"
    )
    yield f"the compiled programs are in {cache}: docs/pod.md says when a pod can use them"
    yield f"{command} {shape.flags}"


def parse_mesh(text: str) -> config.Mesh:
    """Parses --mesh: 4x2x1 -> data 4, fsdp 2, tensor 1; a fourth number is context."""
    if not re.fullmatch(r"\d+x\d+x\d+(x\d+)?", text):
        raise UserError(f"--mesh is {text!r}: write data x fsdp x tensor, such as 4x2x1, and x context if above 1")
    return config.Mesh(*map(int, text.split("x")))


def versions() -> str:
    return f"JAX {jax.__version__}, libtpu {importlib.metadata.version('libtpu')}"


def record(target: Target, program: Program, step: Built) -> recorded_errors.Record:
    """The record of the train step of the largest bucket, which the cost model predicts."""
    shape = Mesh(*target.mesh.shape.values())
    own = step.rows // meshes.data_parallel_size(target.mesh)
    exchanged: dict[str, float] = defaultdict(float)
    for one in step.collectives:
        exchanged[f"{one.kind} {'+'.join(one.axes) or 'unknown'}{' between slices' * one.between}"] += one.total
    return recorded_errors.Record(
        experiment=target.experiment.name,
        model=target.task.model_name,
        weights=program.weights,
        dtype=target.experiment.train.dtype,
        topology=target.name,
        chips=target.mesh.size,
        mesh=tuple(target.mesh.shape.values()),
        bucket=step.bucket,
        rows=step.rows,
        seconds=round(step.seconds, 1),
        held=step.held,
        memory=step.memory,
        predicted=program.memory(shape, own),
        flops=step.flops,
        products=program.work(own).products / shape.tensor / shape.context,
        collectives=dict(exchanged),
        versions=versions(),
    )


# ------------------------------------------------------------------------------ the report


def _head(target: Target) -> Iterator[str]:
    e, of = target.experiment, target.slice
    chip = chips.CHIPS[of.chip]
    yield (
        f"{e.name}: {target.task.model_name} in {e.train.dtype}, compiled for {target.name} ({of.type}): "
        f"{target.mesh.size:,} chips of {chip.memory / GIB:.1f} GiB"
    )
    shape = " x ".join(f"{name} {size}" for name, size in target.mesh.shape.items())
    yield f"mesh {shape}; {versions()}; nothing is run"


def _advice(target: Target) -> Iterator[str]:
    """Yields a line on rows and a line on parameter widths that the chip pads."""
    parts = meshes.data_parallel_size(target.mesh) * target.experiment.train.grad_accum_steps
    odd = {rows // parts for rows in target.rows.values() if rows // parts % SUBLANES}
    if odd:
        yield (
            f"a chip computes {', '.join(map(str, sorted(odd)))} rows at a time and pads them to a multiple of "
            f"{SUBLANES}: change data.batch_tokens or train.grad_accum_steps"
        )
    widths: dict[int, str] = {}
    params = jax.eval_shape(target.task.init, jax.random.key(0))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.ndim > 1 and leaf.shape[-1] % LANES:
            widths.setdefault(leaf.shape[-1], meshes.path_of(path))
    if widths:
        shown = ", ".join(f"{width} ({path})" for width, path in sorted(widths.items())[:3])
        yield f"widths that are not a multiple of {LANES} are padded to one: {shown}"


def _table(built: Sequence[Built], chip: chips.Chip) -> list[str]:
    lines = [("program", "compiled in", "arguments", "a step adds", "of the chip", "FLOPs")]
    for each in built:
        sizes = readable_size(each.arguments), readable_size(each.temporary), f"{each.memory / chip.memory:.0%}"
        lines.append((each.name, f"{each.seconds:.0f} s", *sizes, _flops(each.flops)))
    note = "FLOPs are per chip, as the compiler counts them: the body of a loop counts once"
    return [*aligned(lines, first="<"), note]


def _collectives(step: Built, mesh: Mesh, slices: int) -> Iterator[str]:
    """Yields the communication of a chip: with several slices, first inside its slice, then between the slices."""
    if mesh.size == 1:
        return
    for between in (False, True)[:slices]:
        chosen = [one for one in step.collectives if one.between == between]
        where = f" {'between slices' if between else 'inside its slice'}" * (slices > 1)
        total = f": {readable_size(sum(one.total for one in chosen))}" * (slices > 1)
        yield f"communication of each chip{where} in {step.name}{total}"
        times, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for one in chosen:
            group = one.kind, " + ".join(one.axes) or "unknown"
            times[group] += one.times
            sizes[group] += one.total
        for (kind, axes), size in sizes.most_common():
            yield f"  {kind:20}{axes:16}{times[kind, axes]:>6,} times{readable_size(size):>10}"


def _warnings(steps: Sequence[Built], others: Sequence[Built]) -> Iterator[str]:
    for each in (*steps, *others):
        if each.problems:
            yield f"warning: {each.name} contains {' and '.join(each.problems)}"
    largest = steps[0]
    if largest.aliased < largest.held:
        size = readable_size(largest.held - largest.aliased)
        yield f"warning: {size} of the new state of {largest.name} do not use the memory of the old one"
    if largest.padded:
        shown = ", ".join(f"{array} takes {times:.1f} times its size" for array, times in largest.padded)
        yield f"padding of {largest.name}: {shown}"


def _remedy(target: Target, held: int, params: int, failure: DoesNotFit) -> Iterator[str]:
    """Yields what is too large, by how much, and the smallest change with which the program compiled and fits."""
    over = (failure.used - failure.limit) / GIB
    first = (
        f"{failure.name} does not fit on {target.name} with the mesh "
        f"{' x '.join(map(str, target.mesh.shape.values()))}: it needs {failure.used / GIB:.2f} GiB of the "
        f"{failure.limit / GIB:.2f} GiB available, {over:.2f} GiB too much"
    )
    for change in changes(target, held, params, failure):
        try:
            task = target.task.replace(experiment=change.experiment)
            other = Target(task, target.slice, lambda line: None, target.slices)
            step = other.train_steps(other.buckets[:1])[0]
        except (DoesNotFit, UserError):
            continue
        yield f"{first}: set {change.flags}, which fits with {step.memory / GIB:.2f} GiB"
        return
    yield f"{first}: lower data.batch_tokens, or choose a larger slice and split by --train.mesh.fsdp"


def _flops(count: float) -> str:
    for unit, size in (("TFLOP", 1e12), ("GFLOP", 1e9)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e6:,.1f} MFLOP"
