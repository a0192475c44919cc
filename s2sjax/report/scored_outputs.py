"""The outputs of evaluations: their scores, their edit alignments, and quality by source length.

Letters: N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from s2sjax.data.text.vocabulary import normalized
from s2sjax.evaluate import metrics
from s2sjax.evaluate.metrics import edit_distance
from s2sjax.runs import comparison
from s2sjax.runs.evaluations import Evaluation

LONGEST = 40_000
"""maximal number of cells of an edit distance: longer pairs are not aligned"""
BUCKETS = 6
MARKS = {"match": "m", "substitute": "s", "insert": "i", "delete": "d"}


Unit = Literal["words", "characters"]
SPLIT: dict[Unit, Callable[[str], list[str]]] = {"words": str.split, "characters": list}


def unit_of(texts: Sequence[str]) -> Unit:
    """The unit into which texts are split: words, or characters if no text contains a space."""
    return "words" if any(len(text.split()) > 1 for text in texts) else "characters"


def clean(text: str) -> str:
    """Normalizes a text as error rates do: an accent may be written as one code point or as two."""
    return normalized(str(text), "nfc")


def metric_of(evaluation: Evaluation) -> str | None:
    """The first metric that has a score for each example, or None."""
    names = (name for name in evaluation.results if comparison.has_example_scores(evaluation, name))
    return next(names, None)


def scores(evaluation: Evaluation, metric: str | None) -> list[float | None]:
    """The score of each example by the metric; None if it is not finite."""
    if metric is None:
        return [None] * len(evaluation.outputs)
    found = comparison.example_scores(evaluation, metric)
    return [float(f"{score:.4g}") if np.isfinite(score) else None for score in found]


def alignments(outputs: Sequence[dict[str, Any]]) -> list[tuple[int, str] | None] | None:
    """Aligns each output with its closest reference: (index of the reference, edits that turn it into the output).

    Edits are letters: m match, s substitute, i insert, d delete. None for an example that has no reference or is too
    long; None instead of a list if every text is a label or a number.
    """
    references = [clean(text) for row in outputs for text in row["references"]]
    texts = [clean(row["hypothesis"]) for row in outputs] + references
    unit = unit_of(references)
    if not references or not (unit == "words" or _are_strings(texts)):
        return None
    return [_align(SPLIT[unit], row) for row in outputs]


def _are_strings(texts: Sequence[str]) -> bool:
    """Whether texts without spaces are strings of characters, rather than numbers or a few labels."""
    return len(set(texts)) > len(texts) // 10 and not all(_is_number(text) for text in texts)


def _is_number(text: str) -> bool:
    try:
        return float(text) is not None
    except ValueError:
        return False


def _align(split: Callable[[str], list[str]], row: dict[str, Any]) -> tuple[int, str] | None:
    if not row["references"]:
        return None
    written, *answers = (split(clean(text)) for text in (row["hypothesis"], *row["references"]))
    which = min(range(len(answers)), key=lambda number: edit_distance.distance(answers[number], written))
    if len(answers[which]) * len(written) > LONGEST:
        return None
    return which, "".join(MARKS[step.operation] for step in edit_distance.alignment(answers[which], written))


# ------------------------------------------------------------------------------ by source length


class Bucket(NamedTuple):
    """The examples whose source length is from `low` to `high`."""

    low: int
    high: int
    examples: int
    values: list[float | None]
    """score of each evaluation"""


def by_length(evaluations: Sequence[Evaluation], metric: str) -> tuple[Unit, list[Bucket]]:
    """Scores evaluations of the same examples by source length. Returns (unit of the lengths, buckets).

    Each bucket is scored as a separate corpus.
    """
    sources = [clean(row["source"]) for row in evaluations[0].outputs]
    unit = unit_of(sources)
    lengths = [len(SPLIT[unit](source)) for source in sources]
    bounds = _bounds(lengths)
    lows, counts = [min(lengths), *(bound + 1 for bound in bounds)], np.bincount(np.searchsorted(bounds, lengths))
    each = [_scored(one, metric, lengths, bounds) for one in evaluations]
    return unit, [
        Bucket(low, high, int(count), [scored.get(high) for scored in each])
        for low, high, count in zip(lows, bounds, counts)
    ]


def _bounds(lengths: Sequence[int]) -> list[int]:
    """Upper bounds of at most BUCKETS buckets with about the same number of examples."""
    return sorted({int(bound) for bound in np.quantile(lengths, np.arange(1, BUCKETS + 1) / BUCKETS, method="higher")})


def _scored(evaluation: Evaluation, metric: str, lengths: Sequence[int], bounds: Sequence[int]) -> dict[int, float]:
    """The score of each bucket, by its upper bound."""
    rows = evaluation.outputs
    if all(metric in row["terms"] for row in rows):
        terms = np.array([row["terms"][metric] for row in rows], np.float64)  # [N, 2]
        places = np.searchsorted(bounds, lengths)
        sums = [terms[places == place].sum(0) for place in range(len(bounds))]
        values = [above / max(below, 1) for above, below in sums]
        return {bound: round(float(value), 4) for bound, value in zip(bounds, values) if np.isfinite(value)}
    texts, references = [row["hypothesis"] for row in rows], [tuple(row["references"]) for row in rows]
    parts = metrics.score_by_length(metric, texts, references, lengths, bounds[:-1])
    return {high: round(part.value, 4) for _, high, part in parts}
