"""Compiles named models for slices of TPU pods, and writes the table of docs/pod.md.

Command   python experiments/launch/tpu_table.py [--only TEXT]        x86-64 Linux with the extra tpu; no TPU

Each program is the train step of 64 + 64 tokens, bfloat16, 32,000 words in one table, dropout 0.1, label smoothing 0.1,
Adam, 64 rows a chip. What is compiled already for these versions is not compiled again: run the same command again to
continue.
The lines go to s2sjax/plan/compiled.jsonl, from which `s2sjax plan` tells how far its predictions were off.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from s2sjax import config, models
from s2sjax.cli import start_jax
from s2sjax.plan import recorded_errors, tpu_programs, tpu_report, tpu_slices
from s2sjax.plan.cost_model import Program
from s2sjax.tasks import Translation
from s2sjax.tasks.task import Task

PAGE = Path(__file__).parents[2] / "docs/pod.md"
BEGIN, END = "<!-- table: experiments/launch/tpu_table.py -->", "<!-- end of the table -->"
MODELS = ("transformer_base", "transformer_big", "gnmt_4")
SLICES = ("v5e:2x4", "v5e:16x16", "v6e:2x4", "v6e:8x8", "v6e:16x16", "v5p:2x2x2", "v5p:8x8x16", "v4:2x2x2", "v4:8x8x16")
SPLIT = [
    ("transformer_big", "v6e:8x8", 8, 1), ("transformer_big", "v6e:8x8", 64, 1), ("transformer_big", "v6e:8x8", 1, 4),
    ("gnmt_4", "v6e:8x8", 8, 1),
]  # fmt: skip
"""(model, slice, fsdp, tensor): what else than a copy of the model on each chip costs"""
ROWS, LENGTH, WORDS = 64, 64, 32_000
GIB = 2**30


def cases() -> Iterator[tuple[str, str, int, int]]:
    yield from ((model, where, 1, 1) for where in SLICES for model in MODELS)
    yield from SPLIT


def experiment(model: str, where: str, fsdp: int, tensor: int) -> Translation:
    chips = tpu_slices.find(where).size
    rows = ROWS * chips // tensor
    named = config.replace(models.NAMED[model].config, dropout=0.1)
    tied = config.replace(named, tie="all") if isinstance(named, config.Transformer) else named
    return Translation(
        model,
        data=config.Data(shared=True, buckets=((LENGTH, LENGTH),), batch_tokens=2 * LENGTH * rows),
        model=tied,
        train=config.Train(dtype="bfloat16", label_smoothing=0.1, mesh=config.Mesh(fsdp=fsdp, tensor=tensor)),
    )


def task_of(model: str, where: str, fsdp: int, tensor: int) -> Task:
    task = experiment(model, where, fsdp, tensor).task()
    return task.replace(assets=task.assumed_assets((WORDS, WORDS)))


@cache
def program_of(model: str) -> Program:
    """The cost model knows a slice by its mesh alone: one program a model."""
    program = Program(task_of(model, SLICES[0], 1, 1))
    program.compile(ROWS)
    return program


def compile_one(model: str, where: str, fsdp: int, tensor: int) -> recorded_errors.Record:
    target = tpu_programs.Target(task_of(model, where, fsdp, tensor), tpu_slices.find(where), lambda line: None)
    return tpu_report.record(target, program_of(model), target.train_steps()[0])


def table(found: list[recorded_errors.Record]) -> Iterator[str]:
    yield "| model | slice | chips | mesh | state, GiB | step, GiB | predicted | communication of a chip |"
    yield "| --- | --- | ---: | --- | ---: | ---: | ---: | --- |"
    order = [(model, where) for model in MODELS for where in SLICES]
    for each in sorted(found, key=lambda one: (order.index((one.experiment, one.topology)), one.mesh[::-1])):
        largest = sorted(each.collectives.items(), key=lambda item: -item[1])[:2]
        moved = ", ".join(f"{name.replace('+', ' and ')} {size / 1e6:,.0f} MB" for name, size in largest)
        step = (each.memory - each.held) / GIB
        yield (
            f"| {each.experiment} | {each.topology} | {each.chips:,} | {' x '.join(map(str, each.mesh))} "
            f"| {each.held / GIB:.2f} | {step:.2f} | {each.error:+.0%} | {moved} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", default="", help="only models and slices with this in their name")
    only = parser.parse_args().only
    start_jax.start_jax()
    done = {
        (each.experiment, each.topology, each.mesh[1:])
        for each in recorded_errors.read(recorded_errors.TABLE)
        if each.versions == tpu_report.versions()
    }
    for case in cases():
        if only in " ".join(case[:2]) and (case[0], case[1], case[2:]) not in done:
            one = compile_one(*case)
            recorded_errors.keep(recorded_errors.TABLE, [one])
            print(f"{one.experiment} {one.topology} {one.mesh}: {one.seconds:.0f} s, {one.error:+.0%}", flush=True)
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    after = rest.split(END)[1]
    lines = "\n".join(table(recorded_errors.read(recorded_errors.TABLE)))
    PAGE.write_text(f"{before}{BEGIN}\n{lines}\n{END}{after}", "utf-8")
    print(f"wrote {recorded_errors.TABLE.name} and the table of {PAGE.name}")


if __name__ == "__main__":
    main()
