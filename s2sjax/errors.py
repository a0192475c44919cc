"""The one exception for a user's mistake: what is wrong, and the remedy, in one line."""

LONGEST = 800
"""characters of an error that are printed"""


class UserError(Exception):
    """Shown by the command line as `error: MESSAGE`, without a traceback, exit code 2."""


def one_line(error: object) -> str:
    """An error as it is printed: of a long one, the start, which names the fault, and the end, which is the remedy."""
    text = str(error)
    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return " ".join(text.splitlines())
