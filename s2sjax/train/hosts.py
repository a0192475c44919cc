"""Several processes, one program: each runs the same command, on its own devices, and sees its own rows of the data.

Process 0 alone speaks and writes; what it has written, the others read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from s2sjax.errors import UserError

HEARTBEAT = int(os.environ.get("S2SJAX_HEARTBEAT", "30"))
"""seconds without a sign of life after which a process counts as dead, and the others end"""
PATIENCE = 24 * 3600
"""seconds for which the others wait for what process 0 alone does first: it may have a corpus to fetch"""


def join() -> None:
    """Before anything else of JAX: meets the other processes.

    Slurm, Open MPI, Kubernetes and Cloud TPU tell JAX who they are; elsewhere JAX_COORDINATOR_ADDRESS (host:port of
    process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID do.
    """
    count, index = _number("JAX_NUM_PROCESSES"), _number("JAX_PROCESS_ID")
    try:
        jax.distributed.initialize(num_processes=count, process_id=index, heartbeat_timeout_seconds=HEARTBEAT)
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"--distributed cannot meet the other processes ({reason}): set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES "
            "and JAX_PROCESS_ID, or start it by Slurm, on a Cloud TPU, or with s2sjax launch"
        ) from None


def leave() -> None:
    """Before a process ends on its own: waits for the others, who would take it for dead."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _number(name: str) -> int | None:
    value = os.environ.get(name)
    if value is not None and not value.isdecimal():
        raise UserError(f"{name} is {value!r}: it must be a whole number")
    return None if value is None else int(value)


def leads() -> bool:
    """Whether this process is the one that speaks and writes."""
    return jax.process_index() == 0


def several() -> bool:
    return jax.process_count() > 1


def gathered(rows: np.ndarray) -> np.ndarray:
    """This process's rows, [rows, ...], and those of all others, one process behind the other; all of them must ask."""
    return multihost_utils.process_allgather(rows, tiled=True) if several() else rows


@contextlib.contextmanager
def leader_first(what: str) -> Iterator[None]:
    """Process 0 goes through the block alone, then the others do, and find what it has written."""
    # Not a collective of the devices: those give a process that comes late half a minute.
    wait = multihost.get_barrier_sync_fn()
    if not leads():
        wait(key=what, timeout_ms=PATIENCE * 1000)
    yield
    if leads():
        wait(key=what, timeout_ms=PATIENCE * 1000)
