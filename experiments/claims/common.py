"""Shared code of the twelve claims: the command, stored work, verdicts, and results with their spread over seeds.

A claim is a file of this folder, run as

    python experiments/claims/NAME.py [--size small|full] [--out runs/claims]

`small` runs on a CPU in a few minutes and downloads nothing. `full` is for one H200 and reads data sets (s2sjax data
get). The command writes OUT/NAME/result.json and OUT/NAME/figure.png. Finished work is stored in OUT/NAME/SIZE, and
models that several claims use in OUT/models: run the same command again to continue. The seeds of a model are trained
by a sweep.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import s2sjax
from s2sjax.cli import start_jax
from s2sjax.errors import UserError

ROOT = Path(__file__).parents[2]
Verdict = Literal["held", "held in part", "did not hold"]


class Claim(NamedTuple):
    """A claim, and the number that tests it."""

    name: str
    """name of its file and its folder"""
    title: str
    statement: str
    paper: str
    number: str
    """description of the number, with its unit"""


class Table(NamedTuple):
    """A table that does not depend on the size of the claim: the page shows it once."""

    sentence: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Finding(NamedTuple):
    """The result of a claim."""

    values: Sequence[float]
    """the number for each seed"""
    verdict: Verdict
    paragraph: str
    """explanation of the verdict"""
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """table of the measurements"""
    digits: int = 2
    """number of decimals shown"""
    repeats: str = "seeds"
    """name of the repetitions: seeds, or repeats of a timing"""
    tables: Sequence[Table] = ()


def verdict(held: bool, in_part: bool = False) -> Verdict:
    return "held" if held else "held in part" if in_part else "did not hold"


def is_clear(values: Sequence[float] | np.ndarray) -> bool:
    """Whether the mean is more than two standard errors above 0."""
    return bool(np.mean(values) > 2 * np.std(values, ddof=1) / len(values) ** 0.5)


class Study:
    """The folder of a claim at one size."""

    def __init__(self, claim: Claim, size: str, out: Path):
        self.claim, self.size, self.out = claim, size, out
        self.folder = out / claim.name / size
        self._seconds: dict[Path, float] = {}

    @property
    def seconds(self) -> float:
        """Seconds of all work, including that of earlier commands."""
        return sum(self._seconds.values())

    def once(self, name: str, settings: Any, work: Callable[[], Any], shared: bool = False) -> Any:
        """The result of `work`, a JSON value. It is stored: the next call with the same settings reads it.

        shared: store it for all claims. The output of `work` goes to a log file next to the result.
        """
        path = self.place(f"{name}.json", shared)
        settings = json.loads(json.dumps(settings, default=repr))
        kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if kept.get("settings") != settings:
            path.parent.mkdir(parents=True, exist_ok=True)
            begin = time.perf_counter()
            with (
                path.with_suffix(".log").open("w", encoding="utf-8") as log,
                contextlib.redirect_stdout(log),
                contextlib.redirect_stderr(log),
            ):
                value = work()
            kept = {"settings": settings, "seconds": time.perf_counter() - begin, "value": value}
            write_json(path, kept)
            print(f"{name}: {kept['seconds']:.1f} s", flush=True)
        else:
            print(f"{name}: done before", flush=True)
        self._seconds[path] = kept["seconds"]
        return kept["value"]

    def sweep(
        self, name: str, experiment: Any, grid: Mapping[str, Any], measure: Callable[[Any], Any], shared: bool = False,
        **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """What `measure` returns for each run of s2sjax.sweep, by the name of the run. It is stored, as by `once`."""
        import s2sjax
        from s2sjax import config

        def work() -> dict[str, Any]:
            runs = s2sjax.sweep(experiment, grid, self.place(name, shared), **options).runs
            for run in runs.values():
                if not run.evaluations():
                    raise UserError(f"{run.folder} has diverged: see its nonfinite.jsonl; lower train.learning_rate")
            return {member: measure(run) for member, run in runs.items()}

        several = experiment if isinstance(experiment, Mapping) else {"": experiment}
        settings = {each: config.to_json(value) for each, value in several.items()}
        return self.once(name, [settings, grid, options], work, shared)

    def place(self, name: str, shared: bool) -> Path:
        """The path of stored work."""
        return (self.out / "models" / self.size if shared else self.folder) / name


def main(
    claim: Claim,
    sizes: Mapping[str, Any],
    measure: Callable[[Study, Any], Any],
    judge: Callable[[Any], Finding],
    draw: Callable[[Path, Any], None],
    arguments: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Measures a claim, judges it and draws its figure; prints the table and the verdict; writes result.json."""
    try:
        return _main(claim, sizes, measure, judge, draw, arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted: run the same command again to continue", file=sys.stderr)
        sys.exit(130)


def _main(claim, sizes, measure, judge, draw, arguments) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=claim.statement)
    parser.add_argument("--size", choices=tuple(sizes), default="small", help="small: a CPU; full: one H200")
    parser.add_argument("--out", type=Path, default=Path("runs/claims"), help="folder of the results")
    options = parser.parse_args(arguments)
    start_jax.start_jax()
    study = Study(claim, options.size, options.out)
    print(f"{claim.statement} ({claim.paper})", flush=True)
    data = measure(study, sizes[options.size])
    found = judge(data)
    result = describe(study, found)
    folder = options.out / claim.name
    draw(folder / "figure.png", data)
    write_json(folder / "result.json", result | {"data": data})
    print("\n" + "\n".join(markdown_table(found.columns, found.rows)))
    for table in found.tables:
        print("\n".join(["", table.sentence, "", *markdown_table(table.columns, table.rows)]))
    print(f"\n{claim.number}: {shown(result)}\n{found.verdict}: {found.paragraph}")
    print(f"wrote {folder / 'result.json'}, {folder / 'figure.png'}", flush=True)
    return result


