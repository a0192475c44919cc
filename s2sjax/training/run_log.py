"""The output of a run: a progress bar on a terminal or plain lines elsewhere, metrics.jsonl, the loggers (loggers.py),
samples.txt, nonfinite.jsonl with the skipped steps, and time.json (goodput.py).

Lines are printed every `train.log_every` steps, and after ten seconds without one (heartbeat.py). Only process 0 prints
and writes.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from s2sjax.files import as_path, in_storage, naming, read_growing, replace_file
from s2sjax.training import goodput, loggers, multihost
from s2sjax.training.heartbeat import SILENCE, Heartbeat, Work, duration, say

METRICS, NONFINITE, SAMPLES = "metrics.jsonl", "nonfinite.jsonl", "samples.txt"
PATIENCE = 60.0
"""seconds that a save and the end of a run wait for object storage to take the last lines"""
WORK = {
    "compile": "compiling the train step", "evaluate": "evaluating dev", "save": "saving",
    "profile": "writing the trace",
}  # fmt: skip
"""displayed text for each kind of work given to `Log.timed`"""
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Log:
    """Averages the metrics over `every` steps, then prints and writes them. Without a folder it only prints.

    names: those of the loggers (`loggers.LOGGERS`). settings: the experiment, by dotted name, for the loggers.
    sweep: the log of a sweep, for a member of it: it prints the lines of the member, except the means.
    began: when the run began, by `time.perf_counter`; now by default.
    """

    def __init__(
        self, folder: str | Path | None, steps: int, every: int, names: Sequence[str] = (),
        settings: Mapping[str, Any] = NOTHING, sweep: Log | None = None, began: float | None = None,
    ):  # fmt: skip
        self._is_leader = multihost.is_leader()
        self._sweep = sweep
        self._run = None if folder is None else as_path(folder)
        self._folder = self._run if self._is_leader else None
        self._steps, self._every, self._names, self._settings = steps, every, names, settings
        self._feeds: list[loggers.Feed] = []
        self._outbox: Any = None
        """what puts the files of a folder in object storage"""
        self.clock = goodput.Clock(began)
        self._written: float | None = None
        """when time.json was written; None before the first step"""
        self._live: Progress | None = None
        self._task: Any = None
        self._heartbeat: Heartbeat | None = None
        self._work: Work | None = None
        self._at = self._counted_from = 0
        self._text = ""
        self._clear()

    # ------------------------------------------------------------------------------ life cycle

    def start(self, step: int, partial: Mapping[str, Any] = NOTHING, evaluated: int | None = None) -> None:
        """Starts, or continues after `step`. Removes the lines of later steps, which will run again.

        partial: the result of `partial` at `step`. evaluated: the last step whose evaluation will not run again.
        """
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            if in_storage(self._folder):
                from s2sjax import object_storage

                self._outbox = object_storage.Outbox(self.print)
            # If the run was to end at this step, its last mean is now part of a longer one.
            last = step if not partial.get("sums") or step == self._steps else step - 1
            remove_after(self._folder / METRICS, last, step if evaluated is None else evaluated)
            remove_after(self._folder / NONFINITE, step)
            remove_samples_after(self._folder / SAMPLES, step if evaluated is None else evaluated)
            sweep = self._folder.parent.name if self._sweep is not None else None
            watched = loggers.Watched(self._folder, step, self._settings, sweep)
            self._feeds = [loggers.Feed(name, watched, self.print) for name in dict.fromkeys(self._names)]
            # A checkpoint of an older version does not say what was spent before it.
            self.clock.resume(goodput.read(self._folder), partial.get("time", None if step else NOTHING))
        if self._is_leader and self._sweep is None and sys.stdout.isatty():
            self._live = Progress(
                *(TextColumn("step"), MofNCompleteColumn(), BarColumn(None), TextColumn("{task.description}")),
                *(TextColumn("left"), TimeRemainingColumn()),
                console=Console(),
            )
            self._task = self._live.add_task("", total=self._steps, completed=step)
            self._live.start()
        self._at = step
        self.clock.turn("steps")
        self._clear()
        self._sums |= {name: (total, weight) for name, (total, weight) in partial.get("sums", {}).items()}
        self._scalars |= partial.get("scalars", {})
        self._begin -= partial.get("seconds", 0.0)
        self._counted_from = step - step % self._every if self._sums else step
        if self._is_leader and self._sweep is None:
            self._heartbeat = Heartbeat(self._show, self._status).__enter__()

    def partial(self) -> dict[str, Any]:
        """The sums since the last line, to be saved in a checkpoint: the next line is the same after a resume."""
        seconds = time.perf_counter() - self._begin - sum(self._timed.values())
        return {"sums": self._sums, "scalars": self._scalars, "seconds": seconds, "time": self.clock.seconds()}

    def end(self) -> None:
        """Prints how the time of a finished run was spent, unless it was finished before."""
        if self._written is not None and self._sweep is None:
            self.print(goodput.describe(self.clock.seconds()))

    def close(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.__exit__()
            self._heartbeat = None
        if self._live is not None:
            self._live.stop()
            self._live = None
        while self._feeds:
            self._feeds.pop().close()
        if self._written is not None:
            with contextlib.suppress(OSError):  # such as a full disk; it must not hide the error that ended the run
                self._write_time()
        if self._outbox is not None:
            self._outbox.close(PATIENCE)
            self._outbox = None

    def flush(self) -> None:
        """Waits until the lines are stored, unless that fails at the moment: a checkpoint must not overtake them."""
        if self._outbox is not None:
            self._outbox.flush(PATIENCE)

    # ---------------------------------------------------------------------------------- write

    def print(self, text: str) -> None:
        """Prints one line of text."""
        if self._sweep is not None:
            self._sweep.print(f"{self._run.name if self._run else ''}: {text}")
        elif self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        elif self._is_leader:
            say(text)
            if self._heartbeat is not None:
                self._heartbeat.heard()

    def step(self, step: int, numbers: dict[str, Any]) -> None:
        """Adds the metrics of one step: (sum, weight) pairs, which are averaged, and scalars, which are not."""
        for name, value in numbers.items():
            if isinstance(value, tuple):
                old = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = (old[0] + float(value[0]), old[1] + float(value[1]))
            else:
                self._scalars[name] = float(value)
        self._at = step
        lined = step % self._every == 0 or step == self._steps
        if lined:
            self._write_means(step)
        if lined or self._written is None or time.perf_counter() - self._written > SILENCE:
            self._write_time()
        if self._live is not None:
            self._live.update(self._task, completed=step)

    def scores(self, step: int, name: str, value: float, details: Mapping[str, Any] = NOTHING) -> None:
        """Prints and writes the result of an evaluation."""
        self._write({"step": step, "score": name, name: value, **details})
        rest = "".join(f"  {key} {_short(item)}" for key, item in details.items() if _is_number(item))
        self.print(f"step {step}  {name} {_short(value)}{rest}")

    def samples(self, step: int, lines: Sequence[str]) -> None:
        """Prints a few decoded lines, and appends them to samples.txt under the heading "step N"."""
        for line in lines if self._sweep is None else ():
            self.print(line)
        if self._folder is not None:
            self._append(self._folder / SAMPLES, "\n".join([f"step {step}", *lines]))

    def nonfinite(self, step: int, loss: float, grad_norm: float, examples: Sequence[int]) -> Path | None:
        """Writes a skipped step and the numbers of its examples. Returns the file they are written to, if any."""
        if self._folder is None:
            return self._run and self._run / NONFINITE
        # JSON has no NaN and no infinity: they are written as strings.
        numbers = {"loss": float(loss), "grad_norm": float(grad_norm)}
        values = {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()}
        path = self._folder / NONFINITE
        self._append(path, json.dumps({"step": step, **values, "examples": [int(number) for number in examples]}))
        return path

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measures time not spent on steps (compiling, evaluating, saving): NAME_seconds in the next metrics."""
        begin, self._work = time.perf_counter(), Work(WORK.get(name, name))
        if self._live is not None:
            self._show(self._work.name)
        try:
            with self.clock.spent(name):
                yield
        finally:
            self._work = None
            if self._live is not None:
                self._show(self._text)
        seconds = time.perf_counter() - begin
        self._timed[f"{name}_seconds"] = self._timed.get(f"{name}_seconds", 0.0) + seconds

    def count(self, done: int, total: int) -> None:
        """Shows how much of the `timed` work is done."""
        if self._work is not None:
            self._work.count(done, total)
            if self._live is not None:
                self._show(str(self._work))

    def once(self, **numbers: float) -> None:
        """Adds numbers that do not change to the next metrics."""
        self._facts |= numbers

    def _write_means(self, step: int) -> None:
        seconds = time.perf_counter() - self._begin - sum(self._timed.values())
        means = {name: total / weight if weight else math.nan for name, (total, weight) in self._sums.items()}
        rate = self._sums.get("loss", (0.0, 0.0))[1] / max(seconds, 1e-9)
        line = {"step": step, **means, **self._scalars, "tokens_per_second": rate, "seconds": seconds, **self._timed}
        spent = self.clock.seconds().get("input", 0.0)
        line |= self._facts | {"input_seconds": spent - self._waited}  # a part of `seconds`
        self._write(line)
        self._text = _means_text(means, rate)
        self._show(self._text)
        if step % self._every == 0:  # not at the last step, because the run may be continued with more steps
            self._clear()

    def _show(self, text: str) -> None:
        """Shows the status of this step, in the bar or as a line."""
        if self._live is not None:
            self._live.update(self._task, description=text)
        elif self._sweep is None:
            self.print(f"step {self._at}/{self._steps}  {text}")

    def _status(self) -> str:
        """The status for the heartbeat: the timed work, or the means since the last line."""
        if (work := self._work) is not None:
            return str(work)
        steps, sums = self._at - self._counted_from, dict(self._sums)
        # Copies, because the heartbeat calls this in its own thread.
        seconds = time.perf_counter() - self._begin - sum(list(self._timed.values()))
        if not steps or "loss" not in sums:
            return f"running: {duration(seconds)} so far"
        total, weight = sums["loss"]
        left = "" if self._live else f"  {duration(seconds / steps * (self._steps - self._at))} left"
        return _means_text({"loss": total / weight if weight else math.nan}, weight / max(seconds, 1e-9)) + left

    def _clear(self) -> None:
        self._counted_from = self._at
        self._sums: dict[str, tuple[float, float]] = {}
        self._scalars: dict[str, float] = {}
        self._timed: dict[str, float] = {}
        self._facts: dict[str, float] = {}
        self._begin = time.perf_counter()
        self._waited = self.clock.seconds().get("input", 0.0)

    def _write_time(self) -> None:
        self._written = time.perf_counter()
        if self._folder is not None and self._sweep is None:
            if self._outbox is not None:
                self._outbox.put(self._folder / goodput.FILE, goodput.text(self.clock.seconds()))
            else:
                replace_file(self._folder / goodput.FILE, goodput.text(self.clock.seconds()))

    def _append(self, path: Path, line: str) -> None:
        if self._outbox is not None:
            self._outbox.append(path, line)
        else:
            with naming(path), open(path, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    def _write(self, line: dict[str, Any]) -> None:
        if self._folder is None:
            return
        safe = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}
        self._append(self._folder / METRICS, json.dumps(safe, default=_plain))
        numbers = {key: float(value) for key, value in line.items() if key != "step" and _is_number(value)}
        for feed in self._feeds:
            feed.write("scores" if "score" in line else "means", line["step"], numbers)


