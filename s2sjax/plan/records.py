"""How far the cost model was off for programs that the TPU compiler has compiled.

Each compiled train step is a line of a file: of this machine in the folder of the compilation cache, and those of the
table of docs/pod.md beside this file.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from s2sjax.training.memory import readable

FILE = "compiled.jsonl"
TABLE = Path(__file__).with_name(FILE)


class Record(NamedTuple):
    experiment: str
    model: str
    weights: int
    dtype: str
    topology: str
    chips: int
    mesh: tuple[int, int, int]
    """data, fsdp, tensor"""
    bucket: tuple[int, ...]
    rows: int
    """of the global batch"""
    seconds: float
    """to compile"""
    held: int
    """bytes of the state on a chip"""
    memory: int
    """bytes on a chip in a step, by the compiler"""
    predicted: int
    """the same by plan/predict.py"""
    flops: float
    """a chip, by the compiler: the body of a loop once"""
    products: float
    """FLOPs of the products of a step on a chip, by plan/work.py: the body of a loop as often as it runs"""
    collectives: dict[str, float]
    """bytes a step on a chip, by kind and axes: {"all-reduce data": 1e6}"""
    versions: str

    @property
    def error(self) -> float:
        """+0.1: the prediction was 10 % above what the compiler needs."""
        return self.predicted / self.memory - 1


def keep(path: Path, records: Sequence[Record]) -> None:
    """Adds to a file. What was compiled before for the same place is replaced."""
    place = lambda each: (each.experiment, each.topology, each.mesh, each.bucket, each.weights, each.dtype)
    kept = {place(each): each for each in (*read(path), *records)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each._asdict()) + "\n" for each in kept.values()), "utf-8")


def read(path: Path) -> list[Record]:
    """Lines that another version has written differently are left out: they are a record, and no more."""
    found = []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            fields: Any = json.loads(line)
        except ValueError:  # cut short by a kill
            continue
        if isinstance(fields, dict) and fields.keys() == set(Record._fields):
            fields |= {"mesh": tuple(fields["mesh"]), "bucket": tuple(fields["bucket"])}
            found.append(Record(**fields))
    return found


def describe(own: Sequence[Record], table: Sequence[Record], experiment: str) -> list[str]:
    """How far the predicted memory was off: of this experiment, one line a program; of all others together."""
    mine = [each for each in own if each.experiment == experiment]
    others = [each for each in (*own, *table) if each not in mine]
    lines = [
        f"compiled before for {each.topology}, mesh {' x '.join(map(str, each.mesh))}: {readable(each.memory)}, "
        f"predicted {readable(each.predicted)} ({each.error:+.0%})"
        for each in mine
    ]
    if others:
        errors = [each.error for each in others]
        lines.append(
            f"for the {len(others)} {'other ' if mine else ''}train steps that were compiled for TPUs, the predicted "
            f"memory was {min(errors):+.0%} to {max(errors):+.0%} off, median {statistics.median(errors):+.0%}"
        )
    return lines
