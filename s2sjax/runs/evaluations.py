"""The evaluations of a run, in RUN/evaluations/NAME. Different evaluations do not overwrite each other.

NAME says what was evaluated and how: test-step3000-beam4, or test-step3000-average5-with-large-step900-beam8-alpha0.8.

results.json     the metrics, the split, the checkpoint, the settings, the SHA-256 of the run's code, the date,
                 the seconds that training has spent on each kind of work
outputs.jsonl    one line per example: source, hypothesis, references, and the terms of each metric
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from s2sjax import config
from s2sjax.data.examples import SPLITS
from s2sjax.errors import UserError
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult, summary
from s2sjax.evaluate.prediction.progress_listener import counting
from s2sjax.files import replace_file
from s2sjax.runs import folder, stored_code
from s2sjax.runs.table_formats import ResultTable
from s2sjax.tasks.task import Task
from s2sjax.training import goodput, multihost
from s2sjax.training.heartbeat import working

FOLDER, RESULTS, OUTPUTS = "evaluations", "results.json", "outputs.jsonl"
TIME = "training_seconds"
"""entry of results.json: see training/goodput.py"""
LONGEST = 100
"""maximal number of characters of a name; a longer one ends in a hash"""
STORED = ("value", "signature", "examples", "label", "format", "higher_is_better")
"""fields of a MetricResult that results.json stores"""
NEUTRAL = (*folder.FREE, "evaluate.metrics", "evaluate.drawn", "evaluate.figure")
"""settings that change neither outputs nor scores"""


class Evaluation:
    """The results of one evaluation. evaluation["per"].value is a score; print(evaluation) prints all scores."""

    def __init__(self, path: Path, page: dict[str, Any]):
        self.path, self.page = path, page
        self.name: str = path.name
        self.split, self.step, self.average = page["split"], page["step"], page["average"]
        self.ensemble = [f"{member['run']} at step {member['step']}" for member in page["ensemble"]]
        self.search, self.results = page["settings"], _results(page["metrics"])
        if not self.results:
            raise ValueError("it has no metrics")
        summary(self.results, page["noun"])  # raises now if a field is missing or invalid

    @property
    def run(self) -> Path:
        return self.path.parent.parent

    @cached_property
    def outputs(self) -> list[dict[str, Any]]:
        """A dictionary for each example: source, hypothesis, references, and the terms of each metric."""
        file = self.path / OUTPUTS
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
            if rows := [_row(line, number) for number, line in enumerate(lines, start=1) if line]:
                return rows
            raise ValueError("it has no lines")
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read ({error}): delete {self.path}, and evaluate again") from None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that affect outputs and scores, by dotted name: search, averaging, ensemble."""
        pages = {name: page for name, page in self.page.items() if isinstance(page, dict) and "kind" in page}
        for name, page in pages.items():
            with contextlib.suppress(UserError, TypeError):  # fields added since then have their defaults
                pages[name] = config.to_json(config.from_json(page))
        found = folder.flat(pages) if "search" in pages else {"search": self.search, **folder.flat(pages)}
        found = {name: value for name, value in found.items() if name not in NEUTRAL and not name.endswith(".kind")}
        return {"average": self.average, "ensemble": self.ensemble} | found

    def __getitem__(self, metric: str) -> MetricResult:
        if metric not in self.results:
            raise UserError(f"{self.path} has no {metric}: it has {', '.join(self.results)}")
        return self.results[metric]

    def describe(self) -> str:
        """A phrase that says what was evaluated: split, checkpoint, search, ensemble."""
        which = f"checkpoint of step {self.step}"
        if self.average:
            which = f"mean of {self.average} checkpoints to step {self.step}"
        more = f"with {len(self.ensemble)} more" if self.ensemble else ""
        return ", ".join(filter(None, (self.split, which, self.search, more)))

    def __str__(self) -> str:
        parts = [f"{self.describe()}:", summary(self.results, self.page["noun"])]
        for label, group in self.page.get("corpora", {}).items():
            parts += [f"{label}:", summary(_results(group), self.page["noun"])]
        return "\n".join(parts)

    __repr__ = __str__


