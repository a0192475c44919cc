"""Examples in memory (config.InMemory), and their copies in a run folder, one file per split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from s2sjax import config
from s2sjax.config import require
from s2sjax.config.in_memory import Rows, encode
from s2sjax.data.examples import SPLITS, Example, Split
from s2sjax.errors import UserError
from s2sjax.files import replace_file


def examples(corpus: config.InMemory, split: Split) -> Iterator[Example]:
    rows: Any = getattr(corpus, split)
    if rows and rows.rows is None:
        what = f"the {split} examples of InMemory are not stored here, only their fingerprint"
        raise UserError(f"{what}: give the examples again")
    for source, *targets in rows.rows or ():
        yield Example(source, tuple(targets))


def save(corpus: Any, folder: Path) -> None:
    """Writes the in-memory examples, also those of a mixture's corpora, that are not in the folder yet."""
    for split, rows in _splits(corpus):
        path = _path(folder, split, rows)
        if rows.rows and not path.is_file():
            replace_file(path, b"".join(map(encode, rows.rows)))


def load(corpus: Any, folder: Path) -> Any:
    """Restores the examples that `save` wrote. Without the files, the run can decode but not be evaluated."""
    if isinstance(corpus, config.Mixture):
        return config.replace(corpus, corpora=tuple(load(part, folder) for part in corpus.corpora))
    if not isinstance(corpus, config.InMemory):
        return corpus
    found = {split: _read(_path(folder, split, rows), rows) for split, rows in _splits(corpus)}
    return config.replace(corpus, **found)


def _splits(corpus: Any) -> Iterator[tuple[Split, Rows]]:
    if isinstance(corpus, config.Mixture):
        for part in corpus.corpora:
            yield from _splits(part)
    elif isinstance(corpus, config.InMemory):
        for split in SPLITS:
            yield split, getattr(corpus, split)


def _path(folder: Path, split: Split, rows: Rows) -> Path:
    return folder / f"{split}-{rows.sha256[:8]}.jsonl"


def _read(path: Path, rows: Rows) -> Rows:
    if not rows or not path.is_file():
        return rows
    try:
        lines = path.read_bytes().decode().split("\n")
        found = Rows.of(str(path), [json.loads(line) for line in lines if line])
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): copy it again from where the run was made") from None
    require(found == rows, f"{path} has other examples than this run: copy it again from where the run was made")
    return found
