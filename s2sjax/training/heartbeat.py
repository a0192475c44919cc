"""A sign of life: whatever takes long says so after every ten seconds without a line.

Such lines are printed and never stored: metrics.jsonl does not depend on the clock.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from s2sjax.training import hosts

SILENCE = 10.0
"""seconds without a line, after which one is printed"""


class Heartbeat:
    """Calls say(status()) after every `SILENCE` seconds in which nothing was `heard`, from a thread of its own."""

    def __init__(self, say: Callable[[str], None], status: Callable[[], str]):
        self._say, self._status = say, status
        self._last = time.perf_counter()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def heard(self) -> None:
        """Restarts the clock, after a line was printed."""
        self._last = time.perf_counter()

    def beat(self) -> float:
        """Speaks, if it is time to; the seconds until it may be time again."""
        left = self._last + SILENCE - time.perf_counter()
        if left > 0:
            return left
        self.heard()
        if text := self._status():
            self._say(text)
        return SILENCE

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more: `s2sjax train FILE | head`
            while not self._stopped.wait(self.beat()):
                pass

    def __enter__(self) -> Heartbeat:
        self.heard()
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stopped.set()
        self._thread.join()


class Work:
    """Something that takes a while, how long it has taken, and how much of it is done if that is counted."""

    def __init__(self, name: str):
        self.name, self.done, self.total = name, 0, 0
        self._begin = time.perf_counter()

    def count(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    def __str__(self) -> str:
        """ "evaluating test: 120 of 500, 35 s left", or "compiling: 20 s so far" """
        seconds = time.perf_counter() - self._begin
        if not self.done:
            return f"{self.name}: {duration(seconds)} so far"
        left = seconds / self.done * (self.total - self.done)
        return f"{self.name}: {self.done:,} of {self.total:,}, {duration(left)} left"


@contextlib.contextmanager
def working(name: str) -> Iterator[Work]:
    """Shows that what is inside goes on: as a bar on a terminal, as a line now and then elsewhere."""
    work = Work(name)
    if not hosts.is_leader():
        yield work
        return
    if not sys.stdout.isatty():
        with Heartbeat(say, lambda: str(work)):
            yield work
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    with Progress(TextColumn("{task.description}"), *columns, console=Console(), transient=True) as bar:
        task = bar.add_task(name, total=None)
        work.count = lambda done, total: bar.update(task, completed=done, total=total)  # type: ignore[method-assign]
        yield work


def say(text: str) -> None:
    """Prints a line in one piece: threads may print at the same time."""
    print(f"{text}\n", end="", flush=True)


def duration(seconds: float) -> str:
    """35 s, 12 min, 3.5 h"""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
