"""One thread that decodes. Requests take turns: a large one is decoded in slices, and small ones come in between.

A batch has lines of all requests that have waited for one before, or of all new requests; these two alternate. While
others come, the slice of a large request is a `turn`: few enough lines that a small request waits for it about as long
as it takes itself. Where many requests wait, the device computes the next batch while the answers of the last are made.
JAX runs in this thread only.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from s2sjax.errors import UserError
from s2sjax.training import settings

QUIET = 1.0
"""seconds without a second request, after which a large one gets whole programs instead of turns"""
WINDOW = 0.004
"""most seconds that a batch waits for clients that were answered with the last one, and may ask again"""


class Busy(Exception):
    """Too much is waiting."""


class Stopped(Exception):
    """The engine no longer answers."""


class Job:
    """A request: its items, the answers so far, and a future of what `wrap` makes of them all."""

    def __init__(self, items: Sequence[Any], wrap: Callable[[list[Any]], Any]):
        self.items, self.answers, self._wrap = list(items), [None] * len(items), wrap
        self.taken = self.done = 0
        self.future: Future[Any] = Future()
        if not items:
            settle(self.future, wrap([]))

    @property
    def left(self) -> int:
        return len(self.items) - self.taken

    def add(self, index: int, answer: Any) -> None:
        self.answers[index] = answer
        self.done += 1
        if self.done == len(self.items):
            settle(self.future, self._wrap(self.answers))


Picked = tuple[Job, int]
"""an item of a batch: its request, and its index there"""
Begun = tuple[list[Picked], Callable[[], list[Any]]]
"""a batch that is being computed, and what waits for its answers"""


class Engine:
    """Answers lists of items by `begin(items)()`, which gets the items of several requests at once.

    begin: dispatches the computation; what it returns waits for the answers, one for each item. sizes: rows of the
    compiled programs, ascending; a batch has at most the last. waiting: items that may wait; `submit` refuses more.
    `call` runs anything else in the same thread, between two batches.
    """

    def __init__(self, begin: Callable[[list[Any]], Callable[[], list[Any]]], sizes: Sequence[int], waiting: int):
        self._begin, self._sizes, self._limit = begin, tuple(sizes), waiting
        self.turn = self._sizes[-1]
        """items of a large request in one batch, while others come"""
        self._jobs: deque[Job] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._waiting = self._answered = 0
        self._shared, self._new = -math.inf, False
        """when a second request came last; whether the last batch had only new requests, while others waited"""
        self._stopped = False
        self.requests = self.items = self.batches = 0
        self._thread = threading.Thread(target=settings.inherit(self._work), name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, items: Sequence[Any], wrap: Callable[[list[Any]], Any] = list) -> Future[Any]:
        """A future of wrap(answers), the answers in the order of the items."""
        job = Job(items, wrap)
        with self._changed:
            self._check(self._waiting + len(items))
            self.requests += 1
            if items:
                self._shared = time.monotonic() if self._jobs else self._shared
                self._waiting += len(items)
                self._jobs.append(job)
                self._changed.notify()
        return job.future

    def call(self, function: Callable[[], Any], counts: bool = True) -> Future[Any]:
        """A future of function(), which runs between two batches. counts: as a request."""
        future: Future[Any] = Future()
        with self._changed:
            self._check(len(self._calls) + 1)
            self.requests += counts
            self._calls.append((function, future))
            self._changed.notify()
        return future

    def _check(self, waiting: int) -> None:
        if self._stopped:
            raise Stopped
        if waiting > self._limit:
            raise Busy

    def close(self, patience: float = 5.0) -> None:
        """What waits gets the error `Stopped`; what is being computed may still take `patience` seconds."""
        with self._changed:
            self._stopped = True
            left = [job.future for job in self._jobs] + [future for _, future in self._calls]
            self._jobs.clear()
            self._calls.clear()
            self._changed.notify()
        for future in left:
            settle(future, error=Stopped())
        if self._thread.is_alive():
            self._thread.join(patience)

    # ------------------------------------------------------------------------------- the thread

    def _work(self) -> None:
        before: Begun | None = None
        while not self._stopped:
            with self._changed:
                if before is None:
                    self._wait()
                batch = self._take()
                call = self._calls.popleft() if self._calls else None
            begun = self._begin_batch(batch) if batch else None
            if before:
                self._finish(*before)
            before = begun
            if before and len(self._jobs) < self._sizes[-1]:  # nothing fills another program: answer at once
                self._finish(*before)
                before = None
            if call:
                self._run(*call)
        if before:
            self._finish(*before)

    def _wait(self) -> None:
        while not (self._jobs or self._calls or self._stopped):
            self._changed.wait()
        if len(self._jobs) < self._answered:
            self._changed.wait_for(lambda: self._stopped or len(self._jobs) >= self._answered, WINDOW)

    def _take(self) -> list[Picked]:
        """The next batch: in turns, one item of each request, until a program is full."""
        jobs = [job for job in self._jobs if not job.future.done()]  # one may have failed, or be given up
        new = [job for job in jobs if not job.taken]
        self._new = 0 < len(new) < len(jobs) and not self._new
        queue = deque(new if self._new else jobs)
        turn = self.turn if time.monotonic() - self._shared < QUIET else self._sizes[-1]
        size = self._fit(min(max(turn, len(queue)), sum(job.left for job in queue)))
        batch: list[Picked] = []
        while queue and len(batch) < size:
            job = queue.popleft()
            batch.append((job, job.taken))
            job.taken += 1
            if job.left:
                queue.append(job)
        served = {job for job, _ in batch}
        self._jobs = deque(
            [job for job in jobs if job not in served] + [job for job in jobs if job in served and job.left]
        )
        self._waiting = sum(job.left for job in self._jobs)
        return batch

    def _fit(self, count: int) -> int:
        """How many of `count` items one batch takes, so that at most half of its program's rows are padding."""
        for size, smaller in zip(self._sizes, (0, *self._sizes)):
            if count <= size:
                return count if 2 * count >= size or not smaller else smaller
        return self._sizes[-1]

    def _begin_batch(self, batch: list[Picked]) -> Begun | None:
        self.items, self.batches = self.items + len(batch), self.batches + 1
        try:
            return batch, self._begin([job.items[index] for job, index in batch])
        except Exception as error:
            self._blame(batch, error)
            return None

    def _finish(self, batch: list[Picked], answers_of: Callable[[], list[Any]]) -> None:
        try:
            answers = answers_of()
        except Exception as error:
            self._blame(batch, error)
            return
        for (job, index), answer in zip(batch, answers, strict=True):
            job.add(index, answer)
        self._answered = sum(job.future.done() for job in {job for job, _ in batch})

    def _blame(self, batch: Sequence[Picked], error: Exception) -> None:
        """A batch has failed: whose fault it is, only each request alone can tell."""
        jobs = list(dict.fromkeys(job for job, _ in batch))
        if len(jobs) == 1:
            settle(jobs[0].future, error=_seen(error))
            return
        for job in jobs:
            if begun := self._begin_batch([picked for picked in batch if picked[0] is job]):
                self._finish(*begun)

    def _run(self, function: Callable[[], Any], future: Future[Any]) -> None:
        try:
            settle(future, function())
        except Exception as error:
            settle(future, error=_seen(error))


def settle(future: Future[Any], result: Any = None, error: Exception | None = None) -> None:
    """Gives the future its result or its error, unless nobody waits for it any more."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(result) if error is None else future.set_exception(error)


def _seen(error: Exception) -> Exception:
    """The error, printed if it is not the user's."""
    if not isinstance(error, UserError):
        traceback.print_exc(file=sys.stderr)
    return error