def _means_text(means: Mapping[str, float], rate: float) -> str:
    return f"loss {_short(means.get('loss', math.nan))}  {rate:,.0f} tokens/s"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file, without an incomplete last one; none if there is no file."""
    found = []
    for line in read_growing(path).splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def remove_after(path: Path, step: int, scored: int | None = None) -> None:
    """Removes the lines of steps after `step`, those of scores after `scored`, and an incomplete last line."""
    if not path.exists():
        return
    kept = []
    for line in (text := read_growing(path)).splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found = json.loads(line)
            if found["step"] <= (step if scored is None or "score" not in found else scored):
                kept.append(line)
    _replace(path, text, kept)


def remove_samples_after(path: Path, step: int) -> None:
    """Removes the headings "step N" with N after `step`, and the indented lines below them."""
    if not path.exists():
        return
    text = read_growing(path)
    kept, at = [], 0
    for line in text[: text.rfind("\n") + 1].splitlines():  # without an incomplete last line
        if line.startswith("step "):
            at = int(line.removeprefix("step "))
        if at <= step:
            kept.append(line)
    _replace(path, text, kept)


def _replace(path: Path, text: str, kept: Sequence[str]) -> None:
    """Replaces the text of a file by the lines that are kept, if it has others."""
    if (new := "".join(line + "\n" for line in kept)) == text:
        return
    if in_storage(path):
        from s2sjax import object_storage

        object_storage.replace(path, new)
    else:
        replace_file(path, new)


def _plain(value: Any) -> Any:
    """NumPy numbers and arrays as Python numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: float) -> str:
    return f"{value:.4g}"
