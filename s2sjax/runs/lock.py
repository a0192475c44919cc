"""The lock of a run folder: one process, or pod, trains in it at a time.

The leader locks the folder and FOLDER/lock, a file that names the process and its start, with flock(2): the kernel
releases both when the process ends for any reason. Some shared file systems keep such locks on one host only, or have
none. Therefore the holder also touches the file every few seconds, and a process that finds the file of another host
watches whether it is still being touched. A deleted file is written again. If the folder cannot be locked and another
process has replaced the file, the first holder saves nothing more: see `verify`.

In object storage the lock is a lease: see lease.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from s2sjax.errors import UserError
from s2sjax.files import in_storage
from s2sjax.training import multihost

NAME = "lock"
BEAT = 10.0
"""seconds between two touches of the lock file"""
PATIENCE = 60.0
"""seconds without a touch after which a holder on another host counts as dead"""
UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.EBADF)
"""errors of file systems without locks; NFS cannot lock a folder, because folders cannot be opened for writing"""
_held: dict[Path, Any] = {}
"""the locks of this process, by the absolute path of the folder"""


class Holder(NamedTuple):
    """The process that a lock file names."""

    host: str
    pid: int
    user: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user} on {self.host}, since {self.since}"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds the lock of a run folder, which is created if needed. Raises if another process holds it.

    With several processes, the leader takes the lock, and all of them raise if that fails.
    """
    taken: list[Any] = []
    refusal = ""
    if multihost.is_leader():
        try:
            taken.append(_take(folder))
        except UserError as error:
            refusal = str(error)
    if refusal := multihost.all_gather_text("lock", refusal)[0]:
        raise UserError(refusal)
    _held.update((folder.absolute(), lock) for lock in taken)
    try:
        yield
    finally:
        for lock in taken:
            del _held[folder.absolute()]
            lock.release()


def verify(folder: Path) -> None:
    """Raises if this process has lost the lock of a folder. Call it before saving anything."""
    if (lock := _held.get(folder.absolute())) and not lock.keep():
        raise lock.lost()


def _take(folder: Path) -> Any:
    if not in_storage(folder):
        return _Lock(folder)
    from s2sjax.runs.lease import Lease

    return Lease(folder)


class _Lock:
    def __init__(self, folder: Path):
        self.path = folder / NAME
        self._ended = threading.Event()
        self._mutex = threading.Lock()
        try:
            self._made = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as opened:
                # The folder is locked too where that is possible: unlike the file, it is not deleted by mistake.
                self._folder = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, self._folder)
                self._flock(self._folder)
                self._file = self._open()
                opened.callback(os.close, self._file)
                self._write()
                opened.pop_all()
        except (FileExistsError, NotADirectoryError):
            file = next((path for path in (folder, *folder.parents) if path.is_file()), folder)
            raise UserError(f"{file} is a file, not a folder: give another --out") from None
        except OSError as error:
            raise unwritable(folder, error) from error
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(this_process()._asdict()).encode(), 0)

    def _open(self) -> int:
        """Opens and locks the file."""
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                supported = self._flock(file)
                holder = _parsed(os.pread(file, 4096, 0))
                if (
                    holder
                    and not (supported and holder.host == socket.gethostname())
                    and is_renewed(self.path.parent, holder, self._touched)
                ):
                    raise refusal(self.path.parent, holder)
                if self._is_at_path(file):
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # the previous holder has deleted it meanwhile

    def _flock(self, file: int) -> bool:
        """Locks the file. Returns False if the file system does not support locks."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal(self.path.parent, self._holder()) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            return False
        return True

    def _holder(self) -> Holder | None:
        """The process that the lock file names; None if it cannot be read."""
        with contextlib.suppress(OSError):
            return _parsed(self.path.read_bytes())
        return None

    def lost(self) -> UserError:
        folder, who = self.path.parent, self._holder() or "another process"
        return UserError(
            f"{folder} is now being trained by {who}, because {self.path} was deleted or replaced: nothing more is "
            "saved here; stop one of the two, or give another --out"
        )

    def _touched(self) -> int | None:
        """The time of the last write. The file is opened each time, so that NFS asks its server."""
        try:
            with open(self.path, "rb") as file:
                return os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None

    def _is_at_path(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with contextlib.suppress(OSError):
                self.keep()
                os.utime(self._file)

    def keep(self) -> bool:
        """Writes the file again if it was deleted. Returns False if the lock is lost to another process."""
        with self._mutex:
            if self._is_at_path(self._file):
                return True
            if self.path.exists() or not self.path.parent.is_dir():
                return False
            new = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                # Of two processes that create the file, only one can lock it: if it is the other one, give up.
                self._flock(new)
                if not self._is_at_path(new) or _parsed(os.pread(new, 4096, 0)):
                    raise FileExistsError(self.path)
            except (UserError, OSError):
                os.close(new)
                return False
            os.close(self._file)
            self._file = new
            self._write()
            return True

    def release(self) -> None:
        """Deletes the file, and the folders created for it if they are empty."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._is_at_path(self._file):
                self.path.unlink()
        os.close(self._file)
        os.close(self._folder)
        with contextlib.suppress(OSError):
            for folder in self._made:
                folder.rmdir()


def unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(f"cannot write in {folder} ({error.strerror or error}): fix it, or give another --out")


def refusal(folder: Path, holder: Holder | None) -> UserError:
    who = str(holder or "another process")
    return UserError(f"{folder} is being trained by {who}: wait for it, stop it, or give another --out")


def is_renewed(folder: Path, holder: Holder, version: Callable[[], Any]) -> bool:
    """Whether the lock changes while we watch it. The clocks of two hosts cannot be compared.

    version: what changes with the lock; None once there is none
    """
    print(f"waiting up to {PATIENCE:.0f} s to see whether {holder}, is still training in {folder}", flush=True)
    first, end = version(), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(min(1.0, BEAT))
        if (now := version()) != first:
            return now is not None
    return False


def this_process() -> Holder:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container in which this user id has no name
        user = str(os.getuid())
    return Holder(socket.gethostname(), os.getpid(), user, datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))


def _parsed(content: bytes) -> Holder | None:
    """The process that the content of a lock file names; None if it is empty or unreadable."""
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None
