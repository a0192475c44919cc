"""What a request may ask, and what it gets: plain values in, plain values out.

POST /decode    {"lines": [...], "nbest": 1, "alignment": false} -> {"outputs": [...]}: one for each line
POST /explain   {"line": "..."} -> {"outputs": n-best, "attention": one map for each, "tree": ...}
GET  /health    -> {"status": "ok", ...}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from s2sjax import config, evaluations
from s2sjax.errors import UserError
from s2sjax.evaluate.decoding import Output
from s2sjax.evaluate.notes import Notes
from s2sjax.report import views
from s2sjax.run import Run
from s2sjax.serve.engine import Engine

MOST_LINES = 1000
"""of a request"""
MOST_CHARACTERS = 20_000
"""of a line"""
WAITING = 4000
"""lines that may wait"""


class Asked(NamedTuple):
    """One line of a request."""

    line: Any
    """a string, or an example of a task that does not translate text"""
    nbest: int
    alignment: bool


class Service:
    """A run that answers requests."""

    def __init__(self, run: Run, average: int = 0):
        self.run = run = with_nbest(run)
        mesh = run.mesh()
        self.params, self.step = run.params(average, mesh)
        self.translates = run.task.generates_text
        self.translator: Any = run.task.translator(mesh) if self.translates else None  # type: ignore[attr-defined]
        self.nbest = run.experiment.search.nbest if self.translates else 1
        # Samples depend on the number of their line: a request with samples is decoded alone.
        samples = self.translates and bool(run.experiment.search.sampling.count)
        most = 0 if samples else getattr(run.experiment.evaluate, "rows", MOST_LINES)
        self.engine = Engine(self._answer, most, WAITING)
        self.why = self._left_out()

    def _left_out(self) -> list[str]:
        if not self.translates:
            return [f"{type(self.run.experiment).__name__} does not translate text: the page shows the output alone"]
        found = [] if self.translator.attends else [f"no attention: {self.run.task.model_name} has none"]
        if not views.has_trees(self.translator):
            found.append("no search tree: only beam search with search.beam above 1 has one")
        return found

    # ------------------------------------------------------------------------------------ answers

    def health(self) -> dict[str, Any]:
        engine = self.engine
        return {"status": "ok", **self.about(), "requests": engine.requests, "lines": engine.items,
                "batches": engine.batches}  # fmt: skip

    def about(self) -> dict[str, Any]:
        run = self.run
        return {"run": str(run.folder), "model": run.task.model_name, "task": type(run.experiment).__name__,
                "step": self.step, "settings": run.task.settings_text(), "nbest": self.nbest}  # fmt: skip

    def decode(self, request: Any) -> dict[str, Any]:
        """Waits for its outputs."""
        found = fields(request, {"lines": list, "nbest": int, "alignment": bool}, "lines")
        lines, nbest, alignment = found["lines"], found.get("nbest", 1), found.get("alignment", False)
        if len(lines) > MOST_LINES:
            raise UserError(f"lines has {len(lines):,} lines: at most {MOST_LINES:,} in one request")
        if not 1 <= nbest <= self.nbest:
            raise UserError(f"nbest is {nbest}: this server gives 1 to {self.nbest}")
        if alignment and not (self.translates and self.translator.attends):
            raise UserError("alignment requires a model with attention that translates text: leave it out")
        asked = [Asked(self._item(line, f"lines[{n}]"), nbest, alignment) for n, line in enumerate(lines)]
        return {"outputs": self.engine.submit(asked).result()}

    def explain(self, request: Any) -> dict[str, Any]:
        """The n-best outputs of one line, the attention of each, and the search tree."""
        line = fields(request, {"line": str}, "line")["line"]
        if not self.translates:
            raise UserError("explain applies only to runs that translate text: use /decode")
        self._item(line, "line")
        return self.engine.call(lambda: self._explain(line)).result()

    def _item(self, line: Any, where: str) -> Any:
        checked = checked_line(line, where)
        return checked if self.translates else self.run.task.example_of(checked, where)

    # ------------------------------------------------------------------- in the thread of the engine

    def _answer(self, asked: list[Asked]) -> list[dict[str, Any]]:
        lines = [each.line for each in asked]
        if not self.translates:
            return [{"text": str(output)} for output in self.run.predictor(self.params, lines)]
        notes = Notes()
        found = self.translator.decode(self.params, lines, notes=notes)
        cut, unknown = set(notes.cut), set(notes.unknown)
        answers = []
        links = self._links(asked, found)
        for number, (each, outputs) in enumerate(zip(asked, found), start=1):
            of = lambda n, number=number, each=each: links.get((number, n), []) if each.alignment else None
            shown = [_plain(output, of(n)) for n, output in enumerate(outputs[: each.nbest])]
            answer = {**shown[0], "cut": number in cut, "unknown": number in unknown}
            answers.append(answer | ({"nbest": shown} if each.nbest > 1 else {}))
        return answers

    def _links(
        self, asked: Sequence[Asked], found: Sequence[Sequence[Output]]
    ) -> dict[tuple[int, int], list[list[int]]]:
        """The (source piece, output piece) links of the outputs that are asked for, by (line, rank)."""
        wanted = [
            (number, n, each.line, output)
            for number, (each, outputs) in enumerate(zip(asked, found), start=1)
            for n, output in enumerate(outputs[: each.nbest])
            if each.alignment and each.line.strip()
        ]
        if not wanted:
            return {}
        links = self.translator.align(self.params, [line for _, _, line, _ in wanted], [each[3] for each in wanted])
        return {(number, n): [list(pair) for pair in pairs] for (number, n, _, _), pairs in zip(wanted, links)}

    def _explain(self, line: str) -> dict[str, Any]:
        outputs = self.translator.decode(self.params, [line])[0]
        maps: list[Any] = [None] * len(outputs)
        if self.translator.attends and line.strip():
            ids = [output.ids[:-1] for output in outputs]
            maps = views.attention(self.translator, self.params, [line] * len(outputs), ids, heads=True)
        tree = views.tree(self.translator, self.params, line) if views.has_trees(self.translator) else None
        return evaluations.finite({"outputs": [_plain(each) for each in outputs], "attention": maps, "tree": tree})


def checked_line(line: Any, where: str) -> str:
    """A line that can be decoded; where: its name in an error."""
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
    """The run with as many outputs as its beam is wide: the page shows them all."""
    if not run.task.generates_text:
        return run
    search = run.experiment.search
    if search.sampling.count or search.nbest > 1 or search.beam == 1:
        return run
    return run.adjusted(search=config.replace(search, nbest=search.beam))


def _plain(output: Output, links: list[list[int]] | None = None) -> dict[str, Any]:
    number = lambda value: round(value, 4) if math.isfinite(value) else None
    found: dict[str, Any] = {"text": output.text, "score": number(output.score), "log_prob": number(output.log_prob)}
    return found if links is None else found | {"alignment": links}


def fields(request: Any, known: Mapping[str, type], *required: str) -> dict[str, Any]:
    """The fields of a request, checked."""
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
