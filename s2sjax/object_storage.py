"""Folders in object storage, gs://BUCKET/FOLDER and s3://BUCKET/FOLDER, as paths.

The path is that of etils, as in Orbax; fsspec (gcsfs, s3fs) reads and writes objects, and TensorStore writes on a
condition. Object storage has no folders, appends, renames and locks: an object is put as a whole or not at all. So a
file that grows is a folder of numbered parts (`append`), which reading joins, and `Outbox` puts them from a thread.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import io
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import fsspec
from etils.epath.gpath import PosixGPath

from s2sjax.errors import UserError

PACKAGES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}
"""the package that reads each scheme, and the extra of s2sjax that installs it"""
CREDENTIALS = {
    "gs": "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
}
LIBRARIES = ("gcsfs", "s3fs", "google", "aiohttp", "botocore", "aiobotocore", "requests", "urllib3")
"""packages whose errors are those of the storage, not of the code"""
UNKNOWN_USER = re.compile(
    r"credentials|Anonymous caller|UNAUTHENTICATED|InvalidAccessKeyId|SignatureDoesNotMatch|Invalid (Credentials|JWT)"
    r"|ExpiredToken|invalid_grant|\b401\b",
    re.IGNORECASE,
)
REFUSED = re.compile(
    r"forbidden|access ?denied|permission_?denied|does not exist|NoSuchBucket|\b40[34]\b", re.IGNORECASE
)
BEYOND = re.compile(r"range.{0,8}not satisfiable|InvalidRange", re.IGNORECASE)
"""error of a range that begins after the end of an object"""
PART, WHOLE = ".part", ".whole"
"""suffixes of the parts of a file that grows: a .whole replaces all parts before it"""
MOST_PARTS = 100
"""number of parts that are joined into one"""
SHORTEST, LONGEST = 1.0, 60.0
"""seconds until a failed request is tried again: they double from the one to the other"""
BLOCK = 1 << 24
"""bytes of a request of an object that is read from its beginning to its end"""
PIECE = 1 << 26
"""bytes of a request of an object that is put in pieces"""

for scheme in ("gcs", "s3"):  # Orbax shares these settings: what other hosts have written must be seen
    fsspec.config.conf.setdefault(scheme, {}).setdefault("use_listings_cache", False)
for name in ("gcsfs", "google.auth"):  # they print what they raise, and what they have tried
    logging.getLogger(name).setLevel(logging.CRITICAL)


class ObjectPath(PosixGPath):
    """A path in object storage, with the methods of pathlib.Path. Its errors are OSErrors that name it."""

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        with explaining(self):
            return getattr(file_system(self.scheme), method)(*arguments, **options)

    @property
    def scheme(self) -> str:
        return self.parts[1]

    def absolute(self) -> ObjectPath:
        return self

    def resolve(self, strict: bool = False) -> ObjectPath:
        return self

    def _kind(self) -> str:
        """ "file", "directory", or "" if there is neither. The `exists` of fsspec would hide an outage."""
        try:
            return self._call("info", str(self))["type"]
        except FileNotFoundError:
            return ""

    def exists(self) -> bool:
        return self._kind() != ""

    def is_file(self) -> bool:
        return self._kind() == "file"

    def is_dir(self) -> bool:
        return self._kind() == "directory"

    def iterdir(self) -> Iterator[ObjectPath]:
        names = {path.rstrip("/").rpartition("/")[2] for path in self._call("ls", str(self), detail=False)}
        return (self / name for name in sorted(names))

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        found = self._call("glob", str(self / pattern))
        return (type(self)(f"{self.scheme}://{path}") for path in sorted(found))

    def stat(self) -> Any:
        return SimpleNamespace(st_size=self._call("info", str(self))["size"])

    def open(self, mode: str = "rb", **_: Any) -> Any:
        """Opens an object for reading. It is fetched while it is read; see `upload` for writing."""
        assert mode == "rb"
        return io.BufferedReader(Download(self), 1 << 20)

    def read_bytes(self) -> bytes:
        return self._call("cat_file", str(self))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> int:
        self._call("pipe_file", str(self), data)
        return len(data)

    def write_text(self, data: str, encoding: str = "utf-8") -> int:
        return self.write_bytes(data.encode(encoding))

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._call("rm_file", str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Does nothing: there are no folders."""

    def files(self) -> list[str]:
        """The names of all objects below a folder, relative to it."""
        prefix = f"{str(self).partition('://')[2]}/"
        return [name.removeprefix(prefix) for name in self._call("find", str(self))]

    def copy(self, dst: Any, overwrite: bool = False) -> ObjectPath:
        """Copies an object within the storage."""
        self._call("cp_file", str(self), str(dst))
        return type(self)(dst)

    def rmtree(self, missing_ok: bool = False) -> None:
        try:
            self._call("rm", str(self), recursive=True)
        except FileNotFoundError:
            if not missing_ok:
                raise


