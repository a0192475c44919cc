r"""Text files by line: UTF-8, plain or .gz. Every error names the file and the line.

    for row in read_tsv("train.tsv", ("text", "label")):
        row.fields                      ("a good film", "1")
        row.where                       "train.tsv, line 1"

    read_column("series.csv", "price", "data.series.file")      the numbers of a CSV column

TSV is tab separated, without quoting and without a header. Only "\n" or "\r\n" ends a line: others, such as U+2028, are
text.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from s2sjax.config import relative_path
from s2sjax.errors import UserError


class Row(NamedTuple):
    where: str
    """file and line, for errors"""
    fields: tuple[str, ...]


def read_tsv(
    path: str | Path, columns: Sequence[str], setting: str = "data.folder", origin: str = "", more: str = ""
) -> Iterator[Row]:
    """The rows of a TSV file; each has one field for each of the named `columns`, which are for errors.

    `setting` is the field that names the file. `origin` says where a data set comes from, if the file is missing.
    `more`: what further fields are; there may be any number of them. Without it there are none.
    """
    form = ", a tab, ".join([*columns, more] if more else columns)
    if origin and not Path(path).expanduser().exists():
        raise UserError(f"there is no file {relative_path(path)} (each line: {form}) of {origin}: correct {setting}")
    for number, line in enumerate(lines(path, setting), start=1):
        fields = tuple(line.split("\t"))
        if len(fields) < len(columns) or (len(fields) > len(columns) and not more):
            raise UserError(f"{path}, line {number} has {len(fields)} of {len(columns)} columns: write {form}")
        yield Row(f"{path}, line {number}", fields)


def read_column(path: str | Path, column: str, setting: str, origin: str = "") -> list[float]:
    """The numbers of one column of a CSV file, whose first line names the columns."""
    if origin and not Path(path).expanduser().exists():
        raise UserError(f"there is no file {relative_path(path)} (CSV, column {column}) of {origin}: correct {setting}")
    rows = _csv_rows(path, setting)
    _, names = next(rows)
    if column not in names:
        raise UserError(f"{path} has no column {column!r}: its first line names {', '.join(names)}")
    place, found = names.index(column), []
    for number, fields in rows:
        try:
            value = float(fields[place]) if len(fields) == len(names) else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            shown = ",".join(fields)
            raise UserError(f"{path}, line {number} has no number in column {column!r} ({shown!r:.60}): correct it")
        found.append(value)
    return found


def _csv_rows(path: str | Path, setting: str) -> Iterator[tuple[int, list[str]]]:
    """Each row of a CSV file, with the number of its last line."""
    rows = csv.reader(lines(path, setting))
    try:
        for fields in rows:
            yield rows.line_num, fields
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num} is not CSV ({error}): correct it") from None


def lines(path: str | Path, setting: str) -> Iterator[str]:
    """The lines of a text file, without their ends. `setting` is the field that names the file."""
    number = 0
    for number, line in enumerate(_byte_lines(path, setting), start=1):
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise UserError(f"{path}, line {number}: not UTF-8: convert the file to UTF-8") from None
    if number == 0:
        raise UserError(f"{path} is empty: put examples in it, or change {setting}")


def _byte_lines(path: str | Path, setting: str) -> Iterator[bytes]:
    """The lines, without the byte order mark that some editors write."""
    file = Path(path).expanduser()
    try:
        with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as opened:
            first = opened.readline().removeprefix(b"\xef\xbb\xbf")
            if first:
                yield first
            yield from opened
    except FileNotFoundError:
        raise UserError(f"there is no file {relative_path(path)}: correct {setting}") from None
    except (OSError, EOFError, zlib.error) as error:  # a folder, no permission, a damaged .gz
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path} cannot be read ({reason}): correct {setting}") from None
