"""The contents of the report, as plain values. If a part does not apply, a line says why."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.evaluate.figures import logged_metrics
from s2sjax.evaluate.prediction.attention_heads import Kind
from s2sjax.report import scored_outputs, views
from s2sjax.report.scored_outputs import clean
from s2sjax.report.subjects import Subject
from s2sjax.runs import comparison, evaluations, folder
from s2sjax.runs.evaluations import Evaluation
from s2sjax.runs.run import Run
from s2sjax.tasks.vocabulary_transfer import source_vocabulary
from s2sjax.training import goodput
from s2sjax.training.run_log import METRICS, NOTHING
from s2sjax.version import __version__

MOST_POINTS = 600
"""maximal number of points of a curve"""
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class Limits(NamedTuple):
    """Limits on the parts of the report that are costly to compute."""

    attention: int = 10_000
    """maximal number of examples with attention"""
    heads: int = 50
    """maximal number of examples with the attention of each layer and head"""
    trees: int = 12
    """maximal number of examples with a search tree"""
    resamples: int = 1000
    """number of bootstrap resamples of a comparison"""


def contents(subjects: Sequence[Subject], limits: Limits) -> dict[str, Any]:
    """Collects the values that the page shows."""
    base = next((subject for subject in subjects if subject.evaluation), subjects[0])
    compared = [_compared(base, subject, limits.resamples) for subject in subjects]
    numbers = [number for number, found in enumerate(compared) if "why" not in found]
    values: dict[str, Any] = {
        "version": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": [_run(subject) for subject in subjects],
        "fields": fields(subjects),
        "base": subjects.index(base),
        "comparisons": {str(number): found for number, found in enumerate(compared) if subjects[number] is not base},
        "shown": numbers,
        "examples": None,
        "lengths": {"why": "there are no outputs: no run has been evaluated"},
    }
    if shown := [subjects[number] for number in numbers]:
        examples = _examples(shown)
        examples["views"] = [_views(subject, examples["scores"][0], examples["higher"], limits) for subject in shown]
        values |= {"examples": examples, "lengths": _lengths(shown)}
    return evaluations.finite(values)


# -------------------------------------------------------------------------------------- one run


def _run(subject: Subject) -> dict[str, Any]:
    run, one, log = subject.run, subject.evaluation, subject.run.folder / METRICS
    logged = logged_metrics.read(log) if log.exists() else {}
    return {
        "label": subject.label,
        "folder": str(run.folder),
        "name": run.experiment.name,
        "model": run.task.model_name,
        "task": type(run.experiment).__name__,
        "evaluation": one.describe() if one else "",
        "missing": subject.missing,
        "scores": _scores(one) if one else [],
        "curves": [
            {"panel": panel, "dev": of_dev, "points": thinned(points)}
            for panel, of_dev, points in logged_metrics.curves(logged)
        ],
        "speed": speed(logged, goodput.read(run.folder)),
    }


def _scores(one: Evaluation) -> list[dict[str, Any]]:
    groups = {"": one.page["metrics"], **one.page.get("corpora", {})}
    return [
        {"group": group, "label": result["label"],
         "value": "not a number" if result["value"] is None else result["format"].format(result["value"]),
         "signature": result["signature"] or "", "examples": result["examples"], "higher": result["higher_is_better"]}
        for group, results in groups.items() for result in results.values()
    ]  # fmt: skip


def thinned(points: Sequence[Sequence[float]], most: int = MOST_POINTS) -> list[list[float]]:
    """At most `most` evenly spaced points [step, value, ...], including the first and the last."""
    places = sorted(set(np.linspace(0, len(points) - 1, min(len(points), most)).round().astype(int).tolist()))
    return [[points[place][0], *(float(f"{value:.6g}") for value in points[place][1:])] for place in places]


SPEED: dict[str, tuple[str, Callable[[list[float]], str]]] = {
    "tokens_per_second": ("training speed (median)", lambda rates: f"{median(rates):,.0f} tokens/s"),
    "device_memory_bytes": ("memory of a device in training", lambda each: size(max(each))),
}
"""name in metrics.jsonl: (label, function from the values to a text)"""


TIMES = {
    "steps": "training steps", "compile": "compilation", "input": "waiting for batches",
    "evaluate": "evaluations during training", "save": "saving checkpoints", "profile": "writing traces",
    "start": "the start", "restart": "restarts, with steps computed again",
}  # fmt: skip
"""what each kind of work is called: see training/goodput.py"""


def speed(logged: logged_metrics.Logged, spent: Mapping[str, float] = NOTHING) -> list[list[str]]:
    """Speed, memory and time, as [name, value] pairs. spent: time.json; {} for a run of an older version."""
    values = {name: [value for _, value in points] for name, points in logged.items()}
    rows = [[label, shown(values[name])] for name, (label, shown) in SPEED.items() if name in values]
    shares = {kind: f" ({share}%)" for kind, share in goodput.percentages(spent).items()}
    if not spent:
        lines = {kind: "seconds" if kind == "steps" else f"{kind}_seconds" for kind in TIMES}
        spent = {kind: sum(values[name]) for kind, name in lines.items() if name in values}
    rows += [
        [f"time of {name}", duration(spent[kind]) + shares.get(kind, "")]
        for kind, name in TIMES.items()
        if kind in spent
    ]
    return rows


def duration(seconds: float) -> str:
    """Formats a duration: 5.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{round(seconds / 60) // 60} h {round(seconds / 60) % 60} min"


def size(count: float) -> str:
    """Formats a number of bytes: 2.5 MB."""
    return next((f"{count / unit:.3g} {name}" for unit, name in UNITS if count >= unit), f"{count:.0f} B")


def fields(subjects: Sequence[Subject]) -> list[list[Any]]:
    """[name, value in each run] for every field of the experiments; None if a run has no such field."""
    pages = [folder.flat(config.to_json(subject.run.trained)) for subject in subjects]
    names = list(dict.fromkeys(name for page in pages for name in page))
    shown = lambda page, name: json.dumps(page[name], ensure_ascii=False) if name in page else None
    return [[name, *(shown(page, name) for page in pages)] for name in names]


# ------------------------------------------------------------------------------------- together


def _compared(base: Subject, subject: Subject, resamples: int) -> dict[str, Any]:
    """Compares a run with the base run; {"why": ...} if they cannot be compared."""
    if base.evaluation is None or subject.evaluation is None:
        return {"why": f"{subject.label}: {subject.missing}"}
    if subject is base:
        return {}
    try:
        found = comparison.Comparison(base.evaluation, subject.evaluation, resamples)
    except UserError as error:
        return {"why": str(error)}
    count = len(base.evaluation.outputs)
    notes = found.warnings()
    notes += [f"{found.first[name].label} is not tested: it is not a sum over examples" for name in found.untested]
    if count < comparison.FEW:
        notes.append(f"p is not reliable on {count} examples: evaluate more")
    return {"rows": [list(row) for row in found.rows()], "resamples": resamples, "notes": notes}


def _examples(shown: Sequence[Subject]) -> dict[str, Any]:
    """The outputs of evaluations of the same examples, as lists with an entry for each example."""
    first, *_ = every = [subject.evaluation for subject in shown if subject.evaluation]
    metric = scored_outputs.metric_of(first)
    aligned = [scored_outputs.alignments(one.outputs) for one in every]
    return {
        "labels": [subject.label for subject in shown],
        "noun": first.page["noun"],
        "split": first.split,
        "metric": first[metric].label if metric else "",
        "higher": bool(metric and first[metric].higher_is_better),
        "sources": [clean(row["source"]) for row in first.outputs],
        "references": [[clean(text) for text in row["references"]] for row in first.outputs],
        "outputs": [[clean(row["hypothesis"]) for row in one.outputs] for one in every],
        "scores": [scored_outputs.scores(one, metric) for one in every],
        "words": scored_outputs.unit_of([text for row in first.outputs for text in row["references"]]) == "words",
        "edits": aligned,
        "unaligned": "" if aligned[0] else "no edit alignments: each output is a single label or number",
    }


def _lengths(shown: Sequence[Subject]) -> dict[str, Any]:
    """Quality by source length; {"why": ...} if it cannot be computed."""
    every = [subject.evaluation for subject in shown if subject.evaluation]
    run, metric = shown[0].run, scored_outputs.metric_of(every[0])
    if source_vocabulary(run.task.assets) is None:
        return {"why": f"quality by source length: the sources of {type(run.experiment).__name__} are not text"}
    if metric is None:
        return {"why": "quality by source length: no metric has a score for each example"}
    unit, buckets = scored_outputs.by_length(every, metric)
    result = every[0][metric]
    return {
        "unit": unit, "metric": result.label, "higher": result.higher_is_better, "format": result.format.count("%") > 0,
        "labels": [subject.label for subject in shown], "buckets": [bucket._asdict() for bucket in buckets],
    }  # fmt: skip


# ---------------------------------------------------------------------------- what needs the model


def chosen(scores: Sequence[float | None], higher: bool, count: int) -> list[int]:
    """Chooses `count` examples: a quarter are the worst, a quarter the best, the others evenly spaced."""
    total = len(scores)
    if count >= total:
        return list(range(total))
    order = sorted(range(total), key=lambda n: (scores[n] is None, (scores[n] or 0.0) * (1 if higher else -1)))
    picked = dict.fromkeys([*order[: -(-count // 4)], *order[total - count // 4 :]])
    for place in np.linspace(0, total - 1, 2 * count).round().astype(int).tolist():
        if len(picked) < count:
            picked[place] = None
    return sorted(list(picked)[:count])


def _views(subject: Subject, scores: Sequence[float | None], higher: bool, limits: Limits) -> dict[str, Any]:
    """{"attention": {row: view}, "heads": of one row, "trees": {row: view}, "why": [reasons for what is left out]}."""
    found: dict[str, Any] = {"attention": {}, "heads": None, "trees": {}, "why": []}
    run, one = subject.run, subject.evaluation
    assert one is not None
    if not (limits.attention or limits.trees):
        return found
    if why := _no_model(run, one):
        return found | {"why": [f"no attention and no search trees: {why}"]}
    search = config.from_json(one.page["search"])
    run = run if search == run.experiment.search else run.adjusted(search=search)
    translator, params = run.task.translator(run.mesh()), run.params(one.page["average"], run.mesh())[0]  # type: ignore[attr-defined]
    sources, texts = ([row[name] for row in one.outputs] for name in ("source", "hypothesis"))
    if not translator.attends:
        found["why"].append(f"no attention: {run.task.model_name} has none")
    elif limits.attention:
        detailed = chosen(scores, higher, min(limits.heads, limits.attention)) if translator.has_heads else []
        others = sorted({*chosen(scores, higher, limits.attention)} - {*detailed})
        for rows, heads in ((detailed, True), (others, False)):
            ids = [translator.target.encode(texts[row]) for row in rows]
            lines = [sources[row] for row in rows]
            maps = views.attention(translator, params, lines, ids, heads=heads) if rows else []
            found["attention"] |= {str(row): view for row, view in zip(rows, maps) if view}
    kinds: list[Kind] = [*(("cross",) if translator.has_heads else ()), *translator.self_attends]
    if kinds and limits.heads and limits.attention:
        rows = sorted(chosen(scores, higher, limits.heads), key=lambda row: len(sources[row]))
        row = rows[len(rows) // 2]
        (maps_of_one,) = views.heads(translator, params, [sources[row]], [translator.target.encode(texts[row])], kinds)
        found["heads"] = {"row": row, "views": maps_of_one} if maps_of_one else None
    if not translator.has_trees:
        found["why"].append("no search trees: they require beam search, search.beam_size > 1")
    else:
        trees = {str(row): views.tree(translator, params, sources[row]) for row in chosen(scores, higher, limits.trees)}
        found["trees"] = {row: view for row, view in trees.items() if view}
    return found


def _no_model(run: Run, one: Evaluation) -> str:
    """The reason why the model that made the outputs cannot be used; "" if it can."""
    if not run.task.generates_text:
        return f"{type(run.experiment).__name__} does not translate text"
    if one.page["ensemble"]:
        return "the outputs were made by an ensemble"
    if not folder.has_checkpoint(run.folder):
        return "the run has no checkpoint"
    if "search" not in one.page:
        return f"{one.path} does not record its search settings"
    try:
        config.from_json(one.page["search"])
        step = run.params(one.page["average"], run.mesh())[1]
    except (UserError, TypeError) as error:
        return str(error)
    if step != one.page["step"]:
        return f"the outputs were made at step {one.page['step']}, but the best checkpoint is now that of step {step}"
    return ""
