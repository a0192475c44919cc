r"""Readers of text files, line by line: UTF-8, plain or .gz, of this machine or in object storage.

Every error names the file and the line.

    for row in read_tsv("train.tsv", ("text", "label")):
        row.fields                      ("a good film", "1")
        row.where                       "train.tsv, line 1"

    read_column("series.csv", "price", "data.series.file")      the numbers of a CSV column

TSV is tab-separated, without quoting and without a header. Only "\n" and "\r\n" end a line; U+2028, for example, does
not.
"""

from __future__ import annotations

import csv
import errno
import gzip
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from s2sjax.config import relative_path, require
from s2sjax.datasets import table
from s2sjax.errors import UserError
from s2sjax.files import as_path


class Row(NamedTuple):
    """A row of a TSV file."""

    where: str
    """file and line, for error messages"""
    fields: tuple[str, ...]


class Place(NamedTuple):
    """Where the reading of a text file begins: at `line`, which is found from a byte before it."""

    line: int = 0
    """number of lines before it"""
    byte: int = 0
    """a byte in the lines before it, from which the lines are counted"""
    before: int = 0
    """number of lines that end before that byte"""


BEGIN = Place()


def read_tsv(
    path: str | Path, columns: Sequence[str], setting: str = "data.folder", origin: str = "", more: str = ""
) -> Iterator[Row]:
    """Yields the rows of a TSV file. Each must have as many fields as `columns`, whose names are for error messages.

    `setting` is the field that names the file. `origin` is where the data set comes from, for the error if the file is
    missing. `more` names further fields, of which there may be any number; if it is empty, there are none.
    """
    form = ", a tab, ".join([*columns, more] if more else columns)
    require_file(path, f"each line: {form}", setting, origin)
    for number, line in enumerate(lines(path, setting), start=1):
        fields = tuple(line.split("\t"))
        if len(fields) < len(columns) or (len(fields) > len(columns) and not more):
            raise UserError(f"{path}, line {number} has {len(fields)} of {len(columns)} columns: write {form}")
        yield Row(f"{path}, line {number}", fields)


def read_column(path: str | Path, column: str, setting: str, origin: str = "") -> list[float]:
    """Reads the numbers of one column of a CSV file, whose first line names the columns."""
    require_file(path, f"CSV, column {column}", setting, origin)
    rows = csv.reader(lines(path, setting))
    found: list[float] = []
    try:
        names = next(rows)
        require(column in names, f"{path} has no column {column!r}: its first line names {', '.join(names)}")
        for fields in rows:
            try:
                value = float(fields[names.index(column)]) if len(fields) == len(names) else math.nan
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                found_instead = f"no number in column {column!r} ({','.join(fields)!r:.60})"
                raise UserError(f"{path}, line {rows.line_num} has {found_instead}: correct it")
            found.append(value)
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num} is not CSV ({error}): correct it") from None
    return found


def require_file(path: str | Path, form: str, setting: str, origin: str) -> None:
    """Raises a UserError, which names the `form` and the `origin` of a file, if it is missing and has an origin."""
    exists = not origin or as_path(os.path.expanduser(path)).exists()
    known = "" if exists else table.missing(path)
    require(exists, known or f"there is no file {relative_path(path)} ({form}) of {origin}: correct {setting}")


def parallel_lines(
    paths: Sequence[str], settings: Sequence[str], places: Sequence[Place] = (BEGIN, BEGIN)
) -> Iterator[tuple[str, str]]:
    """Yields the line pairs of two text files, of which line n of one translates line n of the other."""
    counts = [place.line for place in places]
    source, target = map(lines, paths, settings, places)
    for pair in zip_longest(source, target):
        counts = [count + (line is not None) for count, line in zip(counts, pair)]
        if counts[0] == counts[1]:
            yield pair
    require_parallel(paths, counts)


def require_parallel(paths: Sequence[str], counts: Sequence[int]) -> None:
    """Raises a UserError if two text files have different numbers of lines."""
    require(
        counts[0] == counts[1],
        f"{paths[0]} has {counts[0]:,} lines but {paths[1]} has {counts[1]:,}: line n of one must translate line n of "
        "the other",
    )


def lines(path: str | Path, setting: str, place: Place = BEGIN) -> Iterator[str]:
    """Yields the lines of a text file, without line ends. `setting` is the field that names the file."""
    number = place.line
    for number, line in enumerate(_byte_lines(path, setting, place), start=place.line + 1):
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise UserError(f"{path}, line {number}: not UTF-8: convert the file to UTF-8") from None
    require(number > 0, f"{path} is empty: put examples in it, or change {setting}")


def _byte_lines(path: str | Path, setting: str, place: Place) -> Iterator[bytes]:
    """Yields the lines of a file, without a byte order mark."""
    file = as_path(os.path.expanduser(path))
    try:
        with file.open("rb") as raw, gzip.open(raw) if file.suffix == ".gz" else raw as opened:
            opened.seek(place.byte)
            for _ in range(place.before, place.line):
                opened.readline()
            first = opened.readline()
            if first := first if place.line else first.removeprefix(b"\xef\xbb\xbf"):
                yield first
            yield from opened
    except FileNotFoundError:
        raise UserError(table.missing(path) or f"there is no file {relative_path(path)}: correct {setting}") from None
    except (OSError, EOFError, zlib.error) as error:  # a folder, no permission, a damaged .gz
        if getattr(error, "errno", None) == errno.EIO:  # a disk or a storage that fails now: the setting is right
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path} cannot be read ({reason}): correct {setting}") from None
