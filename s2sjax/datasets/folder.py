"""The folder of the data sets, and paths below it.

A path data:NAME/FILE names a file of a data set. The folder is $S2SJAX_DATA, or `data` in the current directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from s2sjax.files import local_path

PREFIX = "data:"
VARIABLE = "S2SJAX_DATA"


def data_folder() -> Path:
    """The absolute path of the folder of the data sets."""
    return Path(os.path.abspath(os.path.expanduser(local_path(os.environ.get(VARIABLE) or "data"))))


def resolve(path: str) -> str:
    """A path data:NAME/FILE as an absolute path; any other path unchanged."""
    if not path.startswith(PREFIX):
        return path
    return os.path.normpath(data_folder() / path.removeprefix(PREFIX).lstrip("/"))
