"""One thread that decodes. Requests that wait at the same time are joined to one batch.

JAX runs in this thread only; the threads of the requests wait for their futures.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from s2sjax.errors import UserError
from s2sjax.training import settings

WINDOW = 0.004
"""seconds that the first request of a batch waits for others"""


class Busy(Exception):
    """Too much is waiting."""


class Stopped(Exception):
    """The engine no longer answers."""


class Job(NamedTuple):
    items: list[Any]
    answers: Future[list[Any]]


class Engine:
    """Answers lists of items by `answer(items)`, which gets the items of several requests at once.

    most: items of a batch. A request with more is a batch of its own. waiting: items that may wait; `submit` refuses
    more. `call` runs anything else in the same thread, between two batches.
    """

    def __init__(self, answer: Callable[[list[Any]], list[Any]], most: int, waiting: int):
        self._answer, self._most, self._limit = answer, most, waiting
        self._jobs: deque[Job] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self.requests = self.items = self.batches = 0
        self._thread = threading.Thread(target=settings.inherit(self._work), name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, items: Sequence[Any]) -> Future[list[Any]]:
        future: Future[list[Any]] = Future()
        with self._changed:
            self._check(sum(len(job.items) for job in self._jobs) + len(items))
            self._jobs.append(Job(list(items), future))
            self._changed.notify()
        return future

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            self._check(len(self._calls) + 1)
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
            left = [job.answers for job in self._jobs] + [future for _, future in self._calls]
            self._jobs.clear()
            self._calls.clear()
            self._changed.notify()
        for future in left:
            future.set_exception(Stopped())
        if self._thread.is_alive():
            self._thread.join(patience)

    # ------------------------------------------------------------------------------- the thread

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._jobs or self._calls or self._stopped):
                    self._changed.wait()
                if self._stopped:
                    return
            time.sleep(WINDOW)
            with self._changed:
                jobs = self._take()
                calls = list(self._calls)
                self._calls.clear()
            if jobs:
                self._answer_together(jobs)
            for function, future in calls:
                self.requests += 1
                _settle(future, function)

    def _take(self) -> list[Job]:
        """As many waiting requests as fit into a batch, at least one if there is one."""
        taken: list[Job] = []
        size = 0
        while self._jobs and (not taken or size + len(self._jobs[0].items) <= self._most):
            taken.append(self._jobs.popleft())
            size += len(taken[-1].items)
        return taken

    def _answer_together(self, jobs: Sequence[Job]) -> None:
        every = [item for job in jobs for item in job.items]
        self.requests, self.items, self.batches = self.requests + len(jobs), self.items + len(every), self.batches + 1
        joined: Future[list[Any]] = Future()
        _settle(joined, lambda: self._answer(every) if every else [])
        if joined.exception() and len(jobs) > 1:  # whose fault it is, only each alone can tell
            for job in jobs:
                _settle(job.answers, partial(self._answer, job.items))
            return
        first = 0
        for job in jobs:
            error = joined.exception()
            if error:
                job.answers.set_exception(error)
            else:
                job.answers.set_result(joined.result()[first : first + len(job.items)])
            first += len(job.items)


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    """Gives the future its result or its error. An error that is not the user's is printed."""
    try:
        future.set_result(function())
    except Exception as error:
        if not isinstance(error, UserError):
            traceback.print_exc(file=sys.stderr)
        future.set_exception(error)
