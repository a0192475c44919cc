"""Requests and answers of the JSON API, as plain values.

POST /decode    {"lines": [...], "nbest": 1, "alignment": false} -> {"outputs": [...]}, one per line
                {"files": [base64, ...]} for a run that reads recordings or pictures
POST /explain   {"line": "..."} -> {"outputs": n-best, "attention": one map per output, "self_attention": that of each
                side which has it, per output, "tree": ...}
GET  /health    -> {"status": "ok", ...}, or "warming" while programs are being compiled
"""

from __future__ import annotations

import math
import os
import threading
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from s2sjax import config
from s2sjax.core.backend import device
from s2sjax.errors import UserError
from s2sjax.evaluate.prediction.batched_apply import few_shapes
from s2sjax.evaluate.prediction.few_shapes import FewShapes
from s2sjax.evaluate.prediction.line_notes import Notes
from s2sjax.evaluate.prediction.translator import Output
from s2sjax.report import views
from s2sjax.runs import evaluations
from s2sjax.runs.run import Run
from s2sjax.serve.engine import Busy, Engine
from s2sjax.serve.served_files import MOST_BYTES as MOST_FILE_BYTES
from s2sjax.serve.served_files import Files, sent
from s2sjax.training.heartbeat import working

MOST_BYTES = 1_000_000
"""maximum bytes of a request body, without files"""
MOST_LINES = 1000
"""maximum lines in a request"""
MOST_CHARACTERS = 20_000
"""maximum characters in a line"""
WAITING = 4000
"""maximum number of waiting lines"""
MOST_HELD = 100_000_000
"""maximum bytes of waiting files"""
TRIALS = 10
"""number of measurements of a search; the fastest counts"""
CPU_ROWS = 16
"""lines in a batch on a CPU, where larger batches are not faster per line"""


class Warming(Exception):
    """Raised for requests that arrive while programs are being compiled."""


class Asked(NamedTuple):
    """One line of a request."""

    line: Any
    """string, bytes of a file, or example of a task that reads lines but does not translate them"""
    where: str
    """name of the line in errors"""
    number: int
    """index of the line in its request: random samples depend on it"""
    nbest: int
    alignment: bool

    @property
    def aligns(self) -> bool:
        """Whether the output has an alignment, which that of a blank line has not."""
        return self.alignment and bool(self.line.strip())


