"""Edit distance (Levenshtein 1966) and alignment of two sequences, by dynamic programming.

The distance between two prefixes follows from the distances of three shorter pairs (Wagner and Fischer 1974):

    D[i, 0] = i        D[0, j] = j
    D[i, j] = min( D[i-1, j] + 1                                        delete a_i
                   D[i, j-1] + 1                                        insert b_j
                   D[i-1, j-1] + (0 if a_i == b_j else substitution) )  match or substitute

Symbols are any hashable values: the characters of a string, the words of a sentence, the phones of a word.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from rapidfuzz.distance import Levenshtein

from s2sjax.errors import UserError


class Edit(NamedTuple):
    """One column of an alignment. `left` is None for an insertion, `right` is None for a deletion."""

    operation: Literal["match", "substitute", "insert", "delete"]
    left: Hashable | None
    right: Hashable | None


def distance(a: Sequence[Hashable], b: Sequence[Hashable], substitution: int = 1) -> int:
    """The minimum cost of turning `a` into `b`: insertions and deletions cost 1, substitutions cost `substitution`.

    >>> distance("intention", "execution"), distance("intention", "execution", substitution=2)
    (5, 8)
    """
    _check(substitution)
    if substitution > 1:
        return _table(a, b, substitution)[-1][-1]
    # RapidFuzz compares symbols by hash, so "a" equals 97 and -1 equals -2: replace symbols by unique numbers first.
    numbers: dict[Hashable, int] = {}
    return Levenshtein.distance(*([numbers.setdefault(x, len(numbers)) for x in symbols] for symbols in (a, b)))


def alignment(a: Sequence[Hashable], b: Sequence[Hashable], substitution: int = 1) -> list[Edit]:
    """A minimum-cost alignment of `a` and `b`, from left to right.

    Ties are broken in a fixed order: the path is traced from the end, and prefers a match or substitution to a
    deletion, and a deletion to an insertion. Insertions and deletions are therefore as far left as possible: for
    `gooal` and `goal`, the first `o` is deleted.

    >>> [edit.operation for edit in alignment("monkey", "money")]
    ['match', 'match', 'match', 'delete', 'match', 'match']
    """
    _check(substitution)
    table = _table(a, b, substitution)
    path: list[Edit] = []
    i, j = len(a), len(b)
    while i or j:
        here = table[i][j]
        if i and j and a[i - 1] == b[j - 1]:
            i, j, edit = i - 1, j - 1, Edit("match", a[i - 1], b[j - 1])
        elif i and j and here == table[i - 1][j - 1] + substitution:
            i, j, edit = i - 1, j - 1, Edit("substitute", a[i - 1], b[j - 1])
        elif i and here == table[i - 1][j] + 1:
            i, edit = i - 1, Edit("delete", a[i - 1], None)
        else:
            j, edit = j - 1, Edit("insert", None, b[j - 1])
        path.append(edit)
    return path[::-1]


_MARKS = {"match": "|", "substitute": "s", "insert": "i", "delete": "d"}


def show(alignment: Sequence[Edit]) -> str:
    """Formats an alignment as three lines: the left side, the operations, the right side. `*` is a gap, `␣` a space.

    >>> print(show(alignment("monkey", "money")))
    m o n k e y
    | | | d | |
    m o n * e y
    """
    columns = [(printable(edit.left), _MARKS[edit.operation], printable(edit.right)) for edit in alignment]
    widths = [max(map(text_width, column)) for column in columns]
    lines = (
        " ".join(cell + " " * (width - text_width(cell)) for cell, width in zip(row, widths)).rstrip()
        for row in (zip(*columns) if columns else ((), (), ()))
    )
    return "\n".join(lines)


def printable(symbol: Hashable | None) -> str:
    """The one-line label of a symbol: `*` for a gap, `␣` for a space, `''` for an empty string, `\\n` for a newline."""
    if symbol is None:
        return "*"
    text = str(symbol).replace(" ", "␣") or "''"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _check(substitution: int) -> None:
    if substitution < 1:
        raise UserError(
            f"substitution is {substitution}: it must be at least 1, or different texts would have distance 0"
        )


def _table(a: Sequence[Hashable], b: Sequence[Hashable], substitution: int) -> list[list[int]]:
    """The table D of the equations above, [len(a) + 1][len(b) + 1]."""
    table = [list(range(len(b) + 1))]
    for i, x in enumerate(a, start=1):
        row = [i]
        for y, (diagonal, above) in zip(b, pairwise(table[-1])):
            row.append(min(above + 1, row[-1] + 1, diagonal + (0 if x == y else substitution)))
        table.append(row)
    return table


def text_width(text: str) -> int:
    """The width of the text in a terminal: 2 for a wide East Asian character, 0 for a combining mark."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
