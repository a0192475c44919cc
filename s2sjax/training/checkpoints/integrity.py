"""Detection of damaged checkpoints, and agreement on it among the processes of a run.

Damage must be proved: by a wrong fingerprint or checksum, a missing or truncated file, or metadata that cannot be
parsed. Other errors are not damage: those of memory, permissions, devices, the network or the file system are reported
in one line, and those of the code are raised unchanged.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import os
import re
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import absl.logging
import jax

from s2sjax.errors import UserError
from s2sjax.files import as_path, in_storage
from s2sjax.training import multihost


class Damaged(Exception):
    """A wrong fingerprint, a wrong checksum or a missing part; the message says which."""


def seal(content: dict) -> dict:
    """The content as JSON text, with its checksum."""
    body = json.dumps(content)
    return {"body": body, "crc32": zlib.crc32(body.encode())}


def unseal(sealed: dict) -> dict:
    """The content of `seal`; raises Damaged if it does not match its checksum."""
    try:
        body, crc32 = sealed["body"].encode(), sealed["crc32"]
    except (KeyError, TypeError, AttributeError):
        raise Damaged("the notes have no checksum") from None
    if zlib.crc32(body) != crc32:
        raise Damaged("the notes do not match their checksum")
    return json.loads(body)


def attempt(read: Callable[[], dict], where: Path, find_fault: Callable[[], str] = lambda: "") -> dict:
    """Returns read(); raises Damaged with a short reason if the files of the checkpoint `where` are damaged.

    find_fault: called if the error of read() proves nothing; describes what is wrong with the files, "" if nothing is.
    """
    with quiet():
        try:
            return read()
        except Exception as error:
            if proof := proof_of_damage(error, where):
                damage = reason(proof)
            elif trouble := error_of_the_machine(error) or _error_of_storage(error, where):
                why = f"cannot read {where} ({reason(trouble)})"
                raise UserError(f"{why}: fix it, and run the same command again") from error
            elif not (damage := find_fault()):
                raise
        time.sleep(0.2)  # the other reads of this checkpoint are still running
        gc.collect()
    raise Damaged(damage)


@contextlib.contextmanager
def same_for_all(what: str) -> Iterator[None]:
    """Makes all processes leave the block together: with Damaged if one found damage, with an error if one failed."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    outcome = "" if failure is None else f"{'D' if isinstance(failure, Damaged) else 'E'}{reason(failure)}"
    outcomes = multihost.all_gather_text(what, outcome)
    if failure is not None and not isinstance(failure, Damaged):
        raise failure
    if other := next((text[1:] for text in outcomes if text.startswith("E")), None):
        raise UserError(f"another process could not {what}: {other}: fix it, and run the same command again")
    if damage := next((text[1:] for text in outcomes if text), None):
        raise Damaged(damage)


_LOST_DATA = "((NOT_FOUND|DATA_LOSS|OUT_OF_RANGE|FAILED_PRECONDITION): )?Error (opening|reading|decoding|parsing) "
_STATUS = "[A-Z]+(_[A-Z]+)*: "
"""prefix of TensorStore errors; an invalid argument has no status"""
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}


def proof_of_damage(error: BaseException | None, where: Path) -> BaseException | None:
    """The error, or cause, that proves that files of the checkpoint `where` are missing or truncated, or None.

    A checkpoint that is missing as a whole proves nothing: training may have deleted it, or its disk is not mounted.
    """
    if not where.is_dir() or _os_errors(error) - _MISSING:
        return None
    while error is not None and not _is_proof(error, where):
        error = error.__cause__
    return error


def _is_proof(error: BaseException, where: Path) -> bool:
    if isinstance(error, OSError):
        named = (
            as_path(os.fsdecode(error.filename)).is_relative_to(where) if error.filename else str(where) in str(error)
        )
        return named and (isinstance(error, FileNotFoundError) or error.errno in _MISSING)
    if isinstance(error, (Damaged, json.JSONDecodeError, UnicodeDecodeError)):
        return True
    return isinstance(error, ValueError) and re.match(_LOST_DATA, str(error)) is not None


def error_of_the_machine(error: BaseException | None) -> BaseException | None:
    """The error, or cause, of memory, devices, the network or the file system; None if the code is at fault."""
    kinds = (OSError, MemoryError, jax.errors.JaxRuntimeError)
    while error is not None and not isinstance(error, kinds) and not re.match(_STATUS, str(error)):
        error = error.__cause__ or error.__context__
    return error


def _error_of_storage(error: BaseException | None, where: Path) -> BaseException | None:
    """The error, or cause, of the libraries that read object storage."""
    if not in_storage(where):
        return None
    from s2sjax import object_storage

    while error is not None and not object_storage.is_of_storage(error):
        error = error.__cause__ or error.__context__
    return error


def _os_errors(error: BaseException | None) -> set[int]:
    """The error numbers of the operating system, including those in messages of TensorStore."""
    found: set[int] = set()
    while error is not None:
        found |= {int(code) for code in re.findall(r"os_error_code='(\d+)'", str(error))}
        found |= {error.errno} if isinstance(error, OSError) and error.errno else set()
        error = error.__cause__ or error.__context__
    return found


def reason(error: BaseException) -> str:
    """The first line of an error, shortened."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences Orbax, and the tasks that a failed read leaves running; restores all logging settings afterwards."""
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
