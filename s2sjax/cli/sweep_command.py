"""The command `s2sjax sweep`: the values of its fields, and the training of all combinations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from s2sjax.cli import commands
from s2sjax.cli.start_jax import ends_at_sigterm, start_jax
from s2sjax.errors import UserError


def sweep(options: argparse.Namespace, fields: list[str]) -> None:
    with ends_at_sigterm():
        from s2sjax.runs.sweeps import sweep as sweeps
        from s2sjax.training.preemption import Interrupted

        grid, fixed = _values(fields)
        experiments: dict[str, Any] = {}
        files: dict[str, str] = {}
        sweep_name = options.sweep_name
        for file in (options.subject, *options.others):
            own = {"subject": file, "sweep_name": sweep_name}
            experiment = commands.read_experiment(argparse.Namespace(**{**vars(options), **own}), fixed)
            sweep_name = sweep_name or f"{experiment.name}-sweep"  # that of the first
            name = Path(file).stem if options.others else ""
            if name in files:
                raise UserError(f"{file} and {files[name]} have the same name: rename one of them")
            experiments[name], files[name] = experiment, file
        if not grid and not options.others:
            raise UserError("there is nothing to sweep: give several values of a field, such as --seed 0,1,2")
        chosen = sweeps.Options(**{name: getattr(options, name) for name in sweeps.Options._fields})
        start_jax()
        swept: Any = experiments if options.others else experiments[""]
        try:
            found = sweeps.sweep(swept, grid, commands.below_runs(sweep_name), chosen, files)
        except Interrupted:
            commands.leave(130)
        if found is None:
            commands.leave(0)


def _values(fields: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The values to sweep, by dotted name, and the other fields: --seed 0,1 --train.steps 5."""
    from s2sjax import former_names
    from s2sjax.runs.sweeps import sweep_grid

    grid: dict[str, Any] = {}
    fixed: list[str] = []
    rest = list(fields)
    while rest:
        field = rest.pop(0)
        name, equals, text = field.partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            text = rest.pop(0)
        several = None if rest and not rest[0].startswith("--") else sweep_grid.parse(text)
        if not field.startswith("--") or several is None:
            fixed += [field] if equals or not text else [field, text]
            continue
        group, dot, last = name.removeprefix("--").replace("-", "_").rpartition(".")
        dotted = f"{group}{dot}{former_names.FIELDS.get(last, last)}"
        if dotted in grid:
            raise UserError(f"--{dotted} is given twice: give all of its values at once, separated by commas")
        grid[dotted] = several
    return grid, fixed
