"""What a run tells: a live line on a terminal or plain lines elsewhere, metrics.jsonl, TensorBoard events,
samples.txt, and nonfinite.jsonl with the steps that were skipped.

Only process 0 speaks and writes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from s2sjax.train import hosts

METRICS, NONFINITE, SAMPLES = "metrics.jsonl", "nonfinite.jsonl", "samples.txt"
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Log:
    """Averages the numbers of `every` steps and tells them once. Without a folder it only speaks."""

    def __init__(self, folder: str | Path | None, steps: int, every: int, tensorboard: bool = True):
        self._speaks = hosts.is_leader()
        self._run = None if folder is None else Path(folder)
        self._folder = self._run if self._speaks else None
        self._steps, self._every, self._tensorboard = steps, every, tensorboard
        self._events: Any = None
        self._live: Progress | None = None
        self._task: Any = None
        self._clear()

    # ------------------------------------------------------------------------------ life cycle

    def start(self, step: int) -> None:
        """Begins, or goes on, after `step`: lines of later steps, which will be run again, are cut off."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name in (METRICS, NONFINITE):
                cut_after(self._folder / name, step)
            cut_samples_after(self._folder / SAMPLES, step)
            if self._tensorboard:
                from tensorboardX import SummaryWriter

                self._events = SummaryWriter(str(self._folder / "tensorboard"), purge_step=step + 1)
        if self._speaks and sys.stdout.isatty():
            self._live = Progress(
                *(TextColumn("step"), MofNCompleteColumn(), BarColumn(None), TextColumn("{task.description}")),
                *(TextColumn("left"), TimeRemainingColumn()),
                console=Console(),
            )
            self._task = self._live.add_task("", total=self._steps, completed=step)
            self._live.start()
        self._clear()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._events is not None:
            self._events.close()
            self._events = None

    # ----------------------------------------------------------------------------------- tell

    def print(self, text: str) -> None:
        """One line of text."""
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        elif self._speaks:
            print(text, flush=True)

    def step(self, step: int, numbers: dict[str, Any]) -> None:
        """The numbers of one step: (sum, weight) pairs, added up until they are told, and scalars, told as they are."""
        for name, value in numbers.items():
            if isinstance(value, tuple):
                old = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = (old[0] + float(value[0]), old[1] + float(value[1]))
            else:
                self._scalars[name] = float(value)
        if step % self._every == 0 or step == self._steps:
            self._write_means(step)
        if self._live is not None:
            self._live.update(self._task, completed=step)

    def scores(
        self, step: int, name: str, value: float, higher_is_better: bool = True, details: Mapping[str, Any] = NOTHING
    ) -> None:
        """An evaluation."""
        self._write({"step": step, "score": name, name: value, **details})
        rest = "".join(f"  {key} {_short(item)}" for key, item in details.items() if _is_number(item))
        self.print(f"step {step}  {name} {_short(value)}{rest}")

    def samples(self, step: int, lines: Sequence[str]) -> None:
        """A few decoded lines, told and kept under "step N" in samples.txt."""
        for line in lines:
            self.print(line)
        if self._folder is not None:
            _append(self._folder / SAMPLES, "\n".join([f"step {step}", *lines]))

    def nonfinite(self, step: int, loss: float, grad_norm: float, examples: Sequence[int]) -> Path | None:
        """A step that was skipped and the numbers of its examples; the file that now holds them, if there is one."""
        if self._folder is None:
            return self._run and self._run / NONFINITE
        # JSON has no NaN, and which of the two it was, and whether it is NaN or infinity, is what one wants to know.
        numbers = {"loss": float(loss), "grad_norm": float(grad_norm)}
        told = {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()}
        path = self._folder / NONFINITE
        _append(path, json.dumps({"step": step, **told, "examples": [int(number) for number in examples]}))
        return path

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time that is not spent on steps (compiling, evaluating, saving); told as NAME_seconds with the next steps."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self._timed[f"{name}_seconds"] = self._timed.get(f"{name}_seconds", 0.0) + seconds

    def _write_means(self, step: int) -> None:
        seconds = time.perf_counter() - self._begin - sum(self._timed.values())
        means = {name: total / weight if weight else math.nan for name, (total, weight) in self._sums.items()}
        rate = self._sums.get("loss", (0.0, 0.0))[1] / max(seconds, 1e-9)
        line = {"step": step, **means, **self._scalars, "tokens_per_second": rate, "seconds": seconds, **self._timed}
        self._write(line)
        text = f"loss {_short(means.get('loss', math.nan))}  {rate:,.0f} tokens/s"
        if self._live is not None:
            self._live.update(self._task, description=text)
        else:
            self.print(f"step {step}/{self._steps}  {text}")
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._scalars: dict[str, float] = {}
        self._timed: dict[str, float] = {}
        self._begin = time.perf_counter()

    def _write(self, line: dict[str, Any]) -> None:
        if self._folder is None:
            return
        safe = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}
        _append(self._folder / METRICS, json.dumps(safe, default=_plain))
        if self._events is not None:
            for key, value in line.items():
                if key != "step" and _is_number(value):
                    self._events.add_scalar(key, value, line["step"])


def cut_after(path: Path, step: int) -> None:
    """Drops the lines of steps after `step`, and a last line that a kill left unfinished."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if json.loads(line)["step"] <= step:
                kept.append(line)
    replace_file(path, "".join(line + "\n" for line in kept))


def cut_samples_after(path: Path, step: int) -> None:
    """Drops the headings "step N" with N after `step`, and the lines below them, which all are indented."""
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    kept, at = [], 0
    for line in text[: text.rfind("\n") + 1].splitlines():  # not what a kill left unfinished
        if line.startswith("step "):
            at = int(line.removeprefix("step "))
        if at <= step:
            kept.append(line)
    replace_file(path, "".join(line + "\n" for line in kept))


def _append(path: Path, line: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def replace_file(path: Path, text: str) -> None:
    """Writes a file completely or not at all."""
    draft = path.with_name(f".{path.name}.partial")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: float) -> str:
    return f"{value:.4g}"
