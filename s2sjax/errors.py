"""The exception for user errors. Its message says what is wrong, and the remedy, in one line."""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher

LONGEST = 800
"""maximal number of characters of an error that are printed"""


class UserError(Exception):
    """An error that the command line prints as `error: MESSAGE`, without a traceback, with exit code 2."""


def one_line(error: object) -> str:
    """An error on one line. A long one is cut in the middle: its start says what is wrong, its end is the remedy."""
    text = str(error)
    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return " ".join(text.splitlines())


def nearest(name: str, names: Iterable[str], cutoff: float = 0.0) -> str:
    """The name that was probably meant, for "did you mean": "" if none has a similarity of at least `cutoff`.

    Names are also compared by their ends and their words: steps and train.stepz -> train.steps; beem -> beam_size.
    """
    ratio = lambda other: SequenceMatcher(None, other, name).ratio()
    similar = {other: (max(weight * ratio(part) for part, weight in _parts(other)), ratio(other)) for other in names}
    best = max(similar, key=similar.__getitem__)
    return best if similar[best][0] >= cutoff else ""


def _parts(name: str) -> Iterator[tuple[str, float]]:
    """Yields the ends of a dotted name, and with less weight their words: a.b_c -> a.b_c, a.b, a.c, b_c, b, c."""
    yield name, 1.0
    group, dot, last = name.rpartition(".")
    for word in last.split("_"):
        yield f"{group}{dot}{word}", 0.95
    if dot:
        yield from _parts(name.partition(".")[2])