def path(address: str) -> Path:
    """The path of an address. Raises if its package is not installed."""
    scheme, _, rest = address.partition(":")
    package, extra = PACKAGES[scheme]
    if importlib.util.find_spec(package) is None:
        raise UserError(f'{address} needs {package}: pip install -e ".[{extra}]"')
    name, _, _ = (rest := rest.strip("/")).partition("/")
    if len(name) < 3:
        raise UserError(
            f"{address} names no bucket, whose name has at least three letters: write {scheme}://BUCKET/..."
        )
    if found := re.search(r"[][*?]", rest):
        raise UserError(f"{address} has {found[0]} in its name, which the clients take for a pattern: leave it out")
    return cast(Path, ObjectPath(f"{scheme}://{rest}"))


@functools.cache
def file_system(scheme: str) -> Any:
    if scheme == "gs" and "NO_GCE_CHECK" not in os.environ and not _is_at_google():
        os.environ["NO_GCE_CHECK"] = "true"  # else the search for credentials waits for a server that is not there
    return fsspec.filesystem(scheme)


def _is_at_google() -> bool:
    """Whether this machine may get credentials from the metadata server of Google Cloud."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    try:
        return bool(socket.getaddrinfo(host.partition(":")[0], 80))
    except OSError:
        return False


# ------------------------------------------------------------------------------------------ errors


@contextlib.contextmanager
def explaining(path: ObjectPath) -> Iterator[None]:
    """Raises the errors of requests for an object as OSErrors that name it, or as UserErrors."""
    try:
        yield
    except Exception as error:
        raise explained(error, str(path)) from error


def explained(error: BaseException, where: str) -> BaseException:
    """The error as an OSError, or a UserError if something must be set. An error of the code is returned unchanged."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
    if not is_of_storage(error):
        return error
    text = reason(error)
    if UNKNOWN_USER.search(text):
        return UserError(f"{where}: no valid credentials ({text}): {CREDENTIALS[where.partition(':')[0]]}")
    return OSError(errno.EACCES if REFUSED.search(text) else errno.EIO, text, where)


def is_of_storage(error: BaseException) -> bool:
    """Whether an error comes from the storage, the network or their clients, not from the code."""
    kinds = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    of_tensorstore = re.match("[A-Z]+(_[A-Z]+)*: ", str(error)) is not None
    return isinstance(error, OSError) or bool(kinds & set(LIBRARIES)) or of_tensorstore


def is_outage(error: BaseException | None) -> bool:
    """Whether the storage cannot be reached at the moment: neither missing objects nor refused access is an outage."""
    found = False
    while error is not None:
        if isinstance(error, FileNotFoundError | PermissionError) or UNKNOWN_USER.search(str(error)):
            return False
        found |= is_of_storage(error)
        error = error.__cause__ or error.__context__
    return found


def reason(error: BaseException) -> str:
    """An error on one line, shortened."""
    return " ".join((str(error).strip() or type(error).__name__).split())[:200]


