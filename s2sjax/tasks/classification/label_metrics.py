"""Metrics of labels: one predicted and one correct label for each example."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from s2sjax.evaluate.metrics.corpus_metrics import MetricResult, mean_result


def accuracy(found: Sequence[str], correct: Sequence[str], name: str = "accuracy") -> MetricResult:
    """The percentage of examples whose label is correct."""
    right = [one == other for one, other in zip(found, correct, strict=True)]
    terms = [(100.0 * each, 1.0) for each in right]
    return mean_result(name, name, terms)


def macro_f1(found: Sequence[str], correct: Sequence[str], name: str = "macro_f1") -> MetricResult:
    """The mean over the labels that occur of F1 = 2 TP / (2 TP + FP + FN), in percent; every label counts the same."""
    names = sorted({*found, *correct})
    table = confusion(found, correct, names)
    hits = np.diag(table)
    scores = 2 * hits / np.maximum(table.sum(0) + table.sum(1), 1)
    return MetricResult(name, 100.0 * float(scores.mean()), True, None, len(found), "macro F1")


def confusion(found: Sequence[str], correct: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """The confusion matrix [L, L]: the number of examples of label i (row) that were given label j (column)."""
    place = {name: index for index, name in enumerate(names)}
    table = np.zeros((len(names), len(names)), np.int64)
    for one, other in zip(found, correct, strict=True):
        table[place[other], place[one]] += 1
    return table


METRICS = {"accuracy": accuracy, "macro_f1": macro_f1}