class Service:
    """Answers requests with a run. files: for a run that reads files, the folder whose files requests may name."""

    def __init__(self, run: Run, average: int = 0, files: str | Path | None = None):
        self.run = run = with_nbest(run)
        mesh = run.mesh()
        self.params, self.step = run.params(average, mesh)
        self.translates = run.task.generates_text
        self.kinds = "" if self.translates else run.task.file_kinds
        if files is not None and not self.kinds:
            raise UserError(f"{run.folder} reads lines, not files: leave out --files")
        self.files = None if files is None else Files(files)
        self.most_bytes = MOST_BYTES + (0 if not self.kinds else MOST_FILE_BYTES // 3 * 4)
        sizes = [getattr(run.experiment.evaluate, "batch_size", MOST_LINES)]
        self.translator: Any = None
        if self.translates:
            rows = CPU_ROWS if device.on_cpu() else sizes[0]
            self.translator = FewShapes(run.task.translator(mesh), rows)  # type: ignore[attr-defined]
            sizes = self.translator.sizes()
        self.nbest = run.experiment.search.nbest if self.translates else 1
        self.engine = Engine(self._begin, sizes, WAITING)
        self.compiled, self.programs, self.warming = 0, 0, False
        self._held, self._counting = 0, threading.Lock()
        self.why = self._left_out()

    def _left_out(self) -> list[str]:
        if not self.translates:
            return [f"{type(self.run.experiment).__name__} does not translate text: the page shows only the output"]
        found = [] if self.translator.attends else [f"no attention: {self.run.task.model_name} has none"]
        if not self.translator.has_trees:
            found.append("no search tree: only beam search with search.beam_size above 1 has one")
        return found

    # ------------------------------------------------------------------------------------ answers

    def health(self) -> dict[str, Any]:
        engine = self.engine
        return {"status": "warming" if self.warming else "ok", **self.about(), "programs": self.programs,
                "compiled": self.compiled, "requests": engine.requests, "lines": engine.items,
                "batches": engine.batches}  # fmt: skip

    def about(self) -> dict[str, Any]:
        run = self.run
        return {"run": str(run.folder), "model": run.task.model_name, "task": type(run.experiment).__name__,
                "step": self.step, "settings": run.task.settings_text(), "nbest": self.nbest, "files": self.kinds,
                "most_bytes": MOST_FILE_BYTES}  # fmt: skip

    def decode(self, request: Any) -> Future[dict[str, Any]]:
        """A future of the outputs. Raises UserError at once if the request is invalid."""
        known = {"lines": list, "files": list, "nbest": int, "alignment": bool}
        found = fields(request, known if self.kinds else {name: known[name] for name in known if name != "files"})
        nbest, alignment = found.get("nbest", 1), found.get("alignment", False)
        if not 1 <= nbest <= self.nbest:
            raise UserError(f"nbest is {nbest}: it must be from 1 to {self.nbest} on this server")
        if alignment and not (self.translates and self.translator.attends):
            raise UserError("alignment requires a model with attention that translates text: leave it out")
        self._check_warm()
        name, items = self._items(found)
        asked = [Asked(item, f"{name}[{n}]", n, nbest, alignment) for n, item in enumerate(items)]
        return self._hold(asked, sum(len(each.line) for each in asked) if self.kinds else 0)

    def _hold(self, asked: Sequence[Asked], size: int) -> Future[dict[str, Any]]:
        """Submits the lines of a request, and counts their bytes until they are answered."""
        with self._counting:
            if self._held + size > MOST_HELD:
                raise Busy
            self._held += size
        try:
            future = self.engine.submit(asked, lambda outputs: {"outputs": outputs})
        except Exception:
            self._release(size)
            raise
        future.add_done_callback(lambda _: self._release(size))
        return future

    def _release(self, size: int) -> None:
        with self._counting:
            self._held -= size

    def explain(self, request: Any) -> Future[dict[str, Any]]:
        """A future of the n-best outputs of one line, the attention of each, and the search tree."""
        line = fields(request, {"line": str}, "line")["line"]
        if not self.translates:
            raise UserError("explain applies only to runs that translate text: use /decode")
        checked_line(line, "line")
        self._check_warm()
        return self.engine.call(lambda: self._explain(line))

    def _check_warm(self) -> None:
        if self.warming:
            ready = f"{self.compiled} of {self.programs} are ready"
            raise Warming(f"the server is compiling its programs, {ready}: try again later")

    def _items(self, found: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """The name of the field with the items to decode, and the items."""
        names = [name for name in ("lines", "files") if name in found]
        if len(names) != 1:
            raise UserError("lines is missing" if not names else "send lines or files, not both")
        (name,) = names
        items = found[name]
        if len(items) > MOST_LINES:
            raise UserError(f"{name} has {len(items):,} lines: at most {MOST_LINES:,} in one request")
        if name == "lines":
            items = [checked_line(line, f"lines[{n}]") for n, line in enumerate(items)]
        if self.kinds:
            items = self._contents(name, items)
        elif not self.translates:
            items = [self.run.task.example_of(line, f"lines[{n}]") for n, line in enumerate(items)]
        return name, items

    def _contents(self, name: str, items: Sequence[Any]) -> list[bytes]:
        """The contents of the files that a request names or holds, up to a total size."""
        if name == "lines" and self.files is None:
            raise UserError(
                f"this run reads files ({self.kinds}): send them in base64 as files, or start the server with --files "
                "FOLDER and send their paths in it as lines"
            )
        left, contents = MOST_FILE_BYTES, []
        for number, item in enumerate(items):
            where = f"{name}[{number}]"
            if name == "files":
                contents.append(sent(item, where))
            else:
                assert self.files is not None, "checked above"
                contents.append(self.files.read(item, where, left))
            left -= len(contents[-1])
            if left < 0:
                raise UserError(f"the files have more than {MOST_FILE_BYTES:,} bytes: send fewer in one request")
        return contents

    # ------------------------------------------------------------------------------------- warming up

    def start(self, report: Callable[[str], None]) -> None:
        """Starts the engine, which first compiles all programs that requests may need."""
        self.warming = True
        self.engine.start()
        self.engine.call(lambda: self.warm_up(report), counts=False)

    def warm_up(self, report: Callable[[str], None] = lambda line: None) -> None:
        began = time.monotonic()
        try:
            programs = self._programs()
            self.programs = len(programs)
            # XLA releases the GIL while it compiles, so threads compile in parallel.
            if programs:
                report("compiling the programs: requests are answered when they are ready")
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool, working("compiling") as work:
                for done in as_completed([pool.submit(program) for program in programs]):
                    done.result()
                    self.compiled += 1
                    work.count(self.compiled, self.programs)
            if self.translates:
                self.engine.turn = self._turn()
        finally:
            self.warming = False
        if programs:
            report(f"ready: {self.programs} programs compiled in {time.monotonic() - began:.0f} s")

    def _programs(self) -> list[Callable[[], Any]]:
        if self.translates:
            return self.translator.programs(self.params)
        example = self.run.task.blank_example()
        return [] if example is None else [lambda: self._predict([example], all=True)]

    def _turn(self) -> int:
        """The largest batch that takes at most twice as long to search as the smallest: see engine.py."""
        search = self.translator.trial
        seconds = {
            rows: min(timeit.repeat(partial(search, self.params, rows), number=1, repeat=TRIALS))
            for rows in self.translator.sizes()
        }
        return max(rows for rows, took in seconds.items() if took <= 2 * seconds[min(seconds)])

    # ------------------------------------------------------------------- in the thread of the engine

    def _begin(self, asked: list[Asked]) -> Callable[[], list[dict[str, Any]]]:
        lines = [each.line for each in asked]
        if not self.translates:
            read = self.run.task.example_from
            examples = [read(each.line, each.where) for each in asked] if self.kinds else lines
            return lambda: [{"text": str(output)} for output in self._predict(examples)]
        notes = Notes()
        collect = self.translator.dispatch(self.params, lines, notes=notes, numbers=[each.number for each in asked])
        return lambda: self._answers(asked, collect(), notes)

    def _answers(self, asked: Sequence[Asked], found: Sequence[list[Output]], notes: Notes) -> list[dict[str, Any]]:
        best = [outputs[: each.nbest] for each, outputs in zip(asked, found)]
        aligned = [(each.line, one) for each, outputs in zip(asked, best) if each.aligns for one in outputs]
        links = iter(self.translator.align(self.params, *zip(*aligned)) if aligned else ())
        cut, unknown = set(notes.cut), set(notes.unknown)
        answers = []
        for number, (each, outputs) in enumerate(zip(asked, best), start=1):
            shown = [_plain(output) for output in outputs]
            for one in shown if each.alignment else ():
                one["alignment"] = [list(pair) for pair in next(links)] if each.aligns else []
            answer = {**shown[0], "cut": number in cut, "unknown": number in unknown}
            answers.append(answer | ({"nbest": shown} if each.nbest > 1 else {}))
        return answers

    def _predict(self, examples: Sequence[Any], all: bool = False) -> list[Any]:
        with few_shapes(all):
            return self.run.predictor(self.params, examples)

    def _explain(self, line: str) -> dict[str, Any]:
        outputs = self.translator.decode(self.params, [line], notes=Notes())[0]
        maps: list[Any] = [None] * len(outputs)
        ids, lines = [output.ids[:-1] for output in outputs], [line] * len(outputs)
        if self.translator.attends and line.strip():
            maps = views.attention(self.translator, self.params, lines, ids, heads=True)
        of_sides = views.heads(self.translator, self.params, lines, ids, self.translator.self_attends)
        tree = views.tree(self.translator, self.params, line) if self.translator.has_trees else None
        found = {"outputs": [_plain(each) for each in outputs], "attention": maps, "self_attention": of_sides}
        return evaluations.finite(found | {"tree": tree})


def checked_line(line: Any, where: str) -> str:
    """Checks that a line can be decoded, and returns it. where: its name in errors."""
    if not isinstance(line, str):
        raise UserError(f"{where} is not a string")
    if len(line) > MOST_CHARACTERS:
        raise UserError(f"{where} has {len(line):,} characters: at most {MOST_CHARACTERS:,}")
    if "\n" in line or "\r" in line:
        raise UserError(f"{where} has a line break: send one line each")
    if any("\ud800" <= character <= "\udfff" for character in line):
        raise UserError(f"{where} has half of a surrogate pair: send valid Unicode")
    return line


def with_nbest(run: Run) -> Run:
    """The run with search.nbest set to the beam size, so that the page shows all outputs."""
    if not run.task.generates_text:
        return run
    search = run.experiment.search
    if search.sampling.count or search.nbest > 1 or search.beam_size == 1:
        return run
    return run.adjusted(search=config.replace(search, nbest=search.beam_size))


def _plain(output: Output) -> dict[str, Any]:
    number = lambda value: round(value, 4) if math.isfinite(value) else None
    return {"text": output.text, "score": number(output.score), "log_prob": number(output.log_prob)}


def fields(request: Any, known: Mapping[str, type], *required: str) -> dict[str, Any]:
    """Checks the fields of a request, and returns them."""
    if not isinstance(request, dict):
        raise UserError("the body is not a JSON object")
    for name, value in request.items():
        if name not in known:
            raise UserError(f"there is no field {name!r:.60}: the fields are {', '.join(known)}")
        if not isinstance(value, known[name]) or (known[name] is int and isinstance(value, bool)):
            kind = {list: "a list", int: "a whole number", bool: "true or false", str: "a string"}[known[name]]
            raise UserError(f"{name} is not {kind}")
    for name in required:
        if name not in request:
            raise UserError(f"{name} is missing")
    return request
