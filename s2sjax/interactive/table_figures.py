"""The table of the edit distance, filled cell by cell, and then the path of the alignment."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from s2sjax.errors import UserError
from s2sjax.evaluate.metrics import edit_distance as metric
from s2sjax.evaluate.metrics.edit_distance import printable
from s2sjax.interactive.figure import Figure, static_text

MOST_SYMBOLS = 40
"""maximal number of symbols of each side"""


def edit_distance(reference: Sequence[Hashable], hypothesis: Sequence[Hashable], substitution: int = 1) -> Figure:
    """The edit distance by dynamic programming: the table fills cell by cell, then the cheapest path is traced back.

    reference, hypothesis: strings, which are compared by characters, or lists of words. substitution: its cost.
    """
    if max(len(reference), len(hypothesis)) > MOST_SYMBOLS:
        raise UserError(f"the table would be too large: give at most {MOST_SYMBOLS} symbols on each side")
    edits = metric.alignment(reference, hypothesis, substitution)
    cost = metric.distance(reference, hypothesis, substitution)
    view = {
        "reference": [printable(symbol) for symbol in reference],
        "hypothesis": [printable(symbol) for symbol in hypothesis],
        "equal": [[int(a == b) for b in hypothesis] for a in reference],
        "substitution": substitution,
        "edits": "".join(edit.operation[0] for edit in edits),
    }
    static = static_text(f"{metric.show(edits)}\nedit distance {cost}")
    title = f"edit distance {cost}"
    return Figure("distanceFilm", view, ("film.js", "distance.js"), static, title)
