"""Examples in memory (config.InMemory, config.Frame), and their copies in a run folder, one file per split."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from s2sjax import config
from s2sjax.config import arrow_tables, require
from s2sjax.config.frames import FrameSplit
from s2sjax.config.in_memory import Fingerprint, Rows, encode
from s2sjax.data.examples import SPLITS, Example, Split
from s2sjax.errors import UserError
from s2sjax.files import local_draft, naming, replace_file


def examples(corpus: config.InMemory, split: Split) -> Iterator[Example]:
    rows: Any = getattr(corpus, split)
    check_known(corpus, split, not rows or rows.rows is not None)
    for source, *targets in rows.rows or ():
        yield Example(source, tuple(targets))


def check_known(corpus: Any, split: str, known: bool) -> None:
    """Raises if only the fingerprint of the examples is known."""
    what = f"the {split} examples of {type(corpus).__name__} are not stored here, only their fingerprint"
    require(known, f"{what}: give the examples again")


def save(data: Any, folder: Path) -> None:
    """Writes the examples in memory that some settings contain, and that are not in the folder yet."""
    for corpus in config.parts(data):
        for split in SPLITS if isinstance(corpus, config.InMemory | config.Frame) else ():
            found: Any = getattr(corpus, split)
            path = _path(folder, split, found)
            if isinstance(found, Rows) and found.rows and not path.is_file():
                replace_file(path, b"".join(map(encode, found.rows)))
            elif isinstance(found, FrameSplit) and found.table and not path.is_file():
                with naming(path), local_draft(folder, path.name) as local:
                    local.mkdir(parents=True, exist_ok=True)
                    draft = local / f".{path.name}.partial"
                    arrow_tables.write_parquet(found.table(), found.columns, str(draft))
                    os.replace(draft, local / path.name)


def load(data: Any, folder: Path) -> Any:
    """Restores the examples that `save` wrote. Without the files, the run can decode but not be evaluated."""

    def restored(corpus: Any) -> Any:
        if not isinstance(corpus, config.InMemory | config.Frame):
            return corpus
        return config.replace(corpus, **{split: _read(corpus, folder, split) for split in SPLITS})

    return config.mapped(data, restored)


def _path(folder: Path, split: Split, found: Fingerprint) -> Path:
    return folder / f"{split}-{found.sha256[:8]}.{'parquet' if isinstance(found, FrameSplit) else 'jsonl'}"


def _read(corpus: Any, folder: Path, split: Split) -> Fingerprint:
    known: Any = getattr(corpus, split)
    path = _path(folder, split, known)
    if not known or not path.is_file():
        return known
    if isinstance(known, FrameSplit):
        return known.stored(str(path), corpus.columns)
    remedy = "copy it again from where the run was made"
    try:
        lines = path.read_bytes().decode().split("\n")
        found = Rows.of(str(path), [json.loads(line) for line in lines if line])
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): {remedy}") from None
    require(found == known, f"{path} has other examples than this run: {remedy}")
    return found
