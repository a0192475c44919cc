"""The lock of a run folder in object storage: a lease, FOLDER/lock, an object that only its holder renews.

Every write is conditional on the version of the object that the writer knows, so of two processes only one succeeds.
The holder renews the lease every few seconds. A process that finds the lease of another one watches whether it is
renewed, because the clocks of two hosts cannot be compared, and takes it over if it is not. One of a process that has
ended on this machine is taken over at once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from s2sjax import object_storage
from s2sjax.errors import UserError
from s2sjax.runs import lock

TIMEOUT = 30.0
"""seconds that one read or write may take"""
TRIES = 3
"""maximal number of writes to take the lease: only other processes that want it, or a missing bucket, prevent one"""
_gone: set[tuple[str, int]] = set()
"""processes (machine, number) elsewhere that did not renew a lease: a sweep that is killed leaves one for each run"""
RETRIES = {name: {"max_retries": 6, "max_delay": "8s"} for name in ("gcs_request_retries", "s3_request_retries")}


class Found(NamedTuple):
    """The lease as it was read."""

    version: bytes
    holder: lock.Holder | None
    """None if there is no lease, or an unreadable one"""
    token: str
    machine: str


class Lease:
    """The lease of a run folder, held until `release`. Raises if another process holds it."""

    def __init__(self, folder: Path):
        import tensorstore

        self.path = folder / lock.NAME
        self._token, self._beats, self._version = uuid.uuid4().hex, 0, b""
        self._ended, self._mutex = threading.Event(), threading.Lock()
        try:
            context = tensorstore.Context(RETRIES)
            spec = object_storage.key_value_store(str(folder))
            self._store = self._done(tensorstore.KvStore.open(spec, context=context))
            self._take()
        except OSError as error:
            raise lock.unwritable(folder, error) from error
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        for _ in range(TRIES):
            found = self._read()
            if found.holder and not self._is_abandoned(found, found.holder):
                raise lock.refusal(self.path.parent, found.holder)
            if self._write(found.version):
                return
        raise OSError(errno.ENOENT, "check that the bucket exists", str(self.path))

    def keep(self) -> bool:
        """Renews the lease. Returns False if it is lost to another process. Raises an OSError during an outage."""
        with self._mutex:
            return self._write(self._version)

    def lost(self) -> UserError:
        folder, who = self.path.parent, self._read().holder or "another process"
        return UserError(
            f"{folder} is now being trained by {who}, because {self.path} was deleted or not renewed for a while: "
            "nothing more is saved here; stop one of the two, or give another --out"
        )

    def release(self) -> None:
        """Deletes the lease, unless it is lost."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError, UserError):
            self._done(self._store.write(lock.NAME, None, if_equal=self._version))

    def _beat(self) -> None:
        while not self._ended.wait(lock.BEAT):
            with contextlib.suppress(OSError, UserError):
                self.keep()

    def _is_abandoned(self, found: Found, holder: lock.Holder) -> bool:
        """Whether the holder has ended on this machine, or does not renew the lease while we watch it."""
        process, is_here = (found.machine, holder.pid), found.machine == _machine()
        if process in _gone or (is_here and not _runs(holder.pid)):
            return True
        if lock.is_renewed(self.path.parent, holder, self._version_of_holder):
            return False
        if not is_here:
            _gone.add(process)
        return True

    def _version_of_holder(self) -> bytes | None:
        found = self._read()
        return found.version if found.holder else None

    def _read(self) -> Found:
        result = self._done(self._store.read(lock.NAME))
        try:
            page = json.loads(result.value)
            holder = lock.Holder(**{name: page[name] for name in lock.Holder._fields})
            return Found(result.stamp.generation, holder, page["token"], page["machine"])
        except (ValueError, TypeError, LookupError):
            return Found(result.stamp.generation, None, "", "")

    def _write(self, version: bytes) -> bool:
        """Writes the lease if the object has this version, was deleted, or is ours. Returns whether we hold it."""
        self._beats += 1
        page = {**lock.this_process()._asdict(), "machine": _machine(), "token": self._token, "beat": self._beats}
        write = lambda version: self._done(self._store.write(lock.NAME, json.dumps(page), if_equal=version)).generation
        if not (written := write(version)):
            # A write whose answer was lost has changed the version too: then the object has our token.
            found = self._read()
            written = found.version if found.token == self._token else b"" if found.holder else write(found.version)
        self._version = written or version
        return bool(written)

    def _done(self, future: Any) -> Any:
        try:
            return future.result(TIMEOUT)
        except Exception as error:
            raise object_storage.explained(error, str(self.path)) from error


def _machine() -> str:
    """Names the running system and its space of process numbers."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return uuid.uuid4().hex


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
