"""The rows of a benchmark, as lines on the terminal, and as CSV and JSON with a description of the environment.

A row is a dict of plain values. All rows of a benchmark have the same keys; None is a missing value.
"""

import csv
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from s2sjax.version import __version__

PACKAGES = ("jax", "jaxlib", "torch", "transformers", "ctranslate2", "flash-linear-attention")
Row = Mapping[str, Any]


class Column(NamedTuple):
    """A column of the table on the terminal. The first column is left-aligned."""

    name: str
    """key of the values in a row"""
    title: str
    width: int
    show: Callable[[Any], str] = str


def heading(columns: Sequence[Column]) -> str:
    return _aligned(columns, [column.title for column in columns])


def line(columns: Sequence[Column], row: Row) -> str:
    """Formats a row, with dashes for missing values."""
    values = [row.get(column.name) for column in columns]
    return _aligned(columns, ["-" if value is None else column.show(value) for column, value in zip(columns, values)])


def show(columns: Sequence[Column], rows: Sequence[Row], reasons: Mapping[str, str]) -> None:
    """Prints the rows of a case, and the reasons why libraries were left out."""
    lines = [line(columns, row) for row in rows]
    print("\n".join([*lines, *(f"  {name} is left out: {reason}" for name, reason in reasons.items())]), flush=True)


def _aligned(columns: Sequence[Column], texts: Sequence[str]) -> str:
    first, *others = (f"{text:{'>' if place else '<'}{columns[place].width}}" for place, text in enumerate(texts))
    return "".join([first, *others]).rstrip()


def si(value: float, unit: str = "") -> str:
    """Formats three digits and a prefix: 62_180_000_000 -> 62.2G, or with a unit 62.2 GFLOP/s."""
    prefixes = ["", "k", "M", "G", "T", "P"]
    while abs(value) >= 999.5 and len(prefixes) > 1:
        value, prefixes = value / 1000, prefixes[1:]
    return f"{_digits(value)}{' ' if unit else ''}{prefixes[0]}{unit}"


def milliseconds(seconds: float) -> str:
    """Formats milliseconds with three digits: 0.0123456 -> 12.3."""
    return _digits(1e3 * seconds)


percent = "{:.0%}".format
ratio = "{:.2f}x".format


def _digits(value: float) -> str:
    """Formats at least three digits: 0.123, 1.23, 12.3, 123, 1,234."""
    places = 3 if abs(value) < 0.9995 else 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{places}f}"


# ---------------------------------------------------------------------------------------- files


def environment() -> dict[str, Any]:
    """The environment of a measurement: date, command, device, and library versions."""
    versions = {"s2sjax": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["s2sjax", *sys.argv[1:]]),
        "device": jax.devices()[0].device_kind,
        "backend": jax.default_backend(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": versions,
    }


def machine(found: Mapping[str, Any]) -> str:
    """The accelerator of an environment, or the cores of its CPU."""
    return f"{found['cores']} cores, {found['machine']}" if found["backend"] == "cpu" else found["device"]


def describe(found: Mapping[str, Any]) -> str:
    """Describes an environment in one line."""
    return f"on {machine(found)}; " + ", ".join(f"{name} {version}" for name, version in found["versions"].items())


def open_folder(folder: Path) -> None:
    """Makes the folder, and fails before the measurements if it is not writable."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".probe"
    probe.write_text("", encoding="utf-8")
    probe.unlink()


def write(folder: Path, name: str, rows: Sequence[Row], **facts: Any) -> list[Path]:
    """Writes NAME.csv with the rows, and NAME.json with the rows and all facts, such as the environment."""
    table, whole = folder / f"{name}.csv", folder / f"{name}.json"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    whole.write_text(json.dumps({**facts, "rows": list(rows)}, indent=2) + "\n", encoding="utf-8")
    return [table, whole]