def differences(several: Iterable[Evaluation], known: Collection[str] = ()) -> str:
    """The settings that differ among evaluations, with their values: "search.beam_size 1 and 4"; "" if there are none.

    If settings differ, differences of the scores are not due to the models alone. known: settings to leave out.
    """
    several = list(several)
    told = lambda value: ", ".join(map(str, value)) if isinstance(value, list) else str("" if value is None else value)
    names = dict.fromkeys(name for one in several for name in one.settings if name not in known)
    values = {name: dict.fromkeys(told(one.settings.get(name)) or "none" for one in several) for name in names}
    return "; ".join(f"{name} {' and '.join(each)}" for name, each in values.items() if len(each) > 1)


# -------------------------------------------------------------------------------------- evaluating

Results = dict[str, MetricResult]


def score(task: Task, examples: Sequence[Any], outputs: Sequence[Any]) -> tuple[Results, dict[str, Results]]:
    """Scores the outputs. Returns the results of all examples, and the results of each group of examples."""
    groups = {
        label: task.metrics([examples[n] for n in rows], [outputs[n] for n in rows])
        for label, rows in task.groups(examples).items()
    }
    return task.metrics(examples, outputs), groups


def evaluate(
    run: Any,
    split: str | None = None,
    others: Sequence[Any] = (),
    average: int = 0,
    *,
    report: Callable[[Evaluation], None] = lambda _: None,
) -> Evaluation:
    """Predicts a whole split with the best checkpoint, and writes its scores and outputs.

    others: runs that form an ensemble with `run`. average: use the mean of that many newest checkpoints of each run.
    report: called with the scores before they are written, so that they are not lost if writing fails.
    """
    task, mesh = run.task, run.mesh()
    split = split or task.default_split
    if split is None:
        raise UserError(
            "there are neither test nor dev examples: name another split (an import has those of s2sjax import --test)"
        )
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r}: choose from {', '.join(SPLITS)}")
    examples = task.examples(split)
    task.check_examples(split, examples)
    run.check_ensemble(others)
    params, step = run.params(average, mesh)
    further = [other.params(average, mesh) for other in others]
    predict = task.predictor(mesh, [other.task for other in others]) if others else run.predictor
    with working(f"evaluating {split}") as work, counting(work.count):
        outputs = predict([params, *(each for each, _ in further)] if others else params, examples)
    results, groups = score(task, examples, outputs)
    found = make(
        run.folder, split, step, results, average=average,
        ensemble=[(other.folder.resolve().name, at) for other, (_, at) in zip(others, further)],
        settings=task.settings_text(), changed=_changed(run), noun=task.noun, groups=groups,
        **_settings(run.experiment),
    )  # fmt: skip
    if spent := goodput.read(run.folder):
        found.page[TIME] = spent
    for page, one in zip([found.page, *found.page["ensemble"]], [run, *others]):
        # the code that was executed, even if the folder has changed since
        if used := stored_code.origin_of(one.trained).code().files:
            page["code"] = stored_code.hashes(used)
    report(found)
    if multihost.is_leader():
        records = [task.record(example, output) for example, output in zip(examples, outputs, strict=True)]
        found = write(found, records, results)
    return found


def _settings(experiment: Any) -> dict[str, Any]:
    return {name: config.to_json(getattr(experiment, name)) for name in experiment.evaluate_fields}


def _changed(run: Any) -> dict[str, Any]:
    """The settings that affect outputs or scores and differ from those of training, by dotted name."""
    old, new = (folder.flat(_settings(experiment)) for experiment in (run.trained, run.experiment))
    named = (*folder.FREE, *run.task.settings_fields)
    return {name: value for name, value in new.items() if old.get(name) != value and name not in named}


# -------------------------------------------------------------------------- names and files of a run


