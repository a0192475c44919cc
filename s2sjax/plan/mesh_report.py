"""Compares all meshes of N devices, and recommends one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from s2sjax import config
from s2sjax.core.backend.device import on_cpu
from s2sjax.errors import UserError
from s2sjax.plan import chips, recorded_errors, tpu_slices
from s2sjax.plan.cost_model import USABLE, Mesh, Prediction, Program
from s2sjax.runs import initial_settings
from s2sjax.tasks.task import Task, task_of

LINES = 8
"""number of meshes shown"""
WIDEST = 16
"""largest size of the tensor axis: on more chips, communication costs more than it saves"""
TIE = 0.95
"""fraction of the highest throughput above which meshes count as equally fast: the error of a prediction is larger"""
GIB = 2**30


def plan(
    experiment: config.Experiment,
    devices: int,
    chip: str = "H200",
    sizes: tuple[int, int] | None = None,
    command: str = "s2sjax train FILE",
    cache: Path | None = None,
) -> str:
    """The text of the report.

    sizes: sizes of the source and target vocabularies; if given, no data is read.
    cache: folder with the records of the programs compiled on this machine.
    """
    if devices < 1:
        raise UserError(f"--devices is {devices}: it must be at least 1")
    if (context := experiment.train.mesh.context) > 1:
        raise UserError(
            f"train.mesh.context is {context}, but only data, fsdp and tensor are predicted: set it to 1, or compile "
            "for TPUs by --compile"
        )
    name, found = chips.find(chip)
    program = Program(task_with_assets(experiment, sizes))
    meshes = list(candidates(program, devices, found.domain if name in tpu_slices.SHAPES else devices))
    program.compile(max(program.rows(mesh.data_parallel_size) // mesh.data_parallel_size for mesh in meshes))
    ranked = rank([program.predict(mesh, found) for mesh in meshes], found)
    best = ranked[0]
    if not fits(best, found):
        least = min(ranked, key=lambda each: each.memory)
        raise UserError(
            f"none of the {len(ranked)} meshes of {devices} {name} fits: the smallest, {least.mesh}, needs "
            f"{least.memory / GIB:.1f} GiB of {USABLE * found.memory / GIB:.1f} usable on each device: use more "
            "devices and split further by fsdp, raise train.grad_accum_steps, or lower data.batch_tokens"
        )
    head = [
        f"{experiment.name}: {program.task.model_name} with {program.weights:,} weights in "
        f"{experiment.train.dtype}, on {devices:,} {name} of {found.memory / GIB:.0f} GiB",
        f"batch of data.batch_tokens {experiment.data.batch_tokens:,}: {program.pairs:,} rows of the bucket "
        f"{' + '.join(map(str, program.bucket))}; nothing was run",
        "",
    ]
    own = recorded_errors.read(cache / recorded_errors.FILE) if cache else []
    before = recorded_errors.describe(own, recorded_errors.read(recorded_errors.TABLE), experiment.name)
    *choice, last = _choice(ranked, program, found, name, command)
    return "\n".join([*head, *_table(ranked, found), "", *choice, *before, last])


def task_with_assets(experiment: config.Experiment, sizes: tuple[int, int] | None) -> Task:
    """The task with its assets: learned from the data, or assumed from the sizes of the vocabularies."""
    task = task_of(experiment)
    if sizes is not None:
        return task.replace(assets=task.assumed_assets(sizes))
    try:
        data = task.read()
        return task.replace(task.resolve_defaults(data), initial_settings.assets_of(task, data))
    except UserError as error:
        raise UserError(f"{error}; or give --source-size and --target-size, then no data is needed") from error


def candidates(program: Program, devices: int, domain: int) -> Iterator[Mesh]:
    """Every data x fsdp x tensor of `devices` devices, except those that training would refuse.

    domain: number of devices within which fsdp and tensor stay, such as those of a slice of TPUs.
    """
    within = devices if devices <= domain else math.gcd(devices, domain)
    for tensor in (n for n in _divisors(devices) if n <= WIDEST):
        try:
            program.held(Mesh(1, 1, tensor))
        except UserError:
            continue
        if all(n % tensor == 0 for n in program.task.heads):
            for fsdp in (n for n in _divisors(devices // tensor) if within % (n * tensor) == 0):
                mesh = Mesh(devices // tensor // fsdp, fsdp, tensor)
                try:
                    program.task.check_mesh(mesh._asdict())
                except UserError:
                    continue
                yield mesh


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def rank(predictions: Sequence[Prediction], chip: chips.Chip) -> list[Prediction]:
    """Best first: meshes that fit before those that do not, fast before slow.

    The first one is the recommended one: among those nearly as fast as the fastest, the one that splits the least.
    """
    order = lambda each: (not fits(each, chip), -each.tokens)
    ranked = sorted(predictions, key=order)
    first = ranked[0]
    rivals = [each for each in ranked if order(each)[0] == order(first)[0] and each.tokens >= TIE * first.tokens]
    best = min(rivals, key=lambda each: (each.mesh.tensor, each.mesh.fsdp))
    return [best, *(each for each in ranked if each is not best)]


def fits(prediction: Prediction, chip: chips.Chip) -> bool:
    return prediction.memory <= USABLE * chip.memory


# ------------------------------------------------------------------------------ the report


COLUMNS: dict[str, Callable[[Prediction], str]] = {
    "data x fsdp x tensor": lambda each: str(each.mesh),
    "rows": lambda each: f"{each.rows // each.mesh.data_parallel_size:,}",
    "step ms": lambda each: f"{1e3 * each.seconds:.1f}",
    "computing": lambda each: f"{1e3 * each.computing:.1f}",
    "exchange": lambda each: f"{1e3 * each.exchanging:.1f}",
    "tokens/s": lambda each: f"{each.tokens:,.0f}",
    "MFU": lambda each: f"{each.mfu:.1%}",
    "state GiB": lambda each: f"{each.held / GIB:.2f}",
    "memory GiB": lambda each: f"{each.memory / GIB:.2f}",
}


def aligned(lines: Sequence[Sequence[str]], first: str = ">") -> list[str]:
    """The lines of a table, with its columns aligned to the right; `first`: alignment of the first column."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    alignments = [first, *">" * (len(widths) - 1)]
    return ["  ".join(f"{c:{a}{w}}" for c, a, w in zip(line, alignments, widths)) for line in lines]


