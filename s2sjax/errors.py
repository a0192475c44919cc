"""The one exception for a user's mistake: what is wrong, and the remedy, in one line."""

import contextlib
from collections.abc import Iterator

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


@contextlib.contextmanager
def naming(path: object) -> Iterator[None]:
    """Names the file in an error of the operating system that names none, such as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise
