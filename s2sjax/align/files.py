"""Sentence pairs and gold alignments from files, for `s2sjax align`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from s2sjax.align import gold
from s2sjax.align.gold import GoldText
from s2sjax.data import tables
from s2sjax.errors import UserError

Pair = tuple[str, str]


class Input(NamedTuple):
    """What the command reads: pairs[:size] are to be aligned, the others are only learned from."""

    pairs: list[Pair]
    size: int
    gold: GoldText | None
    scored: range
    """the pairs that the gold alignment is about"""


def read(source: str, target: str | None = None, add: Sequence[str] = (), gold_file: str | None = None) -> Input:
    """Two text files, or one TSV file; `add` are more TSV files to learn from.

    The sentences of a gold file, where it has any, are learned from too, unless they are those to be aligned.
    """
    pairs = read_texts(source, target) if target else read_pairs(source, "SOURCE")
    size, scored, found = len(pairs), range(0), None
    if gold_file:
        found = gold.read(tables.lines(gold_file, "--gold"), gold_file)
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
    """source, tab, target; further columns are not read."""
    rows = tables.read_tsv(path, ("source", "target"), setting, more="anything")
    return [(row.fields[0], row.fields[1]) for row in rows]


def read_texts(source: str, target: str) -> list[Pair]:
    """Line n of one file translates line n of the other."""
    pairs = list(zip_longest(tables.lines(source, "SOURCE"), tables.lines(target, "TARGET")))
    counts = [sum(line is not None for line in side) for side in zip(*pairs)]
    if counts[0] != counts[1]:
        raise UserError(
            f"{source} has {counts[0]:,} lines but {target} has {counts[1]:,}: line n of one must translate line n of "
            "the other"
        )
    return pairs
