"""The rows of frames, Parquet files and JSON lines (config.Frame, config.FrameFiles), one at a time.

    for row in rows(corpus, "train"):
        row.where                   "Frame.train, row 7", "part-1.parquet, row 7" or "train.jsonl, line 7"
        row.source, row.targets     Python values; lists of numbers are NumPy arrays

A batch of rows is converted at a time, so that a table larger than memory can be read.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.config import arrow_tables, relative_path, require
from s2sjax.config.frames import FrameSplit
from s2sjax.config.in_memory import text_row, values_of
from s2sjax.data.corpora import memory_reader, text_files
from s2sjax.data.examples import Example, split_of
from s2sjax.errors import UserError

JSON_LINES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


class Row(NamedTuple):
    """The values of a row."""

    where: str
    """frame or file and the number of the row from 1, for errors"""
    source: Any
    targets: tuple[Any, ...]


def rows(corpus: config.Tabular, split: str) -> Iterator[Row]:
    """The rows of a split. With `dev_percent`, equal sources are in the same split."""
    percent = corpus.dev_percent
    held_out = percent > 0 and split != "test"
    for row in _all_rows(corpus, "train" if held_out else split):
        if not held_out or split_of(key(row.source), percent, 0) == split:
            yield row


def require_target(corpus: config.Tabular) -> None:
    name = type(corpus).__name__
    require(len(corpus.columns) > 1, f"{name}.target is empty: name the column of the target, as in target='label'")


def located(corpus: config.Tabular, split: str) -> Iterator[tuple[str, Example]]:
    """The examples of text, with their places for errors."""
    require_target(corpus)
    for row in rows(corpus, split):
        source, *targets = text_row(row.where, corpus.columns, (row.source, *row.targets))
        yield row.where, Example(source, tuple(targets))


def examples(corpus: config.Tabular, split: str) -> Iterator[Example]:
    return (example for _, example in located(corpus, split))


def sources(corpus: config.Tabular, split: str) -> Iterator[str]:
    """The source texts alone."""
    for row in rows(corpus, split):
        yield text_row(row.where, corpus.columns[:1], (row.source,))[0]


def array(value: Any) -> np.ndarray | None:
    """Nested lists of numbers as one array; None if the value is no such list, or if its lists are unequal."""
    if not isinstance(value, list | np.ndarray) or len(value) == 0:
        return None
    try:
        found = np.asarray(value)
    except ValueError:
        return None
    return found if found.dtype.kind in "biuf" else None


def encoded(value: Any) -> bytes | str | None:
    """The content of a file, or else its path, of a value of a Hugging Face audio or image column, or of bytes."""
    if isinstance(value, Mapping):
        content = value.get("bytes") or value.get("path")
        return content if isinstance(content, bytes | str) else None
    return value if isinstance(value, bytes) else None


def key(value: Any) -> str:
    """The text that decides the split of a source: itself, its words, or a hash."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    return hashlib.sha256(_bytes(value)).hexdigest()


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping):
        return b"".join(_bytes(each) for each in value.values() if each is not None)
    found = array(value)
    return repr(value).encode() if found is None else found.tobytes()


# -------------------------------------------------------------------------------------- reading


def _all_rows(corpus: config.Tabular, split: str) -> Iterator[Row]:
    given = getattr(corpus, split)
    setting = f"data.corpus.{split}"
    if isinstance(given, FrameSplit):
        memory_reader.check_known(corpus, split, not given or given.table is not None)
        if given.table:
            yield from _of_table(given.table(), corpus.columns, f"{type(corpus).__name__}.{split}")
        return
    for path in _files(given, setting):
        if path.endswith(".parquet"):
            name = relative_path(path)
            yield from _of_table(arrow_tables.open_parquet(path, name, setting), corpus.columns, name)
        else:
            yield from _of_json(path, corpus.columns, setting)


def _files(paths: tuple[str, ...], setting: str) -> Iterator[str]:
    """The files of a split, those of a pattern in the order of their names."""
    require(len(paths) > 0, f"{setting} is empty: give one or more Parquet or JSON lines files")
    for path in paths:
        found = [path] if Path(path).exists() or not glob.has_magic(path) else sorted(glob.glob(path))
        require(bool(found), f"there is no file {relative_path(path)}: correct {setting}")
        for file in found:
            known = file.endswith((".parquet", *JSON_LINES))
            require(known, f"{relative_path(file)}: its format is unknown: give .parquet, .jsonl or .jsonl.gz files")
            yield file


def _of_table(table: arrow_tables.Table, columns: tuple[str, ...], name: str) -> Iterator[Row]:
    number = 0
    for arrays in table.batches(columns):
        for source, *targets in zip(*map(arrow_tables.values, arrays), strict=True):
            number += 1
            yield Row(f"{name}, row {number}", source, tuple(targets))


def _of_json(path: str, columns: tuple[str, ...], setting: str) -> Iterator[Row]:
    for number, line in enumerate(text_files.lines(path, setting), start=1):
        where = f"{relative_path(path)}, line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            whole = number == 1 and line.lstrip()[0] in "[{"
            remedy = "write one JSON object on each line, not one value over several" if whole else "correct it"
            raise UserError(f"{where} is not JSON: {remedy}") from None
        require(isinstance(row, dict), f"{where} is {line!r:.60}: write one JSON object on each line")
        source, *targets = values_of(where, row, columns)
        if "\\ud" in line.lower():  # perhaps half of a pair of surrogates, such as of an emoji that was cut
            try:
                json.dumps((source, targets), ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                raise UserError(f"{where} is not text ({error.reason}): correct it") from None
        yield Row(where, source, tuple(targets))