def describe(study: Study, found: Finding) -> dict[str, Any]:
    """The contents of result.json, without the data of the figure."""
    from s2sjax.bench import result_files

    values = [float(value) for value in found.values]
    environment = result_files.environment()
    command = ["python", f"experiments/claims/{study.claim.name}.py", "--size", study.size]
    return {
        **study.claim._asdict(),
        "size": study.size,
        "values": values,
        "mean": statistics.mean(values),
        "spread": statistics.stdev(values) if len(values) > 1 else 0.0,
        "digits": found.digits,
        "repeats": found.repeats,
        "verdict": found.verdict,
        "paragraph": found.paragraph,
        "columns": list(found.columns),
        "rows": [list(row) for row in found.rows],
        "tables": [{**table._asdict(), "rows": [list(row) for row in table.rows]} for table in found.tables],
        "seconds": study.seconds,
        "hardware": result_files.machine(environment),
        "environment": environment | {"command": shlex.join(command)},
    }


def shown(result: Mapping[str, Any]) -> str:
    """The mean and the standard deviation of a result as text: 3.14 ± 0.05 (3 seeds)."""
    digits = result["digits"]
    mean, spread = (f"{result[name]:.{digits}f}" for name in ("mean", "spread"))
    return f"{mean} ± {spread} ({len(result['values'])} {result['repeats']})"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean and the standard deviation as text: 12.30 ± 0.41."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def write_json(path: Path, value: Any) -> None:
    """Writes the whole file or nothing."""
    if any(not math.isfinite(x) for x in value.get("values", ())):
        raise UserError(f"{path}: a number is not finite: {value['values']}")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    draft.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def require_data(*names: str) -> list[Path]:
    """Paths of files of data sets. Raises a UserError, before any work, if one is missing."""
    try:
        return [s2sjax.data_path(name) for name in names]
    except UserError as error:
        raise UserError(f"{error}; or use --size small") from None
