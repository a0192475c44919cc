"""SIGTERM and Ctrl-C (SIGINT), noted so that the training loop can save before it ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.experimental import multihost_utils


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, raised after everything is saved: a script or a notebook cell stops as it does at any Ctrl-C."""


class _LeaveBlock(BaseException):
    """Raised by the signal handler inside `interruptible`; no `except Exception` may catch it."""


Value = TypeVar("Value")


class Preemption:
    """Notes a SIGTERM or a Ctrl-C; a second one ends the process at once.

    In a multi-process run JAX handles the SIGTERM, and all processes stop at the same step. A Ctrl-C becomes one.
    """

    def __init__(self):
        self._distributed = jax.distributed.is_initialized()
        self._noted = False
        self._interruptible = False
        self._previous: dict[int, Any] = {}
        self.by_keyboard = False
        """whether this process got a Ctrl-C"""

    def __enter__(self) -> Preemption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT,) if self._distributed else (signal.SIGINT, signal.SIGTERM):
                # A shell starts background jobs with SIGINT ignored: they stay so.
                if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            if handler is not None:
                signal.signal(number, handler)

    def _handle(self, number: int, _) -> None:
        self._noted = True
        if number == signal.SIGINT:
            self.by_keyboard = True
            # KeyboardInterrupt, as before the loop: a second Ctrl-C must end the work, but not a notebook's kernel.
            signal.signal(number, self._previous[number] or signal.default_int_handler)
        else:
            signal.signal(number, signal.SIG_DFL)
        if self._distributed:
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._interruptible:
            self._interruptible = False  # here: a second signal may come before another line has run
            raise _LeaveBlock

    def interruptible(self, work: Callable[[], Value]) -> tuple[Value | None, bool]:
        """(work(), False), or (None, True) at once when a signal arrives: then its result is not needed.

        The handler raises only while `_interruptible` is set. It is set and cleared inside the outer `try`: what is
        raised is caught wherever the signal arrives, also in the `finally`.
        """
        try:
            try:
                self._interruptible = not self._distributed
                if self._noted and self._interruptible:
                    raise _LeaveBlock
                result = work()
            finally:
                self._interruptible = False
            return result, False
        except _LeaveBlock:
            return None, True

    def reached(self, step: int) -> bool:
        """Whether to stop before this step."""
        return multihost_utils.reached_preemption_sync_point(step) if self._distributed else self._noted
