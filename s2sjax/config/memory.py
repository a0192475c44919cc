"""A corpus of examples in memory, for notebooks and scripts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Annotated, Any

import tyro

from s2sjax.config.data import Corpus
from s2sjax.config.settings import require, settings
from s2sjax.errors import UserError

PAIRS = "give (source, target) pairs of strings"


class Rows(str):
    """Examples of a split. As a string it is "3 examples, sha256 2c26b4...", or empty: this is what config.json, errors
    and comparisons see of them.
    """

    rows: tuple[tuple[str, ...], ...] | None = None
    """(source, target, further targets ...) of each; None if only the string is known, as in a run that was opened"""

    @classmethod
    def of(cls, name: str, value: Any) -> Rows:
        """From pairs, data.Examples, or the string of another. `name` is for errors."""
        if isinstance(value, Rows):
            return value
        if isinstance(value, str):
            known = value == "" or re.fullmatch(r"\d+ examples, sha256 [0-9a-f]{64}", value)
            require(bool(known), f"{name} is {value!r:.60}: {PAIRS}, or use config.TextFiles for files")
            return cls(value)
        require(isinstance(value, Iterable), f"{name} is {value!r:.60}: {PAIRS}")
        rows = tuple(_row(f"{name}, example {number}", row) for number, row in enumerate(value, start=1))
        digest = hashlib.sha256()
        for number, row in enumerate(rows, start=1):
            try:
                digest.update(encode(row))
            except UnicodeEncodeError as error:
                raise UserError(f"{name}, example {number} is not text ({error.reason}): correct it") from None
        found = cls(f"{len(rows)} examples, sha256 {digest.hexdigest()}" if rows else "")
        found.rows = rows
        return found

    @property
    def sha256(self) -> str:
        return self.rpartition(" ")[2]


def encode(row: tuple[str, ...]) -> bytes:
    """One line of JSON."""
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _row(where: str, row: Any) -> tuple[str, ...]:
    """("a", "b"), ("a", "b", "c"), ("a", ["b", "c"]) and Example("a", ("b", "c")), each as ("a", "b", "c")."""
    wrong = f"{where} is {row!r:.60}: {PAIRS}"
    require(not isinstance(row, str | bytes) and isinstance(row, Iterable), wrong)
    source, *targets = row
    if targets and isinstance(targets[0], list | tuple):
        targets = list(targets[0])
    require(len(targets) > 0 and all(isinstance(text, str) for text in (source, *targets)), wrong)
    return (source, *targets)


class _Convert:
    convert = staticmethod(Rows.of)


Split = Annotated[str, _Convert(), tyro.conf.Fixed]


@settings
class InMemory(Corpus):
    """Examples in memory: InMemory(train=[("source", "target"), ...]). Several targets of a source are all correct.

    A run keeps them in its folder, in data/, so that it can be evaluated when it is opened again.
    """

    train: Split = Rows()
    """training examples"""
    dev: Split = Rows()
    """examples evaluated during training"""
    test: Split = Rows()
    """examples evaluated at the end"""
