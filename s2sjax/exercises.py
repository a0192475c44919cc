"""Exercises that check themselves: a cell of a notebook says whether an answer is right or wrong, and why.

answer = ...
exercises.check(answer, lambda answer: answer == 4 or f"2 + 2 is not {answer}", "addition")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def check(answer: Any, test: Callable[[Any], bool | str], right: str) -> None:
    """Prints "right: ..." or "wrong: ..." for an answer, or that there is none yet.

    answer: the answer, or ... (Ellipsis) if it is still to be given
    test: returns True, or a sentence that says what is wrong
    right: what a right answer shows

    An answer that makes the test fail with an error is wrong, and the error is printed.

    >>> check(..., lambda answer: answer == 4, "two and two are four")
    not answered yet: replace ... by your answer and run this cell again
    >>> check(4, lambda answer: answer == 4 or f"2 + 2 is not {answer}", "two and two are four")
    right: two and two are four
    >>> check(5, lambda answer: answer == 4 or f"2 + 2 is not {answer}", "two and two are four")
    wrong: 2 + 2 is not 5
    """
    if answer is ...:
        print("not answered yet: replace ... by your answer and run this cell again")
        return
    try:
        found = test(answer)
        verdict = found if isinstance(found, str) else bool(found)
    except Exception as error:  # an answer of another type or shape
        verdict = f"the answer cannot be tested: {type(error).__name__}: {error}"
    if verdict is True:
        print(f"right: {right}")
    else:
        print(f"wrong: {verdict or 'this is not the answer'}")
