"""Atomic file writes, and errors that name the file."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def naming(path: object) -> Iterator[None]:
    """Adds the file name to an OSError without one, such as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes a file atomically, and creates its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    with naming(path):
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(draft, path)
