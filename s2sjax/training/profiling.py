"""A trace of some steps, for Perfetto and XProf: `s2sjax train FILE --profile 100:110`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

from s2sjax.errors import UserError, one_line
from s2sjax.files import copy_folder, in_storage, relative_path
from s2sjax.training import multihost
from s2sjax.training.goodput import KINDS
from s2sjax.training.run_log import Log

FOLDER = "profile"
Steps = tuple[int, int]
"""the first and the last step to trace"""


def check(steps: Steps | None, total: int) -> None:
    """Raises if these steps cannot be traced. total: train.steps; 0 if it is not known yet."""
    if steps is None:
        return
    first, last = steps
    if not 1 <= first < last:
        raise UserError(f"--profile is {first}:{last}: the first step must be at least 1, and the last one after it")
    if 0 < total < last:
        raise UserError(f"--profile is {first}:{last}, but train.steps is {total}: name steps that are trained")


class Profile:
    """Traces from the batch of the first step to the evaluation and the checkpoint of the last one, if they are due.

    Each process writes its own trace. A trace that fails does not end the training.
    """

    def __init__(self, steps: Steps, run: Path, log: Log):
        self._first, self._last = steps
        process = f"process-{jax.process_index()}" if multihost.is_multiprocess() else ""
        self._folder = run / FOLDER / process
        # The profiler writes only to local folders.
        self._local = Path(tempfile.mkdtemp(prefix="s2sjax-")) if in_storage(run) else self._folder
        self._log = log
        self._step = 0
        self._before: dict[str, float] | None = None
        """the times of the run when the trace began, while it is recorded"""

    def begin(self, step: int) -> None:
        """Says so if the run continues after the first of the steps."""
        if step >= self._first:
            self._log.print(
                f"--profile {self._first}:{self._last}: nothing is traced, because the run continues after step {step}"
            )

    def reached(self, step: int, flush: Callable[[], None]) -> None:
        """Starts or stops the trace after a step. flush: waits for the step."""
        self._step = step
        if step == self._first - 1:
            flush()
            if self._done(self._start):
                self._before = self._log.clock.seconds()
        elif step == self._last:
            flush()
            self.close()

    def close(self) -> None:
        """Writes the trace, if one is recorded, and prints where it is."""
        if self._before is None:
            return
        spent = {kind: seconds - self._before.get(kind, 0.0) for kind, seconds in self._log.clock.seconds().items()}
        self._before = None
        if not self._done(jax.profiler.stop_trace):
            return
        parts = ", ".join(f"{KINDS[kind]} {1e3 * spent[kind]:,.1f} ms" for kind in KINDS if spent.get(kind))
        found = self._local.glob("plugins/profile/*/perfetto_trace.json.gz")
        file = max(found, key=lambda path: path.stat().st_mtime)
        name, folder = file.relative_to(self._local), self._put()
        self._log.print(
            f"steps {self._first} to {self._step} took {1e3 * sum(spent.values()):,.1f} ms: {parts}\n"
            f"their trace: open {relative_path(folder / name)} at https://ui.perfetto.dev, or pip install xprof and "
            f"run xprof --logdir {relative_path(folder)}"
        )

    def _put(self) -> Path:
        """Puts the trace in object storage. Returns the folder that has it: the local one if the storage refuses it."""
        if self._local == self._folder:
            return self._folder
        try:
            with self._log.timed("profile"):
                copy_folder(self._local, self._folder)
        except (OSError, UserError) as error:
            self._log.print(f"--profile: {one_line(error)}: the trace stays on this machine")
            return self._local
        shutil.rmtree(self._local)
        return self._folder

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every call of Python would hide the rest, and slow it down
        jax.profiler.start_trace(self._local, create_perfetto_trace=True, profiler_options=options)

    def _done(self, action: Callable[[], None]) -> bool:
        """Whether the profiler has done something."""
        try:
            with self._log.timed("profile"):
                action()
        except Exception as error:  # such as a full disk, or a trace that somebody else has started
            self._log.print(f"--profile: {one_line(error)}: the training goes on without a trace")
            return False
        return True
