"""Errors of the cost model on programs that the TPU compiler has compiled.

Each compiled train step is one line of a JSON Lines file: those of this machine are in the compilation cache, those of
the table in docs/pod.md are next to this module.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from s2sjax.files import readable_size

FILE = "compiled.jsonl"
TABLE = Path(__file__).with_name(FILE)


class Record(NamedTuple):
    experiment: str
    model: str
    weights: int
    dtype: str
    topology: str
    chips: int
    mesh: tuple[int, ...]
    """data, fsdp, tensor, and context if it is above 1"""
    bucket: tuple[int, ...]
    rows: int
    """rows of the global batch"""
    seconds: float
    """compilation time"""
    held: int
    """bytes of the state on a chip"""
    memory: int
    """bytes on a chip in a step, according to the compiler"""
    predicted: int
    """bytes on a chip in a step, according to plan/cost_model.py"""
    flops: float
    """FLOPs per chip, according to the compiler: the body of a loop counts once"""
    products: float
    """FLOPs of the products of a step on a chip, according to plan/jaxpr_costs.py: every iteration of a loop counts"""
    collectives: dict[str, float]
    """bytes communicated per step and chip, by kind and axes: {"all-reduce data": 1e6}"""
    versions: str

    @property
    def error(self) -> float:
        """The relative error of the predicted memory: +0.1 is 10 % above the compiler's figure."""
        return self.predicted / self.memory - 1


def keep(path: Path, records: Sequence[Record]) -> None:
    """Adds records to a file, replacing earlier ones of the same train step."""
    place = lambda each: (each.experiment, each.topology, each.mesh, each.bucket, each.weights, each.dtype)
    kept = {place(each): each for each in (*read(path), *records)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each._asdict()) + "\n" for each in kept.values()), "utf-8")


def read(path: Path) -> list[Record]:
    """Reads the records of a file, except those that another version has written with other fields."""
    found = []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            fields: Any = json.loads(line)
        except ValueError:  # the process that wrote it was killed
            continue
        if isinstance(fields, dict) and fields.keys() == set(Record._fields):
            fields |= {"mesh": tuple(fields["mesh"]), "bucket": tuple(fields["bucket"])}
            found.append(Record(**fields))
    return found


def describe(own: Sequence[Record], table: Sequence[Record], experiment: str) -> list[str]:
    """Lines on the errors of the predicted memory: one per program of this experiment, and one for all others."""
    mine = [each for each in own if each.experiment == experiment]
    others = [each for each in (*own, *table) if each not in mine]
    lines = [
        f"compiled before for {each.topology}, mesh {' x '.join(map(str, each.mesh))}: {readable_size(each.memory)}, "
        f"predicted {readable_size(each.predicted)} ({each.error:+.0%})"
        for each in mine
    ]
    if others:
        errors = [each.error for each in others]
        lines.append(
            f"for the {len(others)} {'other ' if mine else ''}train steps that were compiled for TPUs, the predicted "
            f"memory was {min(errors):+.0%} to {max(errors):+.0%} off, median {statistics.median(errors):+.0%}"
        )
    return lines
