"""Files that a request may name or send. Their size is checked before they are read.

A path is relative to one folder, which is chosen when the server starts. Every part of it is opened without following
links, so that no link, `..` or race leads out of the folder, and only regular files of a known size are read. All other
paths get the same error as a missing file, so that errors reveal nothing about other files.
"""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

from s2sjax.errors import UserError

MOST_BYTES = 10_000_000
"""maximum total bytes of the files of a request"""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO without a writer would block


class Files:
    """The regular files below a folder."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise UserError(f"--files {folder} is not a folder: name one that exists")

    def read(self, name: str, where: str, most: int = MOST_BYTES) -> bytes:
        """Reads a file of at most `most` bytes. where: its name in errors."""
        try:
            return self._read(name, most)
        except (OSError, ValueError):  # a null character in the name is a ValueError
            raise UserError(
                f"{where} is not a file: give the path of a regular file in the folder of --files, without links; "
                f"the files of a request have at most {MOST_BYTES:,} bytes"
            ) from None

    def _read(self, name: str, most: int) -> bytes:
        *folders, file = name.split("/")
        if any(part in ("", ".", "..") for part in (*folders, file)):
            raise ValueError
        opened = [os.open(self.folder, _FOLDER)]
        try:
            for part in folders:
                opened.append(os.open(part, _FOLDER, dir_fd=opened[-1]))
            opened.append(os.open(file, _FILE, dir_fd=opened[-1]))
            found = os.fstat(opened[-1])
            if not stat.S_ISREG(found.st_mode) or found.st_size > most:
                raise ValueError
            with os.fdopen(opened.pop(), "rb") as stream:
                return stream.read(found.st_size)  # not more, even if the file grows meanwhile
        finally:
            for each in opened:
                os.close(each)


def sent(text: str, where: str) -> bytes:
    """Decodes a file that a request holds in base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise UserError(f"{where} is not base64: send the bytes of a file in base64, without line breaks") from None
