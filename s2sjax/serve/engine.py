"""The decoding thread. It decodes a large request in slices, with batches of small requests in between.

Batches alternate between lines of all waiting requests and lines of new requests only. While other requests arrive, a
slice of a large request has `turn` lines: few enough that a small request waits for it about as long as it takes
itself. When many requests wait, the device computes the next batch while the answers of the last one are prepared.
JAX runs only in this thread.
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
from s2sjax.training import jax_settings

QUIET = 1.0
"""seconds without a second request after which a large request gets full batches instead of turns"""
WINDOW = 0.004
"""maximum seconds that a batch waits for new requests of the clients that were answered with the last batch"""


class Busy(Exception):
    """Raised when too many items are waiting."""


class Stopped(Exception):
    """Raised when the engine has been closed."""


class Job:
    """A request: its items, the answers so far, and a future of `wrap(answers)`."""

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
"""item of a batch: its request, and its index in the request"""
Begun = tuple[list[Picked], Callable[[], list[Any]]]
"""batch that is being computed, and the function that waits for its answers"""


class Engine:
    """Answers requests in batches: the answers to the items of several requests are `begin(items)()`.

    begin: dispatches the computation, and returns a function that waits for the answers, one per item.
    sizes: batch sizes of the compiled programs, ascending.
    waiting: maximum number of waiting items; `submit` refuses more.
    """

    def __init__(self, begin: Callable[[list[Any]], Callable[[], list[Any]]], sizes: Sequence[int], waiting: int):
        self._begin, self._sizes, self._limit = begin, tuple(sizes), waiting
        self.turn = self._sizes[-1]
        """items of a large request in one batch while other requests arrive"""
        self._jobs: deque[Job] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._waiting = self._answered = 0
        self._shared, self._new = -math.inf, False
        """last time that a request arrived while another waited; whether the last batch had only new requests"""
        self._stopped = False
        self.requests = self.items = self.batches = 0
        self._thread = threading.Thread(target=jax_settings.inherit(self._work), name="engine", daemon=True)

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
        """A future of function(), which runs in the engine's thread between two batches. counts: as a request."""
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
        """Fails waiting requests with `Stopped`, and waits up to `patience` seconds for the current batch."""
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
            if before and len(self._jobs) < self._sizes[-1]:  # too few requests for another full batch: answer at once
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
        """Takes the next batch: one item of each request in turn, until the batch is full."""
        jobs = [job for job in self._jobs if not job.future.done()]  # a job may have failed or been cancelled
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
        self._jobs = deque(sorted((job for job in jobs if job.left), key=served.__contains__))  # these come last
        self._waiting = sum(job.left for job in self._jobs)
        return batch

    def _fit(self, count: int) -> int:
        """The size of the next batch, up to `count`, such that at most half of its program's rows are padding."""
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
        """Fails the request that caused an error: computes each request of the batch alone to find it."""
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
    """Sets the result or the error of a future, unless it is done or cancelled."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(result) if error is None else future.set_exception(error)


def _seen(error: Exception) -> Exception:
    """Returns the error, and prints its traceback if it is not a UserError."""
    if not isinstance(error, UserError):
        traceback.print_exc(file=sys.stderr)
    return error
