"""How many examples are predicted: told by whatever predicts them to whoever listens, such as a progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Listener = Callable[[int, int], None]
"""listener(done, total)"""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def count(done: int, total: int) -> None:
    """Tells the listener, if there is one, that `done` of `total` examples are predicted."""
    if listener := _listener.get():
        listener(done, total)


@contextlib.contextmanager
def counting(listener: Listener) -> Iterator[None]:
    """What is predicted inside is counted by the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
