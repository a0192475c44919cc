"""Signs of life: long-running work prints a line after every ten seconds without output.

These lines are printed and never stored: metrics.jsonl does not depend on the clock.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from s2sjax.training import multihost

SILENCE = 10.0
"""seconds without output, after which a line is printed"""


class Heartbeat:
    """Calls say(status()) in a thread after every `SILENCE` seconds without a call of `heard`."""

    def __init__(self, say: Callable[[str], None], status: Callable[[], str]):
        self._say, self._status = say, status
        self._last = time.perf_counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def heard(self) -> None:
        """Restarts the clock, after a line was printed."""
        self._last = time.perf_counter()

    def beat(self) -> float:
        """Prints a line if one is due. Returns the seconds until the next one may be due."""
        left = self._last + SILENCE - time.perf_counter()
        if left > 0:
            return left
        self.heard()
        if text := self._status():
            self._say(text)
        return SILENCE

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the output is closed: `s2sjax train FILE | head`
            while not self._stop.wait(self.beat()):
                pass

    def __enter__(self) -> Heartbeat:
        self.heard()
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()


class Work:
    """Long-running work: its name, its duration so far and, if counted, how much of it is done."""

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
    """Shows the progress of the block: as a bar on a terminal, as heartbeat lines elsewhere."""
    work = Work(name)
    if not multihost.is_leader():
        yield work
        return
    if not sys.stdout.isatty():
        with Heartbeat(say, lambda: str(work)):
            yield work
        return
    from rich import console, progress

    columns = (
        *(progress.TextColumn("{task.description}"), progress.BarColumn(None), progress.MofNCompleteColumn()),
        *(progress.TimeElapsedColumn(), progress.TextColumn("left"), progress.TimeRemainingColumn()),
    )
    with progress.Progress(*columns, console=console.Console(), transient=True) as bar:
        task = bar.add_task(name, total=None)
        work.count = lambda done, total: bar.update(task, completed=done, total=total)  # type: ignore[method-assign]
        yield work


def say(text: str) -> None:
    """Prints a line in one write, because threads may print at the same time."""
    print(f"{text}\n", end="", flush=True)


def duration(seconds: float) -> str:
    """A duration as text: 35 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
