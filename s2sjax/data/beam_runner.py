"""Calls functions on the workers of Apache Beam.

    with Beam(["--runner", "DataflowRunner", ...], workers=2, folder=as_path("gs://bucket/made.beam")) as beam:
        for result in beam.each("reading", [partial(read, 0), partial(read, 1)]): ...

Tasks and results are files in `folder`, which all workers reach: Beam passes only their numbers, and the results are
read one at a time. Beam may do a task twice, so that what it writes must appear as a whole.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import pickle
import re
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from s2sjax.config import require
from s2sjax.errors import UserError
from s2sjax.files import as_path, in_storage, replace_file

FILES = re.compile(r"\.?(counting|reading|sampling|writing)\.tasks|(counting|reading|sampling|writing)-\d{5,}\.result"
                   r"|held-out\.pickle|corpus-\d{5,}\.jsonl|\..*\.[0-9a-f]{8}|\..*\.partial")  # fmt: skip
"""names of the files in the folder of a preparation"""
KILLED = "a worker was killed, perhaps because memory ran out"
DIRECT = (None, "DirectRunner")
"""names of the runner of this machine"""


class Beam:
    """Beam with the user's options, and a folder for tasks and results, which is removed at the end."""

    def __init__(self, arguments: Sequence[str], workers: int, folder: Path):
        if importlib.util.find_spec("apache_beam") is None:
            raise UserError('--beam needs apache-beam: pip install ".[beam]" in an environment of its own')
        self.folder = folder
        self._options, self._is_direct = _options(arguments, workers)
        self._log: Path | None = None

    def __enter__(self) -> Self:
        self._remove()
        if not in_storage(self.folder):
            self.folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        """Removes the folder, also that of an earlier preparation which was killed, but no file of others."""
        if not self.folder.is_dir():
            return
        others = sorted(path.name for path in self.folder.iterdir() if not FILES.fullmatch(path.name))
        require(not others, f"{self.folder} contains other files ({', '.join(others[:3])}): choose another --out")
        if in_storage(self.folder):
            self.folder.rmtree()  # type: ignore[attr-defined]
        else:
            shutil.rmtree(self.folder, ignore_errors=True)  # after Ctrl-C, workers may still write

    def each(self, stage: str, tasks: Sequence[Callable[[], Any]]) -> Iterator[Any]:
        """Yields the result of each task, in order. Raises the first UserError or OSError of a task."""
        replace_file(self.folder / f"{stage}.tasks", pickle.dumps(tasks))
        self._run(stage, len(tasks))
        for number in range(len(tasks)):
            found = pickle.loads((self.folder / f"{stage}-{number:05}.result").read_bytes())
            if isinstance(found, Exception):
                raise found
            yield found

    def _run(self, stage: str, count: int) -> None:
        import apache_beam as beam

        def run() -> None:
            with beam.Pipeline(options=self._options) as pipeline:
                numbers = pipeline | "Numbers" >> beam.Create(range(count)) | beam.Reshuffle()
                _ = numbers | stage >> beam.Map(_call, str(self.folder), stage)

        with _quiet(self._is_direct) as log:
            failed = _failure(run)
        if failed:
            see = f"see {log}, and " if log else ""
            remedy = f"{see}run the same command again; it keeps the complete sections"
            raise UserError(f"Beam stopped while {stage} ({failed}): {remedy}")
        if log:
            log.unlink()


def _call(number: int, folder: str, stage: str) -> None:
    """What a worker does: a task of a stage. Stores the result, or the user's mistake."""
    place = as_path(folder)
    tasks = pickle.loads((place / f"{stage}.tasks").read_bytes())
    try:
        found = tasks[number]()
    except (UserError, OSError) as error:
        found = error
    # Two workers may do the same: each has a draft of its own.
    replace_file(place / f"{stage}-{number:05}.result", pickle.dumps(found), suffix=secrets.token_hex(4))


def _options(arguments: Sequence[str], workers: int) -> tuple[Any, bool]:
    """Beam's options, and whether its runner is the DirectRunner, with `workers` processes by default."""
    for each in arguments:
        name = each.partition("=")[0]
        require(
            not (each.startswith("--") and "." in name),
            f"{name} after --beam is given to Beam, which has no such option: write it before --beam",
        )
    usual = logging.root.manager.disable
    logging.disable(logging.WARNING)  # Beam warns of optional packages
    try:
        from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
        from apache_beam.runners.runner import create_runner
    finally:
        logging.disable(usual)
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    words = io.StringIO()
    try:
        with contextlib.redirect_stderr(words):
            options = PipelineOptions(list(arguments))
            given = options.get_all_options(drop_default=True)
            unknown = sorted(set(options.get_all_options(retain_unknown_options=True)) - set(options.get_all_options()))
            runner = options.view_as(StandardOptions).runner
            create_runner(runner or "DirectRunner")
    except SystemExit:  # argparse
        reason = words.getvalue().strip().rpartition("error: ")[2]
        raise UserError(f"an option after --beam is wrong: {' '.join(reason.split())}") from None
    except (ValueError, ImportError, AttributeError) as error:
        raise UserError(f"an option after --beam is wrong: {' '.join(str(error).split())}") from None
    defaults = []
    if runner in DIRECT:
        require(not unknown, f"an option after --beam is wrong: the DirectRunner has no --{', --'.join(unknown)}")
        count = given.get("direct_num_workers", workers)
        mode = "in_memory" if count == 1 else "multi_processing"
        # The last option keeps the DirectRunner from downloading another runner, Prism; there are no triggers here.
        defaults = [f"--direct_num_workers={count}", f"--direct_running_mode={mode}", "--allow_unsafe_triggers",
                    "--default_sdk_harness_log_level=ERROR"]  # fmt: skip
    return PipelineOptions([*defaults, *arguments]), runner in DIRECT


def _failure(run: Callable[[], None]) -> str:
    """Runs a pipeline. Returns why it failed, or "".

    The DirectRunner waits for ever for a worker that was killed: only a thread of Beam's fails.
    """
    ended, reasons = threading.Event(), []
    usual = threading.excepthook

    def note(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_type is RuntimeError and "exited with return code" in str(failed.exc_value):
            reasons.append(KILLED)
            ended.set()
        elif not failed.exc_type.__module__.startswith("grpc"):  # another thread of Beam's, which has lost the worker
            usual(failed)

    def work() -> None:
        try:
            run()
        except BaseException as error:
            reasons.append((str(error).strip() or type(error).__name__).splitlines()[-1].strip(" ."))
        finally:
            ended.set()

    threading.excepthook = note
    try:
        threading.Thread(target=work, name="beam", daemon=True).start()
        ended.wait()
    finally:
        if KILLED not in reasons:  # else Beam's threads fail later, too
            threading.excepthook = usual
    return reasons[0] if reasons else ""


@contextlib.contextmanager
def _quiet(is_direct: bool) -> Iterator[Path | None]:
    """Writes what the processes of the DirectRunner print to standard error to a file, which is returned."""
    if not is_direct:
        yield None
        return
    handle, name = tempfile.mkstemp(prefix="s2sjax-beam-", suffix=".log")
    sys.stderr.flush()
    usual = os.dup(2)
    os.dup2(handle, 2)
    try:
        yield Path(name)
    finally:
        os.dup2(usual, 2)
        os.close(usual)
        os.close(handle)
