"""The one exception for a user's mistake: what is wrong, and the remedy, in one line."""

import contextlib
from collections.abc import Iterator


class UserError(Exception):
    """Shown by the command line as `error: MESSAGE`, without a traceback, exit code 2."""


@contextlib.contextmanager
def naming(path: object) -> Iterator[None]:
    """Names the file in an error of the operating system that names none, such as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise
