"""A corpus of examples in memory, for notebooks and scripts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Annotated, Any, Self

import tyro

from s2sjax.config.arrow_tables import missing_column
from s2sjax.config.data import Corpus
from s2sjax.config.settings import require, settings
from s2sjax.errors import UserError

PAIRS = "give (source, target) pairs of strings"


class Fingerprint(str):
    """The examples of a split, with a string value for config.json, errors and comparisons.

    The string is "3 examples, sha256 2c26b4...", or empty. In an opened run, only the string may be known.
    """

    @classmethod
    def known(cls, name: str, value: str, remedy: str) -> Self:
        """The string without the examples. `name` and `remedy` are for the error about any other string."""
        stored = value == "" or re.fullmatch(r"\d+ examples, sha256 [0-9a-f]{64}", value)
        require(bool(stored), f"{name} is {value!r:.60}: {remedy}")
        return cls(value)

    @property
    def sha256(self) -> str:
        return self.rpartition(" ")[2]


class Rows(Fingerprint):
    """Examples in memory."""

    rows: tuple[tuple[str, ...], ...] | None = None
    """(source, target, further targets ...) of each example; None if only the string is known"""

    @classmethod
    def of(cls, name: str, value: Any, columns: Sequence[str] = ()) -> Rows:
        """Converts pairs, data.Examples, mappings with these columns, or the string of Rows. `name` is for errors."""
        if isinstance(value, Rows):
            return value
        if isinstance(value, str):
            return cls.known(name, value, f"{PAIRS}, or use config.TextFiles for files")
        require(isinstance(value, Iterable), f"{name} is {value!r:.60}: {PAIRS}")
        if isinstance(value, Mapping):
            raise UserError(f"{name} is a mapping of {_listed(value)}: give a list of rows, one for each example")
        rows = tuple(_row(f"{name}, example {number}", row, columns) for number, row in enumerate(value, start=1))
        digest = hashlib.sha256()
        for number, row in enumerate(rows, start=1):
            try:
                digest.update(encode(row))
            except UnicodeEncodeError as error:
                raise UserError(f"{name}, example {number} is not text ({error.reason}): correct it") from None
        found = cls(f"{len(rows)} examples, sha256 {digest.hexdigest()}" if rows else "")
        found.rows = rows
        return found


def encode(row: tuple[str, ...]) -> bytes:
    """Encodes a row as one line of JSON."""
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _row(where: str, row: Any, columns: Sequence[str]) -> tuple[str, ...]:
    """(source, target, further targets ...) of a row.

    ("a", "b", "c"), ("a", ["b", "c"]) and Example("a", ("b", "c")) -> ("a", "b", "c"): a list is several targets
    (["a", "b"], ["X", "Y"]) -> ("a b", "X Y"): if the source is a list of words, the target is a list of words or tags
    """
    if isinstance(row, Mapping):
        return text_row(where, columns, values_of(where, row, columns))
    wrong = f"{where} is {row!r:.60}: {PAIRS}"
    require(isinstance(row, Iterable) and not isinstance(row, str | bytes | Set), wrong)
    source, *targets = (row.source, row.targets) if hasattr(row, "targets") else list(row) or [None]
    require(len(targets) > 0 and all(map(_is_text, (source, *targets))), wrong)
    return _joined(source, targets)


def text_row(where: str, columns: Sequence[str], values: Sequence[Any]) -> tuple[str, ...]:
    """The row of the values of named columns, the source first. Numbers of classes among the targets become digits."""
    source, *targets = values
    texts = [source, *map(_digits, targets)]
    for name, text, value in zip(columns, texts, values, strict=True):
        if not _is_text(text):
            raise UserError(f"{where}: the column {name!r} is {value!r:.60}: it must be a text, or a list of texts")
    return _joined(source, texts[1:])


def _joined(source: Any, targets: Sequence[Any]) -> tuple[str, ...]:
    if not isinstance(source, str):
        return tuple(each if isinstance(each, str) else " ".join(each) for each in (source, *targets))
    return (source, *(text for each in targets for text in ([each] if isinstance(each, str) else each)))


def _digits(value: Any) -> Any:
    """1 -> "1", [0, 1] -> ["0", "1"]; anything else is left."""
    if isinstance(value, list):
        return [_digits(each) for each in value]
    return str(value) if isinstance(value, int) else value


def _is_text(value: Any) -> bool:
    """Whether a value is a string or a nonempty list of strings."""
    many = isinstance(value, list | tuple) and len(value) > 0
    return isinstance(value, str) or (many and all(isinstance(each, str) for each in value))


def values_of(where: str, row: Mapping, columns: Sequence[str]) -> list[Any]:
    """The values of the columns of a mapping; "translation.en" is row["translation"]["en"]."""
    require(len(row) > 0, f"{where} has no columns: {PAIRS}")
    if not columns:
        there = [name for name, _ in _flat(row)]
        source, target = (*there, "...")[:2]
        remedy = f"name them, as in source={source!r}, target={target!r}"
        raise UserError(f"{where} has the columns {_listed(there)}: {remedy}")
    return [_value(where, row, name) for name in columns]


def _value(where: str, row: Mapping, column: str) -> Any:
    if column in row:
        return row[column]
    if _is_null(row, column.rpartition(".")[0]):
        return None
    there = dict(_flat(row)) | {name: value for name, value in row.items() if isinstance(value, Mapping)}
    require(column in there, missing_column(where, column, [name for name, _ in _flat(row)]))
    return there[column]


def _is_null(row: Mapping, column: str) -> bool:
    """Whether a column of columns, such as a.b, or one that contains it is null. False if it is not in the row."""
    value: Any = row
    for name in column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
        if value is None:
            return True
    return False


def _flat(row: Mapping, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _listed(names: Iterable[Any]) -> str:
    found = [str(name) for name in names]
    return f"{', '.join(found[:6])}{', ...' if len(found) > 6 else ''}"


class _Later:
    """Leaves the conversion to `InMemory.convert_fields`."""

    convert = staticmethod(lambda name, value: value)


Split = Annotated[str, _Later(), tyro.conf.Fixed]


@settings
class InMemory(Corpus):
    """Examples in memory: InMemory(train=[("source", "target"), ...]). All targets of a source are correct.

    Rows can be mappings, as in Hugging Face datasets: InMemory(train=rows, source="en", target="de"). A run stores the
    examples in its folder, in data/, so that it can be evaluated when it is opened again.
    """

    train: Split = Rows()
    """training examples"""
    dev: Split = Rows()
    """examples evaluated during training"""
    test: Split = Rows()
    """examples evaluated at the end"""
    source: Annotated[str, tyro.conf.Fixed] = ""
    """column of the source text or words, if rows are mappings; "a.b" is column b of the mapping a"""
    target: Annotated[str | tuple[str, ...], tyro.conf.Fixed] = ""
    """column of the target, the label or the tags; several columns for more correct targets, or for tags and intent"""

    @staticmethod
    def convert_fields(values: dict[str, Any]) -> dict[str, Any]:
        """Converts the examples of each split to `Rows`, by the columns that two other fields name."""
        source, target = values["source"], values["target"]
        for name, value, other in (("source", source, target), ("target", target, source)):
            there = "target" if name == "source" else "source"
            wrong = f"InMemory.{name} is empty and {there} is {other!r:.60}: name both columns, or none"
            require(bool(value) or not other, wrong)
        columns = (source, *((target,) if isinstance(target, str) else target)) if source else ()
        return values | {
            split: Rows.of(f"InMemory.{split}", values[split], columns) for split in ("train", "dev", "test")
        }
