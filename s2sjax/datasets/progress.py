"""The progress of downloads: a bar in a terminal, else a plain line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

INTERVAL = 10.0
"""seconds between two plain lines"""


def megabytes(count: float) -> str:
    """A number of bytes for people: 12 kB, 2.1 MB, 1.1 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


@contextlib.contextmanager
def shown(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows the progress of one data set. Yields a function that is called with each number of new bytes."""
    if not sys.stdout.isatty():
        yield _Lines(name, total).advance
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(), progress.DownloadColumn(),
        progress.TransferSpeedColumn(), progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, transient=True) as bars:
        task = bars.add_task(name, total=total or None)
        yield lambda count: bars.update(task, advance=count)


class _Lines:
    def __init__(self, name: str, total: int):
        self.name, self.total, self.done, self.last = name, total, 0, time.monotonic()

    def advance(self, count: int) -> None:
        self.done += count
        if time.monotonic() - self.last >= INTERVAL:
            self.last = time.monotonic()
            of = f" of {megabytes(self.total)}" if self.total else ""
            print(f"{self.name}: {megabytes(self.done)}{of}", flush=True)
