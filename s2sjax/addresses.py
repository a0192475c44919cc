"""Paths of this machine and addresses elsewhere, such as gs://bucket/run, which s2sjax does not open."""

from __future__ import annotations

import os
import re
from pathlib import Path

from s2sjax.errors import UserError

MOUNTS = {"gs": "gcsfuse", "s3": "mount-s3", "az": "blobfuse2", "abfs": "blobfuse2", "hdfs": "hadoop-fuse-dfs"}
"""programs that show a bucket as a folder"""
LONGEST = 4096
"""characters of a path, as in Linux"""


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path of this machine. An address, such as gs://bucket/run, is refused: it would become a folder `gs:`."""
    if len(str(path)) > LONGEST:
        raise UserError(
            f"{str(path)[:60]}... has {len(str(path)):,} characters, a path at most {LONGEST:,}: name a file"
        )
    address = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+", str(path))
    if not address:
        return Path(path)
    scheme, rest = address[1], str(path)[address.end() :]
    if scheme == "file":
        remedy = f"write /{rest}"
    elif scheme in ("http", "https", "ftp"):
        remedy = "download it, and name the file or folder"
    else:
        how = f", for example with {MOUNTS[scheme]}," if scheme in MOUNTS else ""
        remedy = f"mount it{how} and give the folder below the mount"
    raise UserError(f"{scheme}://{rest} is not a path of this machine, and s2sjax opens no other: {remedy}")
