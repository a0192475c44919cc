"""The folders of checkpoints: which are complete, and how they are moved and deleted.

A local checkpoint has its name once it is complete. In object storage, where nothing can be renamed, it is complete
once it has Orbax's marker, which is written last.

    python -m s2sjax.training.checkpoints.folders RUN       lists those of a run, or of the runs of a sweep
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path
from typing import Any, cast

from s2sjax.errors import UserError
from s2sjax.files import as_path, in_storage

MARKER = "commit_success.txt"


def found(folder: Path, pattern: str = "*") -> list[Path]:
    """The complete checkpoints in a folder, and other folders there."""
    if in_storage(folder):
        return [marker.parent for marker in folder.glob(f"{pattern}/{MARKER}")]
    inside = folder.iterdir() if pattern == "*" else folder.glob(pattern)  # glob would find nothing in a file
    return [path for path in inside if path.is_dir()]


def of_runs(folder: Path) -> list[Path]:
    """The complete checkpoints of the run in a folder, or of the runs of the sweep there."""
    inside = [*found(folder, "checkpoints/*"), *found(folder, "*/checkpoints/*")]
    return sorted(path for path in inside if path.name.isdecimal())


def exists(checkpoint: Path) -> bool:
    """Whether there is a complete checkpoint."""
    return (checkpoint / MARKER).exists() if in_storage(checkpoint) else checkpoint.exists()


def remove(checkpoint: Path) -> None:
    """Deletes a checkpoint. In object storage its marker is deleted first."""
    if not in_storage(checkpoint):
        return shutil.rmtree(checkpoint)
    (checkpoint / MARKER).unlink(missing_ok=True)
    return cast(Any, checkpoint).rmtree(missing_ok=True)


def move(checkpoint: Path, new: Path) -> None:
    """Renames a checkpoint. In object storage it is copied, and the copy is complete before the original is deleted."""
    if not in_storage(checkpoint):
        return os.rename(checkpoint, new)
    cast(Any, new).rmtree(missing_ok=True)  # an incomplete copy
    for name in sorted(cast(Any, checkpoint).files(), key=lambda name: name == MARKER):
        cast(Any, checkpoint / name).copy(new / name)
    return remove(checkpoint)


def remove_incomplete(folder: Path) -> None:
    """Deletes what killed saves have left in object storage. Orbax would also delete what it fails to look at."""
    if in_storage(folder) and folder.exists():
        names = {name.partition("/")[0] for name in cast(Any, folder).files() if "/" in name}
        for name in sorted(names - {path.name for path in found(folder)}):
            remove(folder / name)


@functools.cache
def adapt_orbax() -> None:
    """Makes Orbax read and write s3:// by the spec that it builds for gs://, with TensorStore's driver for S3."""
    from orbax.checkpoint._src.serialization import tensorstore_utils

    from s2sjax import object_storage

    build = tensorstore_utils.build_kvstore_tspec

    @functools.wraps(build)
    def build_kvstore_tspec(directory: str, *arguments: Any, **options: Any) -> Any:
        if not str(directory).startswith("s3:"):
            return build(directory, *arguments, **options)
        return object_storage.as_s3(build(str(directory).replace("s3:", "gs:", 1), *arguments, **options))

    tensorstore_utils.build_kvstore_tspec = build_kvstore_tspec


if __name__ == "__main__":
    try:
        print(*of_runs(as_path(sys.argv[1])), sep="\n")
    except (OSError, UserError) as error:
        sys.exit(f"error: {error}")
