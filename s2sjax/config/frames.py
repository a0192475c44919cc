"""Corpora of tables with named columns: frames of other libraries, Parquet and JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from functools import cache
from typing import Any

from s2sjax.config import arrow_tables
from s2sjax.config.data import Corpus
from s2sjax.config.in_memory import Fingerprint, Split
from s2sjax.config.paths import FilePath
from s2sjax.config.settings import require, settings
from s2sjax.errors import UserError

SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
"""names of a split in a mapping of splits, such as a `datasets.DatasetDict`"""
FRAMES = "give a frame of pandas, Polars, pyarrow or datasets"


class FrameSplit(Fingerprint):
    """A frame, and the fingerprint of the columns that are read."""

    frame: Any = None
    """frame as given"""
    columns: tuple[str, ...] = ()
    table: Callable[[], arrow_tables.Table] | None = None
    """frame as an Arrow table; None if only the string is known"""

    @classmethod
    def of(cls, name: str, value: Any, columns: tuple[str, ...]) -> FrameSplit:
        """Opens a frame, or takes the string of an earlier one. `name` is for errors."""
        if isinstance(value, FrameSplit):
            if value.frame is None or value.columns == columns:
                return value
            value = value.frame
        if isinstance(value, str):
            return cls.known(name, value, f"{FRAMES}, or use config.FrameFiles for files")
        if isinstance(value, Mapping):
            listed = ", ".join(map(str, list(value)[:6]))
            raise UserError(
                f"{name} is a mapping of {listed}: {FRAMES}, or a mapping of the splits train, dev and test"
            )
        table = arrow_tables.open_frame(name, value, columns)
        table.check(columns)
        rows, digest = arrow_tables.fingerprint(table, columns)
        require(rows > 0, f"{name} has no rows: give some, or leave it out")
        found = cls(f"{rows} examples, sha256 {digest}")
        found.frame, found.columns, found.table = value, columns, lambda: table
        return found

    def stored(self, path: str, columns: tuple[str, ...]) -> FrameSplit:
        """The same frame, read from its copy in a run folder, which is opened and compared when it is needed."""

        @cache
        def table() -> arrow_tables.Table:
            remedy = "copy it again from where the run was made"
            opened = arrow_tables.open_parquet(path, path, f"it: {remedy}")
            rows, digest = arrow_tables.fingerprint(opened, columns)
            same = self == f"{rows} examples, sha256 {digest}"
            require(same, f"{path} has other examples than this run: {remedy}")
            return opened

        found = FrameSplit(self)
        found.columns, found.table = columns, table
        return found


@settings
class Tabular(Corpus):
    """A table with named columns. A task reads one of them as its source, and one or more as its targets."""

    _: KW_ONLY
    source: str = ""
    """column of the source: text, words, frames, a recording or a picture; "a.b" is column b of the column a"""
    target: str | tuple[str, ...] = ""
    """column of the target, the label, the tags or the captions; several columns for more correct targets, or for tags
    and intent; empty for a language model"""
    dev_percent: float = 0.0
    """percentage of the training rows that become the dev split, chosen by a hash of the source"""

    def __post_init__(self):
        require(
            0 <= self.dev_percent < 100,
            f"data.corpus.dev_percent is {self.dev_percent}: it must be at least 0 and below 100",
        )
        both = getattr(self, "dev", None) and self.dev_percent
        require(not both, "data.corpus has both dev and dev_percent: leave one of them out")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, the source first."""
        return columns_of(self.source, self.target)


def columns_of(source: str, target: str | Sequence[str]) -> tuple[str, ...]:
    targets = (target,) if isinstance(target, str) else target
    return (source, *filter(None, targets))


@settings
class Frame(Tabular):
    """Frames of pandas, Polars, pyarrow or Hugging Face datasets: Frame(df, source="en", target="de").

    A mapping of splits can be given in the place of train, such as a `datasets.DatasetDict` with train, validation and
    test. Arrow tables are not copied. A run stores the columns that it reads in its folder, in data/, so that it can be
    evaluated when it is opened again.
    """

    train: Split = FrameSplit()
    """training rows, or a mapping of splits"""
    dev: Split = FrameSplit()
    """rows evaluated during training"""
    test: Split = FrameSplit()
    """rows evaluated at the end"""

    @staticmethod
    def convert_fields(values: dict[str, Any]) -> dict[str, Any]:
        """Opens the frame of each split, and computes the fingerprints of the columns that two other fields name."""
        columns = columns_of(values["source"], values["target"])
        given = values | _splits(values)
        for split in SPLITS:
            if not isinstance(given[split], str) and not columns[0]:
                raise UserError(f"Frame.source is empty: name a column, as in {_proposal(split, given[split])}")
        return given | {split: FrameSplit.of(f"Frame.{split}", given[split], columns) for split in SPLITS}


def _splits(values: Mapping[str, Any]) -> dict[str, Any]:
    """The splits of a mapping that is given as train."""
    given = values["train"]
    if not isinstance(given, Mapping) or "train" not in given:
        return {}
    first = {split: next((name for name in names if name in given), None) for split, names in SPLITS.items()}
    free = ["train", *(split for split in ("dev", "test") if isinstance(values[split], str))]  # not given besides
    return {split: given[first[split]] for split in free if first[split] is not None}


def _proposal(split: str, frame: Any) -> str:
    columns = list(arrow_tables.open_frame(f"Frame.{split}", frame, ()).schema.names)
    source, target = (*columns, "...", "...")[:2]
    return f"source={source!r}, target={target!r}"


@settings
class FrameFiles(Tabular):
    """Tables in files, with named columns: Parquet (.parquet) or JSON lines (.jsonl, .json, plain or .gz).

    A split is one or more files, also of a pattern such as train-*.parquet, whose files are read in the order of their
    names. Paths are relative to the experiment file.
    """

    train: tuple[FilePath, ...] = ()
    """files of the training split"""
    dev: tuple[FilePath, ...] = ()
    """files of the split evaluated during training"""
    test: tuple[FilePath, ...] = ()
    """files of the split evaluated at the end"""

    def __post_init__(self):
        super().__post_init__()
        require(self.source != "", "FrameFiles.source is empty: name the column of the source")
