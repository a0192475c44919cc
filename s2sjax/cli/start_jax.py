"""Start of a command: the options and compilation cache of JAX, and signal handlers."""

import contextlib
import glob
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from s2sjax.errors import UserError

THREADS = 8
"""number of XLA threads for each simulated CPU device"""


@contextlib.contextmanager
def ends_at_sigterm() -> Iterator[None]:
    """Exits at a SIGTERM outside the training loop, which has its own handler. All steps are saved then."""

    def end(*_) -> None:
        print("interrupted: run the same command again to continue", flush=True)
        sys.exit(0)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


@contextlib.contextmanager
def ends_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` in a new thread at the first Ctrl-C or SIGTERM, and exits at once at the second."""

    def handle(number: int, _: Any) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: os._exit(128 + number))
        threading.Thread(target=stop, daemon=True).start()

    former = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, before in former.items():
            signal.signal(each, before)


def find_devices_quietly() -> None:
    """Makes JAX find its devices without the warnings of libtpu, if that is installed but there is no TPU."""
    if importlib.util.find_spec("libtpu") and not (glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")):
        import jax

        from s2sjax.core.backend.device import quiet

        with quiet(), contextlib.suppress(Exception):  # the first use of a device reports the error
            jax.devices()


def start_jax(distributed: bool = False, shares_device: bool = False) -> Path:
    """Starts JAX with a persistent compilation cache, and returns the folder of the cache.

    distributed: connects to the other processes, of which only the first prints.
    shares_device: leaves memory of the device to other libraries in this process, as in benchmarks.
    """
    if shares_device:  # JAX would reserve three quarters of a GPU's memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    from s2sjax.core.backend.device import ATTENTION, UNROLL, use_compilation_cache

    for name, one, other in ((ATTENTION, "xla", "cudnn"), (UNROLL, "1", "all")):
        if (forced := os.environ.get(name)) not in (None, "", one, other):
            raise UserError(f"{name} is {forced!r} in the environment: set it to {one} or {other}, or unset it")
    options: Any = jax.config
    if options.jax_num_cpu_devices > 0:
        # A simulated device may take part in several collectives at once, each in its own thread. If no thread is left
        # for a device that the others wait for, this is a deadlock.
        threads = max(THREADS * options.jax_num_cpu_devices, os.cpu_count() or 1)
        os.environ.setdefault("PJRT_NPROC", str(threads))
    if distributed:
        from s2sjax.training import multihost

        multihost.initialize()
        if not multihost.is_leader():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    find_devices_quietly()
    return use_compilation_cache()
