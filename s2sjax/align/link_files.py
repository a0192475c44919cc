"""Readers of sentence pairs and gold alignments, for `s2sjax align`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from s2sjax.align import gold
from s2sjax.align.gold import GoldText
from s2sjax.data.corpora import text_files

Pair = tuple[str, str]


class Input(NamedTuple):
    """The input of the command: pairs[:size] are to be aligned, the others are for training only."""

    pairs: list[Pair]
    size: int
    gold: GoldText | None
    scored: range
    """indices of the pairs that have gold alignments"""


def read(source: str, target: str | None = None, add: Sequence[str] = (), gold_file: str | None = None) -> Input:
    """Reads two text files, or one TSV file; `add` are TSV files of additional training pairs.

    The sentences of a gold file, if any, are training pairs too, unless they are the pairs to be aligned.
    """
    if target:
        pairs = list(text_files.parallel_lines((source, target), ("SOURCE", "TARGET")))
    else:
        pairs = read_pairs(source, "SOURCE")
    size, scored, found = len(pairs), range(0), None
    if gold_file:
        found = gold.read(text_files.lines(gold_file, "--gold"), gold_file)
        if found.pairs and found.pairs != pairs:
            scored = range(size, size + len(found.pairs))
            pairs += found.pairs
        else:
            found.check(pairs)
            scored = range(size)
    for file in add:
        pairs += read_pairs(file, "--add")
    return Input(pairs, size, found, scored)


def read_pairs(path: str, setting: str) -> list[Pair]:
    """Reads a TSV file of source and target; ignores further columns."""
    rows = text_files.read_tsv(path, ("source", "target"), setting, more="anything")
    return [(row.fields[0], row.fields[1]) for row in rows]