def make(
    run: Path,
    split: str,
    step: int,
    results: Mapping[str, MetricResult],
    *,
    average: int = 0,
    ensemble: Sequence[tuple[str, int]] = (),
    settings: str = "",
    changed: Mapping[str, Any] | None = None,
    noun: str = "example",
    groups: Mapping[str, Mapping[str, MetricResult]] | None = None,
    **extra: Any,
) -> Evaluation:
    """Makes an evaluation without writing it.

    ensemble: (name, step) of each other run. settings: a phrase that says how outputs were searched. changed: fields,
    by dotted name, that differ from those of the run. extra: further entries of results.json.
    """
    page: dict[str, Any] = {
        "split": split,
        "step": step,
        "average": average,
        "ensemble": [{"run": name, "step": at} for name, at in ensemble],
        "settings": settings,
        "noun": noun,
        "metrics": _to_json(results),
    }
    if groups:
        page["corpora"] = {label: _to_json(part) for label, part in groups.items()}
    return Evaluation(run / FOLDER / _name(page, changed or {}), page | extra)


def write(
    evaluation: Evaluation, records: Sequence[Mapping[str, Any]], results: Mapping[str, MetricResult]
) -> Evaluation:
    """Writes the results and the outputs, as NAME-2 if NAME has other results. Returns the written evaluation.

    Repeating an evaluation with the same results replaces it: only its date changes.
    """
    for record in records:
        if missing := {"source", "hypothesis", "references"} - record.keys():
            raise UserError(f"Task.record returns no {sorted(missing)[0]}: add it, see docs/extending.md")
    terms = [{name: list(r.terms[n]) for name, r in results.items() if r.terms} for n in range(len(records))]
    lines = [_dump({**record, "terms": each}) for record, each in zip(records, terms, strict=True)]
    outputs = "".join(line + "\n" for line in lines)
    for number in count(1):
        path = evaluation.path.with_name(f"{evaluation.name}-{number}" if number > 1 else evaluation.name)
        former = _open(path)
        same = former and _undated(former.page) == _undated(evaluation.page)
        if former is None or (same and _text(path / OUTPUTS) == outputs):
            break
    page = {**evaluation.page, "date": datetime.now(UTC).isoformat(timespec="milliseconds")}
    replace_file(path / OUTPUTS, outputs)
    replace_file(path / RESULTS, _dump(page, indent=2) + "\n")  # written last: an evaluation with results is complete
    return Evaluation(path, page)


def read(path: Path) -> Evaluation:
    """Reads the evaluation in a folder RUN/evaluations/NAME."""
    if found := _open(path):
        return found
    raise UserError(f"{path} has no {RESULTS}: name a run, or one of the folders in RUN/{FOLDER}")


def read_all(run: str | Path) -> list[Evaluation]:
    """Reads the evaluations of a run, newest last."""
    run = config.as_path(run)
    folder.check_run(run)
    found = filter(None, (_open(path.parent) for path in sorted((run / FOLDER).glob(f"*/{RESULTS}"))))
    return sorted(found, key=lambda evaluation: evaluation.page.get("date", ""))


def _name(page: Mapping[str, Any], changed: Mapping[str, Any]) -> str:
    """Names an evaluation, such as "test-step30-beam4-alpha0.8" for "beam 4" and {"search.alpha": 0.8}."""
    parts = [page["split"], f"step{page['step']}", f"average{page['average']}" if page["average"] else ""]
    parts += [f"with-{member['run']}-step{member['step']}" for member in page["ensemble"]]
    parts += [page["settings"].replace(" ", "")]
    parts += [f"{field.rpartition('.')[2]}{_short(value)}" for field, value in sorted(changed.items())]
    name = re.sub(r"[^A-Za-z0-9_.+=-]", "_", "-".join(filter(None, parts)))
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9]}-{hashlib.sha256('-'.join(parts).encode()).hexdigest()[:8]}"
    return name