# ------------------------------------------------------------------------------- TensorStore


def key_value_store(folder: str) -> dict[str, Any]:
    """The TensorStore spec of a folder."""
    scheme, _, rest = folder.partition("://")
    bucket, _, inner = rest.partition("/")
    spec = {"driver": "gcs", "bucket": bucket, "path": f"{inner}/"}
    return as_s3(spec) if scheme == "s3" else spec


def as_s3(spec: Any) -> Any:
    """A TensorStore spec with S3 in place of Google Cloud Storage."""
    if not isinstance(spec, dict):
        return spec
    spec = {name: as_s3(value) for name, value in spec.items()}
    if spec.get("driver") != "gcs":
        return spec
    endpoint, region = os.environ.get("AWS_ENDPOINT_URL"), os.environ.get("AWS_DEFAULT_REGION")
    spec |= {"driver": "s3"} | ({"endpoint": endpoint, "aws_region": region or "us-east-1"} if endpoint else {})
    if "AWS_ACCESS_KEY_ID" in os.environ:  # else TensorStore looks for files, and complains if there are none
        spec["aws_credentials"] = {"type": "environment"}
    return spec


# ------------------------------------------------------------------------------ large objects


class Download(io.RawIOBase):
    """An object that is read from its beginning to its end, and fetched in blocks."""

    def __init__(self, path: ObjectPath):
        self._path = path
        self._file = path._call("open", str(path), "rb", block_size=BLOCK, cache_type="readahead")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        with explaining(self._path):
            found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


class Upload:
    """An object that is put in pieces. It does not exist before it is complete."""

    def __init__(self, path: ObjectPath):
        self._path = path
        self._file = path._call("open", str(path), "wb", block_size=PIECE)

    def write(self, data: bytes | memoryview) -> int:
        with explaining(self._path):
            return self._file.write(data)

    def close(self) -> None:
        with explaining(self._path):
            self._file.close()

    def discard(self) -> None:
        self._file.forced = True  # else fsspec would put what is there when the file is closed or deleted
        with contextlib.suppress(Exception):
            self._file.discard()
        self._file.closed = True


@contextlib.contextmanager
def upload(path: Path) -> Iterator[BinaryIO]:
    """Puts an object in pieces. It appears at the end of the block, and not at all after an error."""
    file = Upload(cast(ObjectPath, path))
    try:
        yield cast(BinaryIO, file)
        file.close()
    except BaseException:
        file.discard()
        raise


