"""SIGTERM, noted so that the training loop can save before it ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils


class _Interrupted(BaseException):
    """Raised by the signal handler inside `interruptible`; no `except Exception` may catch it."""


class Interruptible:
    interrupted = False


class Preemption:
    """Notes a SIGTERM; a second one ends the process at once.

    In a multi-process run JAX handles the signal, and all processes stop at the same step.
    """

    def __init__(self):
        self._distributed = jax.distributed.is_initialized()
        self._noted = False
        self._interruptible = False
        self._previous: Any = None

    def __enter__(self) -> Preemption:
        if not self._distributed and threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(self, *_) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)

    def _handle(self, *_) -> None:
        self._noted = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._interruptible:
            raise _Interrupted

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[Interruptible]:
        """A block whose result is not needed when a SIGTERM arrives: it is left at once, with `interrupted` set."""
        block = Interruptible()
        self._interruptible = True
        try:
            yield block
        except _Interrupted:
            block.interrupted = True
        finally:
            self._interruptible = False

    def reached(self, step: int) -> bool:
        """Whether to stop before this step."""
        return multihost_utils.reached_preemption_sync_point(step) if self._distributed else self._noted
