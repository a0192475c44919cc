"""The exception for user errors. Its message says what is wrong, and the remedy, in one line."""

import difflib
from collections.abc import Sequence

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


def nearest(name: str, names: Sequence[str]) -> str:
    return difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
