"""The progress of downloads: a bar in a terminal, else a plain line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from s2sjax.files import readable_size

INTERVAL = 10.0
"""seconds between two plain lines"""


@contextlib.contextmanager
def shown(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows the progress of one data set. Yields a function that is called with each number of new bytes."""
    if not sys.stdout.isatty():
        yield _Lines(name, total).advance
        return
    from rich import console, progress

    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(), progress.DownloadColumn(),
        progress.TransferSpeedColumn(), progress.TimeRemainingColumn(),
    )  # fmt: skip
    # A console of its own: the shared one of Rich may have begun where there was no terminal, and then draws no bars.
    with progress.Progress(*columns, console=console.Console(), transient=True) as bars:
        task = bars.add_task(name, total=total or None)
        yield lambda count: bars.update(task, advance=count)


class _Lines:
    def __init__(self, name: str, total: int):
        self.name, self.total, self.done, self.last = name, total, 0, time.monotonic()

    def advance(self, count: int) -> None:
        self.done += count
        if time.monotonic() - self.last >= INTERVAL:
            self.last = time.monotonic()
            of = f" of {readable_size(self.total)}" if self.total else ""
            print(f"{self.name}: {readable_size(self.done)}{of}", flush=True)
