"""Reports how many examples have been predicted to a listener, such as a progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Listener = Callable[[int, int], None]
"""called as listener(done, total)"""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def count(done: int, total: int) -> None:
    """Tells the listener, if there is one, that `done` of `total` examples have been predicted."""
    if listener := _listener.get():
        listener(done, total)


@contextlib.contextmanager
def counting(listener: Listener) -> Iterator[None]:
    """Reports the predictions made inside to the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
