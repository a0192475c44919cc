"""Multi-process runs: every process runs the same command on its own devices and reads its own rows of the data.

Process 0 is the leader. Only the leader prints and writes; the other processes read what it has written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from s2sjax.errors import UserError

HEARTBEAT = int(os.environ.get("S2SJAX_HEARTBEAT", "30"))
"""seconds without a heartbeat after which a process counts as dead, and the others exit"""
TEXT = 1024
"""maximum size in bytes of a text that processes exchange"""
_barriers = itertools.count()
LEADER_TIMEOUT = 24 * 3600
"""seconds that the other processes wait for the leader, which may have to download a corpus"""


def initialize() -> None:
    """Connects to the other processes. Must be called before any other JAX function.

    JAX detects them under Slurm, Open MPI and Kubernetes and on Cloud TPU. Elsewhere set
    JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID.
    """
    count, index = _number("JAX_NUM_PROCESSES"), _number("JAX_PROCESS_ID")
    try:
        jax.distributed.initialize(num_processes=count, process_id=index, heartbeat_timeout_seconds=HEARTBEAT)
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"--distributed cannot reach the other processes ({reason}): set JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID, or start it with Slurm, on a Cloud TPU, or with s2sjax launch"
        ) from None


def shutdown() -> None:
    """Waits for the other processes, which would otherwise count this one as dead when it exits."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _number(name: str) -> int | None:
    value = os.environ.get(name)
    if value is not None and not value.isdecimal():
        raise UserError(f"{name} is {value!r}: it must be a whole number")
    return None if value is None else int(value)


def is_leader() -> bool:
    """Whether this process prints and writes."""
    return jax.process_index() == 0


def is_multiprocess() -> bool:
    return jax.process_count() > 1


def all_gather(rows: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    """Concatenates the rows [rows, ...] of all processes in process order. All processes must call it.

    Of a global array, it returns each row once and in order, even if processes hold the same rows.
    """
    return multihost_utils.process_allgather(rows, tiled=True) if is_multiprocess() else rows


def wait_for_all(what: str) -> None:
    """Waits for all processes, without a collective of the devices, which would time out after half a minute."""
    from orbax.checkpoint import multihost  # slow to import

    key = f"{what} {next(_barriers)}"  # names of barriers must be unique
    multihost.get_barrier_sync_fn()(key=key, timeout_ms=LEADER_TIMEOUT * 1000)


def all_gather_text(what: str, text: str) -> list[str]:
    """Gathers a text from each process, in process order, cut to TEXT bytes. All processes must call it."""
    if not is_multiprocess():
        return [text]
    wait_for_all(what)
    encoded = text.encode()[:TEXT]
    row = np.frombuffer(encoded.ljust(TEXT, b"\0"), np.uint8)[None]
    return [bytes(other).rstrip(b"\0").decode(errors="ignore") for other in all_gather(row)]


@contextlib.contextmanager
def leader_first(what: str) -> Iterator[None]:
    """Runs the block on the leader first, then on the other processes, which find what the leader has written."""
    if not is_leader():
        wait_for_all(what)
    yield
    if is_leader():
        wait_for_all(what)
