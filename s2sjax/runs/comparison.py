"""Compares two evaluations of the same examples: scores, significance, and the examples that changed most."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.evaluate.metrics.corpus_metrics import METRICS
from s2sjax.evaluate.metrics.significance import Difference, bootstrap, line_scores, sacrebleu_bootstrap
from s2sjax.runs import evaluations, stored_code
from s2sjax.runs.evaluations import Evaluation
from s2sjax.runs.table_formats import aligned

LEVEL = 0.05
"""significance level: a difference with a smaller p is significant"""
DIFFERENT = "the settings of the evaluations differ, so the models are not the only difference"
FEWEST_RESAMPLES = 100
FEW = 30
"""number of examples below which p is unreliable"""


class Change(NamedTuple):
    """An example on which two evaluations differ, with its scores by the first metric."""

    source: str
    references: list[str]
    first: str
    second: str
    first_score: float
    second_score: float


class Comparison:
    """Two evaluations of the same examples. comparison["per"] is a Difference: both scores, their margins, and p.

    metrics: those to test; by default all that both have.
    """

    def __init__(
        self, first: Evaluation, second: Evaluation, resamples: int = 1000, metrics: Sequence[str] | None = None
    ):
        self.first, self.second, self.resamples = first, second, resamples
        _check_same_examples(first, second)
        self.metrics = [name for name in metrics or first.results if name in first.results and name in second.results]
        if not self.metrics:
            raise UserError(
                f"{first.path} has {', '.join(first.results)} and {second.path} has {', '.join(second.results)}: "
                "evaluate both with the same metrics (--evaluate.metrics)"
            )
        for name in self.metrics:
            a, b = first[name].signature, second[name].signature
            if a != b:
                raise UserError(
                    f"{first[name].label} of {first.path} has the signature {a}, that of {second.path} {b}: "
                    "they cannot be compared"
                )
        self.differing = evaluations.differences([first, second])
        """settings that differ, so that the models are not the only difference"""
        self.code = stored_code.differing(first.page.get("code", {}), second.page.get("code", {}))
        """files of the runs' own code that differ"""
        tested = [name for name in self.metrics if all(has_example_scores(one, name) for one in (first, second))]
        tested = tested or self.metrics
        self.untested = [name for name in self.metrics if name not in tested]
        """metrics that are not ratios of sums over examples, such as macro F1"""
        self.metrics = tested
        self.differences = {name: self._difference(name) for name in self.metrics}

    def __getitem__(self, metric: str) -> Difference:
        if metric not in self.differences:
            raise UserError(f"both evaluations have {', '.join(self.metrics)}, not {metric}: choose one of those")
        return self.differences[metric]

    def _difference(self, name: str) -> Difference:
        a, b = self.first.outputs, self.second.outputs
        if _has_terms(name, a, b):
            return bootstrap([row["terms"][name] for row in a], [row["terms"][name] for row in b], self.resamples)
        if name not in METRICS:
            raise UserError(
                f"{name} has no terms for each example, so its difference cannot be tested: give MetricResult.terms in "
                "Task.metrics, see docs/extending.md"
            )
        one, other = ([row["hypothesis"] for row in rows] for rows in (a, b))
        return sacrebleu_bootstrap(name, one, other, _references(a), self.resamples)

    @cached_property
    def _scores(self) -> dict[str, list[np.ndarray]]:
        return {name: [example_scores(one, name) for one in (self.first, self.second)] for name in self.metrics}

    def gains(self) -> np.ndarray:
        """The improvement of the second evaluation over the first on each example, by each metric: [N, M]."""
        signs = [1 if self.first[name].higher_is_better else -1 for name in self.metrics]
        return np.stack([s * (b - a) for s, (a, b) in zip(signs, self._scores.values())], axis=1)

    def changes(self, count: int = 3) -> tuple[list[Change], list[Change]]:
        """The examples on which the second is better, and those on which it is worse; largest change first."""
        gains = np.nan_to_num(self.gains())
        order = np.lexsort(gains.T[::-1])  # by the first metric; the next ones break ties
        nothing = (0,) * len(self.metrics)
        better = [self._change(n) for n in order[::-1] if tuple(gains[n]) > nothing]
        worse = [self._change(n) for n in order if tuple(gains[n]) < nothing]
        unique = lambda changes: list({(change.source, change.second): change for change in changes}.values())
        return unique(better)[:count], unique(worse)[:count]

    def _change(self, n: int) -> Change:
        a, b = self.first.outputs[n], self.second.outputs[n]
        one, other = self._scores[self.metrics[0]]
        return Change(a["source"], a["references"], a["hypothesis"], b["hypothesis"], float(one[n]), float(other[n]))

    # ----------------------------------------------------------------------------------- text

    def warnings(self) -> list[str]:
        """Lines on what differs besides the models."""
        settings = [f"{DIFFERENT}: {self.differing}"] if self.differing else []
        return settings + ([f"the code of the two runs differs: {', '.join(self.code)}"] if self.code else [])

    def __str__(self) -> str:
        count = len(self.first.outputs)
        examples = f"{count:,} {self.first.page['noun']}{'' if count == 1 else 's'}"
        lines = [
            f"A  {self.first.path}",
            f"B  {self.second.path}",
            f"{self.first.split}, {examples}, {self.resamples:,} resamples",
            "",
            *aligned([("metric", "A", "B", "B - A", "p", ""), *self.rows()]),
            *(f"{r.label}: {r.signature}" for r in map(self.first.__getitem__, self.metrics) if r.signature),
        ]
        lines += self.warnings()
        if self.first.step != self.second.step:
            lines.append(f"A is the checkpoint of step {self.first.step}, B that of step {self.second.step}")
        for a, b in ((self.first[name], self.second[name]) for name in self.untested):
            lines.append(f"not tested, because it is not a sum over examples: {a} (A), {b} (B)")
        if count < FEW:
            lines.append(f"p is not reliable on {examples}: evaluate more")
        gains = self.gains()[:, 0]
        label = self.first[self.metrics[0]].label
        lines += ["", f"by {label}, B is better on {np.sum(gains > 0):,}, worse on {np.sum(gains < 0):,}, "
                  f"equal on {np.sum(gains == 0):,}"]  # fmt: skip
        for title, changes in zip(("better", "worse"), self.changes()):
            for change in changes:
                lines += ["", *self._describe(title, change)]
        return "\n".join(lines)

    __repr__ = __str__

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each metric: its name, A, B, B - A, p, and the verdict in words."""
        return [self._row(name) for name in self.metrics]

    def _row(self, name: str) -> tuple[str, ...]:
        found, result = self.differences[name], self.first[name]
        a, b = (
            f"{result.format.format(value)} ± {result.number(margin)}"
            for value, margin in ((found.first, found.first_margin), (found.second, found.second_margin))
        )
        better = "B" if (found.value > 0) == result.higher_is_better else "A"
        verdict = f"{better} is better" if found.p < LEVEL else "no significant difference"
        verdict = "not a number: cannot be tested" if found.p != found.p else verdict
        sign = "+" if found.value >= 0 else "-"
        return result.label, a, b, f"{sign}{result.number(abs(found.value))}", f"{found.p:.3f}", verdict

    def _describe(self, title: str, change: Change) -> list[str]:
        result = self.first[self.metrics[0]]
        rows = [
            (f"{title}:", change.source, ""),
            *(("  reference", text, "") for text in change.references),
            ("  A", change.first, str(result._replace(value=change.first_score))),
            ("  B", change.second, str(result._replace(value=change.second_score))),
        ]
        return [f"{name:11}  {_one_line(text)}{'  (' + score + ')' if score else ''}" for name, text, score in rows]


def example_scores(evaluation: Evaluation, name: str) -> np.ndarray:
    """The score of each example: [N]."""
    rows = evaluation.outputs
    if _has_terms(name, rows):
        terms = np.array([row["terms"][name] for row in rows], np.float64)
        return terms[:, 0] / np.maximum(terms[:, 1], 1)
    return line_scores(name, [row["hypothesis"] for row in rows], _references(rows))


def has_example_scores(evaluation: Evaluation, name: str) -> bool:
    """Whether a metric has a score for each example, which macro F1, for instance, does not."""
    return name in METRICS or _has_terms(name, evaluation.outputs)


def compare(first: Any, second: Any, split: str | None = None, resamples: int = 1000) -> Comparison:
    """Compares two evaluations: each an Evaluation, its folder RUN/evaluations/NAME, or a run, for its newest one.

    split: by default test, else dev, else train. Raises if the newest evaluations have different settings, such as the
    beam size: name both evaluations to compare them anyway.
    """
    if resamples < FEWEST_RESAMPLES:
        raise UserError(f"{resamples} resamples are too few: give at least {FEWEST_RESAMPLES}")
    named = [_open(item) for item in (first, second)]
    known = {item.split for item in named if isinstance(item, Evaluation)}
    if split and known - {split}:
        raise UserError(f"an evaluation of {known.pop()} was named, but the split is {split}: leave out the split")
    wanted = [split or next(iter(known))] if split or known else ["test", "dev", "train"]
    stored = [[item] if isinstance(item, Evaluation) else evaluations.read_all(item) for item in named]
    for name in wanted:
        found = [[one for one in each if one.split == name] for each in stored]
        if all(found):
            one, other = found[0][-1], found[1][-1]
            differ = evaluations.differences([one, other])
            if differ and not all(isinstance(item, Evaluation) for item in named):
                raise UserError(
                    f"{one.path} and {other.path} were made with different settings, {differ}: evaluate both with "
                    "the same settings, or name these two folders to compare them anyway"
                )
            return Comparison(one, other, resamples)
    raise UserError(_nothing_in_common(named, stored, split))


def _open(item: Any) -> Evaluation | Path:
    if isinstance(item, Evaluation):
        return item
    path = config.as_path(getattr(item, "folder", item))
    return evaluations.read(path) if (path / evaluations.RESULTS).is_file() else path


def _nothing_in_common(named: Sequence[Any], stored: Sequence[Sequence[Evaluation]], split: str | None) -> str:
    each = [
        f"{item.path if isinstance(item, Evaluation) else item} has evaluations of "
        f"{', '.join(sorted({one.split for one in found})) or 'nothing'}"
        for item, found in zip(named, stored)
    ]
    return f"{' and '.join(each)}: evaluate both on {split or 'the same split'} with s2sjax evaluate"


def _check_same_examples(first: Evaluation, second: Evaluation) -> None:
    where = f"{first.path} and {second.path}"
    if first.split != second.split:
        raise UserError(f"{where} evaluate {first.split} and {second.split}: name two evaluations of the same split")
    a, b = first.outputs, second.outputs
    if len(a) != len(b):
        raise UserError(f"{where} have {len(a):,} and {len(b):,} examples: evaluate both on the same data")
    for number, (one, other) in enumerate(zip(a, b), start=1):
        for field, verb in (("source", "is"), ("references", "are")):
            if one[field] != other[field]:
                raise UserError(
                    f"{where} have different examples: the {field} of example {number} {verb} "
                    f"{one[field]!r:.60} and {other[field]!r:.60}: evaluate both on the same data"
                )


def _has_terms(name: str, *outputs: Sequence[dict[str, Any]]) -> bool:
    return all(name in row["terms"] for rows in outputs for row in rows)


def _references(outputs: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [tuple(row["references"]) for row in outputs]


def _one_line(text: str) -> str:
    """A text on one line, cut to 100 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:99] + "…"
