"""Paths of this machine and in object storage, files that are written completely or not at all, and how both are
displayed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from s2sjax.errors import UserError

IN_STORAGE = re.compile(r"(gs|s3):/+")
"""the beginning of an address in object storage; pathlib.Path would make gs:/ of gs://"""
MOUNTS = {"gs": "gcsfuse", "s3": "mount-s3", "az": "blobfuse2", "abfs": "blobfuse2", "hdfs": "hadoop-fuse-dfs"}
"""programs that mount a bucket as a folder, by URL scheme"""
BEGUN = ".partial"
"""object in a folder in object storage that is not complete yet"""
LONGEST = 4096
"""maximal number of characters of a path, as in Linux"""


def as_path(path: str | os.PathLike[str]) -> Path:
    """Returns a local path, or that of an address in object storage: gs://BUCKET/FOLDER or s3://BUCKET/FOLDER."""
    if not in_storage(path):
        return local_path(path)
    from s2sjax import object_storage  # fsspec and etils are slow to import

    return object_storage.path(IN_STORAGE.sub(r"\1://", str(path), count=1))


def in_storage(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an address in object storage."""
    return IN_STORAGE.match(str(path)) is not None


def local_path(path: str | os.PathLike[str]) -> Path:
    """Returns a local path. Raises for an address such as gs://bucket/run, which would become a folder `gs:`."""
    if len(str(path)) > LONGEST:
        raise UserError(
            f"{str(path)[:60]}... has {len(str(path)):,} characters, a path at most {LONGEST:,}: name a file"
        )
    address = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+", str(path))
    if not address:
        return Path(path)
    scheme, rest = address[1], str(path)[address.end() :]
    if scheme == "gcs":
        remedy = f"write gs://{rest}"
    elif scheme == "file":
        remedy = f"write /{rest}"
    elif scheme in ("http", "https", "ftp"):
        remedy = "download it, and name the file or folder"
    else:
        how = f", for example with {MOUNTS[scheme]}," if scheme in MOUNTS else ""
        remedy = f"mount it{how} and give the folder below the mount"
    raise UserError(f"{scheme}://{rest} is not a local path, which is needed here: {remedy}")


def relative_path(path: str | os.PathLike[str], base: Path | None = None) -> str:
    """A path for display: relative to `base` (default: the current directory) if it is below it."""
    if in_storage(path):
        return str(path)
    absolute, base = Path(path).absolute(), (base or Path.cwd()).absolute()
    return str(absolute.relative_to(base)) if absolute.is_relative_to(base) else str(path)


def readable_size(size: float) -> str:
    """A number of bytes for display: 1234 -> "1.2 kB", 45_600_000 -> "46 MB"."""
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.5 or unit == "GB":
            break
    return f"{size:.1f} {unit}" if size < 9.95 else f"{size:.0f} {unit}"


@contextlib.contextmanager
def naming(path: object) -> Iterator[None]:
    """Adds the file name to an OSError without one, such as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def replace_file(path: Path, content: str | bytes, suffix: str = "partial") -> None:
    """Writes a file atomically, and creates its parent folders. In object storage it is put at once.

    suffix: suffix of the file that is written first; several processes that write the same file have their own.
    """
    if in_storage(path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return
    with _replacing(path, suffix) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Writes a large file in pieces: it appears at the end of the block, and not at all after an error."""
    if in_storage(path):
        from s2sjax import object_storage

        with object_storage.upload(path) as file:
            yield file
        return
    with _replacing(path, "partial") as draft, open(draft, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _replacing(path: Path, suffix: str) -> Iterator[Path]:
    """A file beside `path`, which takes its place at the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{suffix}")
    try:
        with naming(path):
            yield draft
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def read_growing(path: Path) -> str:
    """The text of a file that grows during training, such as metrics.jsonl. In object storage its parts are joined."""
    if in_storage(path):
        from s2sjax import object_storage

        return object_storage.read(path)
    return path.read_text(encoding="utf-8")


def copy_folder(source: Path, target: Path) -> None:
    """Copies the files of a folder and of the folders in it. Either may be in object storage."""
    for name in _files(source):
        copy_file(source / name, target / name)


def copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as file, writing(target) as copy:
        shutil.copyfileobj(file, copy, 1 << 24)


def _files(folder: Path) -> list[str]:
    """The names of all files below a folder, relative to it."""
    if in_storage(folder):
        return cast(Any, folder).files()
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def local_copy(folder: Path) -> Iterator[Path]:
    """A local folder with the files of a folder: the folder itself, or a temporary copy of one in object storage."""
    if not in_storage(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="s2sjax-") as copy:
        copy_folder(folder, Path(copy))
        try:
            yield Path(copy)
        except UserError as error:
            raise UserError(str(error).replace(copy, str(folder))) from error


@contextlib.contextmanager
def local_draft(folder: Path, last: str) -> Iterator[Path]:
    """A local folder to write in: the folder itself, or a temporary one, whose files are put in object storage at the
    end of the block. The file `last` is put at last, so that the folder is complete once it is there."""
    if not in_storage(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="s2sjax-") as draft:
        yield Path(draft)
        (folder / BEGUN).write_bytes(b"")
        for name in sorted({*_files(Path(draft))} - {last}):
            copy_file(Path(draft) / name, folder / name)
        (folder / BEGUN).unlink()
        copy_file(Path(draft) / last, folder / last)


def is_free(folder: Path) -> bool:
    """Whether a folder does not exist or is empty. In object storage, deletes what a killed `local_draft` has put."""
    if in_storage(folder) and (folder / BEGUN).exists():
        cast(Any, folder).rmtree()
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