def _short(value: Any) -> str:
    """A setting as part of a file name: 0.8, -none, -chrf+wer, or a hash."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value}"
    text = "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    plain = re.fullmatch(r"[A-Za-z0-9_.+=]{1,30}", text)
    return f"-{text if plain else hashlib.sha256(text.encode()).hexdigest()[:6]}"


# --------------------------------------------------------------------------------------- the table


def table(runs: Sequence[str | Path], split: str | None = None, metrics: Collection[str] | None = None) -> ResultTable:
    """A table with a row for each evaluation, oldest first. split, metrics: those to show; by default all."""
    head = ("evaluation", "split", "checkpoint", "search", "metrics", "date (UTC)")
    records, cells = [], []
    for where, one in ((run, one) for run in runs for one in read_all(run) if split in (None, one.split)):
        date, shown = one.page.get("date", ""), {name: one[name] for name in metrics or one.results}
        checkpoint = f"mean of {one.average} to step {one.step}" if one.average else f"step {one.step}"
        search = [one.search, *(f"with {member['run']}" for member in one.page["ensemble"])]
        cells.append((f"{one.path}", one.split, checkpoint, ", ".join(filter(None, search)),
                      "  ".join(map(str, shown.values())), date[:16].replace("T", " ")))  # fmt: skip
        records.append(
            {"run": str(where), "name": one.name, "split": one.split, "step": one.step, "average": one.average,
             "ensemble": one.page["ensemble"], "search": one.search, "settings": one.settings,
             "metrics": {name: finite(result.value) for name, result in shown.items()},
             "examples": next(iter(shown.values())).examples, "date": date}
        )  # fmt: skip
    return ResultTable(records, head, cells)


def remarks(runs: Sequence[str | Path]) -> list[str]:
    """A line for each split on which the newest evaluations of the runs have different settings."""
    newest = [{evaluation.split: evaluation for evaluation in read_all(run)} for run in dict.fromkeys(map(Path, runs))]
    each = {split: [found[split] for found in newest if split in found] for split in SPLITS}
    told = {split: differences(found) for split, found in each.items()}
    return [f"the settings of the newest evaluations of {split} differ: {told[split]}" for split in told if told[split]]


# ------------------------------------------------------------------------------------------- files


def _row(line: str, number: int) -> dict[str, Any]:
    """Parses a line of outputs.jsonl. Raises a ValueError if it is incomplete."""
    try:
        row = json.loads(line)
        texts = (row["source"], row["hypothesis"], *row["references"])
        pairs = [(above, below) for above, below in row["terms"].values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"line {number}: {what}") from None
    if not all(isinstance(text, str) for text in texts) or not isinstance(row["references"], list):
        raise ValueError(f"line {number}: source, hypothesis or references are not text")
    if not all(isinstance(value, int | float | None) for pair in pairs for value in pair):
        raise ValueError(f"line {number}: terms are not numbers")
    return row


def _results(page: Mapping[str, Any]) -> dict[str, MetricResult]:
    found = {name: MetricResult(name=name, **{field: one[field] for field in STORED}) for name, one in page.items()}
    return {name: one._replace(value=math.nan) if one.value is None else one for name, one in found.items()}


def _to_json(results: Mapping[str, MetricResult]) -> dict[str, dict[str, Any]]:
    return {name: {field: getattr(result, field) for field in STORED} for name, result in results.items()}


def _open(path: Path) -> Evaluation | None:
    """Reads results.json; None if there is none."""
    try:
        return Evaluation(path, json.loads((path / RESULTS).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{path / RESULTS} cannot be read ({what}): delete {path}, and evaluate again") from None


def _undated(page: Mapping[str, Any]) -> dict[str, Any]:
    """A page as JSON reads it back, without date, time of training, and settings that do not affect the results."""
    flat = folder.flat({name: value for name, value in json.loads(_dump(page)).items() if name not in ("date", TIME)})
    return {name: value for name, value in flat.items() if name not in folder.FREE}


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _dump(value: Any, **options: Any) -> str:
    return json.dumps(finite(value), ensure_ascii=False, **options)


def finite(value: Any) -> Any:
    """Replaces NaN and infinity by None, because JSON cannot represent them."""
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