def _table(ranked: Sequence[Prediction], chip: chips.Chip) -> list[str]:
    shown, left = ranked[:LINES], ranked[LINES:]
    table = aligned([list(COLUMNS), *([show(each) for show in COLUMNS.values()] for each in shown)])
    for number, each in enumerate(shown, 1):
        table[number] += "" if fits(each, chip) else "  does not fit"
    if left:
        table.append(f"and {len(left)} more, {sum(not fits(each, chip) for each in left)} of which do not fit")
    return table


def _choice(ranked: Sequence[Prediction], program: Program, chip: chips.Chip, name: str, command: str) -> Iterator[str]:
    best, pairs = ranked[0], program.pairs
    devices, usable = best.mesh.size, USABLE * chip.memory / GIB
    yield f"recommended: {best.mesh}: {_why(ranked, chip)}"
    if best.rows > 1.05 * pairs:
        parts = best.mesh.data_parallel_size * program.experiment.train.grad_accum_steps
        yield (
            f"{best.rows - pairs:,} of the {best.rows:,} rows of a batch are padding because {pairs:,} do not divide "
            f"into {parts:,} parts (devices x micro-batches): raise data.batch_tokens"
        )
    share = pairs / devices
    alone = share * sum(program.bucket) / program.computing(Mesh(1, 1, 1), chip, share)
    yield (
        f"weak scaling: {best.tokens:,.0f} tokens/s at {best.mfu:.1%} MFU, {best.tokens / (alone * devices):.0%} of "
        f"{devices:,} times the {alone:,.0f} of one {name} with its share of the batch, {share:,.3g} rows"
    )
    yield f"a mesh fits if it needs at most {usable:.1f} GiB, {USABLE:.0%} of a device's memory{_caution(program)}"
    yield f"{command} {best.mesh.flags}"


def _caution(program: Program) -> str:
    if not on_cpu() or program.experiment.train.dtype != "bfloat16":
        return ""
    return "; the CPU compiler stores bfloat16 in four bytes, so an accelerator probably needs less"


def _why(ranked: Sequence[Prediction], chip: chips.Chip) -> str:
    best, fitting = ranked[0], [each for each in ranked if fits(each, chip)]
    copies = next(each for each in ranked if each.mesh.fsdp == each.mesh.tensor == 1)
    if best.mesh.size == 1:
        return "one device needs no communication"
    if best is copies:
        reason = "each device holds all parameters, and only gradients are communicated"
    elif not fits(copies, chip):
        reason = f"a full copy on each device would need {copies.memory / GIB:.1f} GiB"
    else:
        gain = best.tokens / copies.tokens
        reason = f"it has {gain:.2f} times the tokens/s of {copies.mesh.data:,} full copies"
    return f"none of the {len(fitting)} that fit is clearly faster; {reason}"
