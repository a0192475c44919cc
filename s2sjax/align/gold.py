"""Alignments as text, and their scores.

In Pharaoh format, a line has the links of a sentence pair, `0-0 1-2`: source word 0 with target word 0, 1 with 2. A
gold alignment may also have possible links, `1?3`. With the predicted links A, the sure gold links S, and the sure and
possible gold links P of all sentences (Och and Ney 2003):

    precision = |A & P| / |A|    recall = |A & S| / |S|    AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from s2sjax.align.symmetrize import Link, Links
from s2sjax.errors import UserError

LINK = re.compile(r"(\d+)([-?])(\d+)", re.A)


class Gold(NamedTuple):
    """The gold alignment of a sentence pair."""

    sure: Collection[Link]
    possible: Collection[Link]
    """possible links, including the sure ones"""


class Agreement(NamedTuple):
    """Scores in percent. AER is the alignment error rate; lower is better."""

    aer: float
    precision: float
    recall: float
    sentences: int

    def __str__(self) -> str:
        return f"AER {self.aer:4.1f}%  precision {self.precision:5.1f}%  recall {self.recall:5.1f}%"


def score(links: Sequence[Links], gold: Sequence[Gold]) -> Agreement:
    """Compares the links of each sentence with its gold alignment.

    >>> score([{(0, 0), (1, 2)}], [Gold({(0, 0)}, {(0, 0), (1, 1)})])
    Agreement(aer=33.3..., precision=50.0, recall=100.0, sentences=1)
    """
    if len(links) != len(gold):
        raise UserError(
            f"there are {len(links)} alignments but {len(gold)} gold alignments: give one for each sentence"
        )
    found = right = sure = in_sure = 0
    for mine, (certain, possible) in zip(map(set, links), gold):
        found, sure = found + len(mine), sure + len(set(certain))
        in_sure += len(mine & set(certain))
        right += len(mine & (set(certain) | set(possible)))
    percent = lambda part, whole: 100 * part / max(whole, 1)
    aer = 100 * (1 - (in_sure + right) / (found + sure)) if found + sure else 0.0
    return Agreement(aer, percent(right, found), percent(in_sure, sure), len(gold))


def table(links: Mapping[str, Sequence[Links]], gold: Sequence[Gold]) -> str:
    """Formats a line of scores for each method."""
    width = max(map(len, links))
    lines = [f"{name:<{width}}  {score(found, gold)}" for name, found in links.items()]
    return "\n".join([f"on {len(gold):,} gold sentence{'' if len(gold) == 1 else 's'}:", *lines])


def pharaoh(links: Links) -> str:
    """Formats links in Pharaoh format.

    >>> pharaoh({(1, 2), (0, 0)})
    '0-0 1-2'
    """
    return " ".join(f"{i}-{j}" for i, j in sorted(links))


def parse(line: str, where: str) -> Gold:
    """Parses a line in Pharaoh format: sure links `0-0`, possible links `0?0`. `where` is for error messages."""
    sure, possible = set(), set()
    for word in line.split():
        match = LINK.fullmatch(word)
        if not match:
            raise UserError(f"{where}: {word!r:.40} is not a link: write 0-1 for a sure and 0?1 for a possible link")
        link = (int(match[1]), int(match[3]))
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Gold(sure, possible)


class GoldText(NamedTuple):
    """A gold file. Its lines are only links, or source, tab, target, tab, links."""

    path: str
    gold: list[Gold]
    pairs: list[tuple[str, str]]
    """sentence pairs; empty if the lines are only links"""

    def check(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Raises a UserError if a link is outside its sentence pair."""
        if len(pairs) != len(self.gold):
            raise UserError(
                f"{self.path} has {len(self.gold):,} lines, but there are {len(pairs):,} sentence pairs: give links "
                "for each pair, or the sentences in the same file (source<tab>target<tab>links)"
            )
        for number, (gold, pair) in enumerate(zip(self.gold, pairs), start=1):
            sizes = [len(text.split()) for text in pair]
            for i, j in sorted(gold.possible):
                if i >= sizes[0] or j >= sizes[1]:
                    raise UserError(
                        f"{self.path}, line {number}: the link {i}-{j} is outside the sentences of {sizes[0]} and "
                        f"{sizes[1]} words: count words from 0, the source first"
                    )


def read(lines: Iterable[str], path: str) -> GoldText:
    """Parses the lines of a gold file."""
    gold: list[Gold] = []
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        columns = line.split("\t")
        where = f"{path}, line {number}"
        if len(columns) not in (1, 3) or (number > 1 and (len(columns) == 3) != bool(pairs)):
            expected = "1 or 3" if number == 1 else "3" if pairs else "1"
            raise UserError(
                f"{where} has {len(columns)} columns, not {expected}: write on every line either links, or "
                "source<tab>target<tab>links"
            )
        gold.append(parse(columns[-1], where))
        if len(columns) == 3:
            pairs.append((columns[0], columns[1]))
    found = GoldText(path, gold, pairs)
    if pairs:
        found.check(pairs)
    return found
