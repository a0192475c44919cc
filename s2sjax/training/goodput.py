"""Where the wall clock of a run goes, over all its starts: the share of the steps is its goodput.

Every second belongs to one kind of work, so that the kinds add up to the wall clock. The time between two starts, when
no process runs, does not count.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax

from s2sjax.training.heartbeat import duration

FILE = "time.json"
KINDS = {
    "steps": "steps", "compile": "compiling", "input": "input", "evaluate": "evaluating", "save": "saving",
    "profile": "profiling", "start": "starting", "restart": "restarting",
}  # fmt: skip
"""kinds of work, and their words. start: until the loop begins; restart: the same for later starts, and steps that were
computed in vain, because the run was killed before their checkpoint; input: waiting for a batch while no step runs"""


class Clock:
    """Counts the seconds of each kind of work. The kind is `start` until another one begins.

    began: when the run began, by `time.perf_counter`; now by default.
    """

    def __init__(self, began: float | None = None):
        self._since = time.perf_counter() if began is None else began
        self._kind = self._start = "start"
        self._seconds: dict[str, float] = {}

    def turn(self, kind: str, was: str | None = None) -> str:
        """Begins another kind of work. Returns the one before. was: what the time until now was, after all."""
        before, now = self._kind, time.perf_counter()
        self._seconds[was or before] = self._seconds.get(was or before, 0.0) + now - self._since
        self._since, self._kind = now, kind
        return before

    @contextlib.contextmanager
    def spent(self, kind: str, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Counts the block as this kind, and as steps if `unless()` at its end. A trace of the run shows it."""
        before = self.turn(self._start if kind == "start" else kind)
        try:
            with jax.profiler.TraceAnnotation(kind):
                yield
        finally:
            self.turn(before, "steps" if unless() else None)

    def seconds(self) -> dict[str, float]:
        """The seconds of each kind up to now."""
        self.turn(self._kind)
        return dict(self._seconds)

    def resume(self, earlier: Mapping[str, float], saved: Mapping[str, float] | None) -> None:
        """Adds earlier starts. saved: their seconds when the checkpoint was saved; None if they are not known."""
        if not earlier:
            return
        found = self.seconds()
        self._start = "restart"
        found[self._start] = found.pop("start", 0.0)
        for kind, seconds in earlier.items():
            lost = max(seconds - saved.get(kind, 0.0), 0.0) if saved is not None and kind in ("steps", "input") else 0.0
            found[kind] = found.get(kind, 0.0) + seconds - lost
            found[self._start] += lost
        self._seconds = found


def read(folder: Path) -> dict[str, float]:
    """The seconds of each kind of work of a run; {} for a run of an older version."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {kind: found[kind] for kind in KINDS if kind in found}
    return {}


def text(seconds: Mapping[str, float]) -> str:
    """The content of FILE."""
    return json.dumps({kind: round(seconds[kind], 3) for kind in KINDS if seconds.get(kind)}, indent=2) + "\n"


def describe(seconds: Mapping[str, float]) -> str:
    """ "steps took 91% of 12 min; compiling 5%, evaluating 3%, saving 1%" """
    shares = percentages(seconds)
    rest = ", ".join(f"{word} {shares[kind]}%" for kind, word in KINDS.items() if kind != "steps" and shares.get(kind))
    total = duration(sum(seconds.values()))
    return f"steps took {shares.get('steps', 0)}% of {total}{'; ' if rest else ''}{rest}"


def percentages(seconds: Mapping[str, float]) -> dict[str, int]:
    """Whole percentages, which add up to 100: those with the largest remainders are rounded up."""
    total = sum(seconds.values())
    exact = {kind: 100 * each / total for kind, each in seconds.items()} if total else {}
    found = {kind: int(each) for kind, each in exact.items()}
    for kind in sorted(exact, key=lambda kind: found[kind] - exact[kind])[: 100 - sum(found.values())]:
        found[kind] += 1
    return found
