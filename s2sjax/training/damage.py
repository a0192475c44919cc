"""What counts as damage to a checkpoint, what does not, and how the processes of a run agree on it.

A wrong fingerprint, a wrong checksum or a missing part is damage. An error of memory, permissions, devices, the network
or the file system is not: it is raised as what it is.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import re
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator

import absl.logging
import jax

from s2sjax.errors import UserError
from s2sjax.training import hosts


class Damaged(Exception):
    """A wrong fingerprint, a wrong checksum or a missing part; the message says which."""


def seal(content: dict) -> dict:
    body = json.dumps(content)
    return {"body": body, "crc32": zlib.crc32(body.encode())}


def unseal(sealed: dict) -> dict:
    if zlib.crc32(sealed["body"].encode()) != sealed["crc32"]:
        raise Damaged("the notes do not match their checksum")
    return json.loads(sealed["body"])


def attempt(read: Callable[[], dict]) -> dict:
    """read(), or Damaged with a short reason. An error that says nothing about the files is raised as it is."""
    with quiet():
        try:
            return read()
        except Exception as error:
            if not is_damage(error):
                raise
            damage = reason(error)
        time.sleep(0.2)  # the other reads of this checkpoint are still running
        gc.collect()
    raise Damaged(damage)


@contextlib.contextmanager
def same_for_all(what: str) -> Iterator[None]:
    """The processes of a run leave the block together: with damage if one found damage, with an error if one failed."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    told = "" if failure is None else f"{'D' if isinstance(failure, Damaged) else 'E'}{reason(failure)}"
    others = hosts.all_gather_text(what, told)
    if failure is not None and not isinstance(failure, Damaged):
        raise failure
    if error_of := next((text[1:] for text in others if text.startswith("E")), None):
        raise UserError(f"another process could not {what}: {error_of}: fix it, and run the same command again")
    if damage := next((text[1:] for text in others if text), None):
        raise Damaged(damage)


_NOT_DAMAGE = "(PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED):"
"""how TensorStore's errors begin"""


def is_damage(error: BaseException | None) -> bool:
    """Whether a failed read is the fault of the checkpoint: not of memory, permissions, devices or the file system."""
    while error is not None:
        if isinstance(error, (MemoryError, PermissionError, TimeoutError, ConnectionError, jax.errors.JaxRuntimeError)):
            return False
        if re.match(_NOT_DAMAGE, str(error)):
            return False
        codes = [int(code) for code in re.findall(r"os_error_code='(\d+)'", str(error))]
        codes += [error.errno] if isinstance(error, OSError) and error.errno else []
        if set(codes) - {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL}:
            return False
        error = error.__cause__ or error.__context__
    return True


def reason(error: Exception) -> str:
    """The first line of an error, shortened."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences Orbax and the tasks that a failed read leaves behind, and restores everything afterwards."""
    level, hook, asyncio_log = absl.logging.get_verbosity(), sys.unraisablehook, logging.getLogger("asyncio")
    drop = lambda record: False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        absl.logging.set_verbosity(absl.logging.FATAL)
        asyncio_log.addFilter(drop)
        sys.unraisablehook = lambda _: None
        try:
            yield
        finally:
            sys.unraisablehook = hook
            asyncio_log.removeFilter(drop)
            absl.logging.set_verbosity(level)
