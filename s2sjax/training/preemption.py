"""SIGTERM and Ctrl-C (SIGINT), recorded so that the training loop can save before it ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.experimental import multihost_utils


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, raised after everything is saved. It stops a script or a notebook cell like any KeyboardInterrupt."""


class _LeaveBlock(BaseException):
    """Raised by the signal handler inside `interruptible`; a BaseException, so that `except Exception` lets it pass."""


Value = TypeVar("Value")


class Preemption:
    """Records a SIGTERM or a Ctrl-C; a second one ends the process at once.

    In a multi-process run JAX handles SIGTERM, and all processes stop at the same step. A Ctrl-C becomes a SIGTERM.
    """

    def __init__(self):
        self._distributed = jax.distributed.is_initialized()
        self._noted = False
        self._interruptible = False
        self._previous: dict[int, Any] = {}
        self.by_keyboard = False
        """whether this process received a Ctrl-C"""

    def __enter__(self) -> Preemption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT,) if self._distributed else (signal.SIGINT, signal.SIGTERM):
                # A shell starts background jobs with SIGINT ignored: keep it ignored.
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
            # The former handler raises KeyboardInterrupt: a second Ctrl-C ends the work, but not a notebook's kernel.
            signal.signal(number, self._previous[number] or signal.default_int_handler)
        else:
            signal.signal(number, signal.SIG_DFL)
        if self._distributed:
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._interruptible:
            self._interruptible = False  # cleared before the raise, because a second signal may arrive at any time
            raise _LeaveBlock

    def interruptible(self, work: Callable[[], Value]) -> tuple[Value | None, bool]:
        """Returns (work(), False), or (None, True) as soon as a signal arrives.

        The handler raises only while `_interruptible` is set. The flag is set and cleared inside the outer `try`, so
        that the exception is caught wherever the signal arrives, even in the `finally`.
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