class Ranges:
    """Reads ranges of an object, many at a time. During an outage it waits, and `say` prints that once."""

    def __init__(self, path: Path, say: Callable[[str], None] = print):
        self.path, self._say = cast(ObjectPath, path), say
        self._failed = False
        self._lock = threading.Lock()

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """The bytes from each start to its end, fewer or none if the object is shorter."""
        delay = SHORTEST
        while True:
            try:
                found = self._read(starts, ends)
            except (OSError, UserError) as error:
                if BEYOND.search(str(error)):
                    return [b""] * len(starts)
                if not is_outage(error):
                    raise
                self._tell(f"{self.path} cannot be read ({reason(error.__cause__ or error)}): waiting", failed=True)
                time.sleep(delay)
                delay = min(2 * delay, LONGEST)
            else:
                self._tell(f"{self.path} can be read again", failed=False)
                return found

    def _read(self, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        paths = [str(self.path)] * len(starts)
        return self.path._call("cat_ranges", paths, list(starts), list(ends), on_error="raise")

    def _tell(self, line: str, failed: bool) -> None:
        with self._lock:  # several threads read
            changed, self._failed = failed != self._failed, failed
        if changed:
            self._say(line)


# ---------------------------------------------------------------------------- files that grow


def parts(path: Path) -> list[Path]:
    """The parts of a file, in order: the last .whole and what comes after it."""
    try:
        found = [part for part in path.iterdir() if part.suffix in (PART, WHOLE)]
    except FileNotFoundError:
        return []
    found.sort(key=lambda part: int(part.stem))
    first = max((index for index, part in enumerate(found) if part.suffix == WHOLE), default=0)
    return found[first:]


def read(path: Path) -> str:
    """Joins the parts of a file. Raises FileNotFoundError if there are none."""
    for _ in range(3):
        found = [str(part) for part in parts(path)]
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        try:
            return b"".join(cast(ObjectPath, path)._call("cat_file", part) for part in found).decode()
        except FileNotFoundError:
            continue  # they have been joined meanwhile: list them again
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def replace(path: Path, text: str) -> int:
    """Replaces the content of a file by one part, which counts before the others are deleted. Returns its number."""
    known = list(path.iterdir()) if path.exists() else []
    number = 1 + max((int(part.stem) for part in known), default=0)
    (path / f"{number:08d}{WHOLE}").write_bytes(text.encode())
    for part in known:
        part.unlink(missing_ok=True)
    return number


def append(path: Path, text: str, number: int) -> int:
    """Puts part `number`. Returns the number of the last part."""
    (path / f"{number:08d}{PART}").write_bytes(text.encode())
    return replace(path, read(path)) if number % MOST_PARTS == 0 else number


class Outbox:
    """Puts small files from a thread, so that neither the delay of the storage nor an outage holds up the training.

    Lines for a file are put in order, those that wait for each other in one part; of several contents of a file, only
    the last one is put. If the storage cannot be reached, `say` prints that once, and it is tried again.
    """

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._lines: dict[Path, list[str]] = {}
        self._whole: dict[Path, str] = {}
        self._numbers: dict[Path, int] = {}
        self._changed = threading.Condition()
        self._failed: BaseException | None = None
        self._busy = self._closed = False
        self._thread = threading.Thread(target=self._put_all, name="outbox", daemon=True)
        self._thread.start()

    def append(self, path: Path, line: str) -> None:
        with self._changed:
            self._lines.setdefault(path, []).append(line)
            self._changed.notify_all()

    def put(self, path: Path, content: str) -> None:
        with self._changed:
            self._whole[path] = content
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits until everything is put, or until an object could not be put. Returns whether everything is put."""
        with self._changed:
            return self._changed.wait_for(lambda: self._failed or not self._pending(), seconds) and not self._pending()

    def close(self, seconds: float) -> None:
        """Waits until everything is put, also through an outage, but not for ever."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._pending(), seconds):
                files = ", ".join(str(path) for path in [*self._lines, *self._whole])
                why = reason(self._failed) if self._failed else f"not within {seconds:.0f} s"
                self._say(f"the last lines of {files} could not be written ({why})")

    def _pending(self) -> bool:
        return bool(self._lines or self._whole or self._busy)

    def _put_all(self) -> None:
        delay = SHORTEST
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._whole or self._closed)
                if not self._lines and not self._whole:
                    return
                kind = self._lines or self._whole
                path = next(iter(kind))
                content = kind.pop(path)
                self._busy = True
            try:
                self._put(path, content)
                delay, self._failed = SHORTEST, None
            except Exception as error:
                self._failed, first = error, self._failed is None
                with self._changed:
                    if isinstance(content, list):
                        self._lines = {path: [*content, *self._lines.pop(path, [])], **self._lines}
                    else:
                        self._whole.setdefault(path, content)
                if first:
                    self._say(f"{path} cannot be written ({reason(error)}): the training goes on, and tries again")
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
            if self._failed is not None:
                time.sleep(delay)
                delay = min(2 * delay, LONGEST)

    def _put(self, path: Path, content: Iterable[str] | str) -> None:
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
            return
        if path not in self._numbers:
            self._numbers[path] = max((int(part.stem) for part in parts(path)), default=0)
        self._numbers[path] = append(path, "".join(f"{line}\n" for line in content), self._numbers[path] + 1)
