"""Scores of tagged sentences: accuracy, entities (Tjong Kim Sang and De Meulder 2003), intents.

    entities(["B-song", "I-song", "O", "I-artist"])    -> {("song", 0, 2), ("artist", 3, 4)}

Every score is a ratio of sums over sentences. Padding never counts, except in `padded`, which shows the accuracy that
counting it would give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from s2sjax.evaluate.metrics.corpus_metrics import MetricResult, Terms, mean_result

Tags = Sequence[str]


class Pair(NamedTuple):
    """The predicted and the correct tags of a sentence, with the intents ("" where there are none)."""

    predicted: Tags
    correct: Tags
    predicted_intent: str = ""
    correct_intent: str = ""


def entities(tags: Tags) -> set[tuple[str, int, int]]:
    """Returns (type, begin, end) of each entity, by the rules of conlleval.

    B- begins an entity, and so does I- after another type or outside of an entity. All other tags are outside.
    """
    found, begin, inside = set(), 0, ""
    for place, tag in enumerate([*tags, "O"]):
        mark, dash, kind = tag.partition("-")
        kind = kind if dash and mark in ("B", "I") else ""
        if inside and (mark == "B" or kind != inside):
            found.add((inside, begin, place))
            inside = ""
        if kind and not inside:
            begin, inside = place, kind
    return found


def score(metrics: Sequence[str], pairs: Sequence[Pair]) -> dict[str, MetricResult]:
    """Computes each metric in percent, with the terms of each sentence."""
    chosen = {name: METRICS[name] for name in metrics}
    return {name: mean_result(name, label, terms(pairs)) for name, (label, terms) in chosen.items()}


def right_tags(pair: Pair) -> int:
    """The number of correct tags of a sentence."""
    return sum(a == b for a, b in zip(pair.predicted, pair.correct, strict=True))


def _accuracy(pairs: Sequence[Pair]) -> Terms:
    return [(100.0 * right_tags(pair), len(pair.correct)) for pair in pairs]


def _padded(pairs: Sequence[Pair]) -> Terms:
    """Accuracy with every sentence padded to the longest one, and all padding counted as correct."""
    most = max(len(pair.correct) for pair in pairs)
    return [(100.0 * (right_tags(pair) + most - len(pair.correct)), most) for pair in pairs]


def _overlap(share: Callable[[int, int, int], tuple[int, int]]) -> Callable[[Sequence[Pair]], Terms]:
    """Makes a metric from share(right, predicted, correct numbers of entities) -> (numerator, denominator)."""

    def terms(pairs: Sequence[Pair]) -> Terms:
        found = [(entities(pair.predicted), entities(pair.correct)) for pair in pairs]
        shares = [share(len(ours & true), len(ours), len(true)) for ours, true in found]
        return [(100.0 * right, total) for right, total in shares]

    return terms


def _intent(pairs: Sequence[Pair]) -> Terms:
    return [(100.0 * (pair.predicted_intent == pair.correct_intent), 1) for pair in pairs]


def _sentence(pairs: Sequence[Pair]) -> Terms:
    """The share of sentences with a correct intent and only correct tags."""
    same = [right_tags(p) == len(p.correct) and p.predicted_intent == p.correct_intent for p in pairs]
    return [(100.0 * each, 1) for each in same]


METRICS: dict[str, tuple[str, Callable[[Sequence[Pair]], Terms]]] = {
    "accuracy": ("accuracy", _accuracy),
    "padded": ("accuracy if padding counted (flattering)", _padded),
    "f1": ("entity F1", _overlap(lambda right, predicted, correct: (2 * right, predicted + correct))),
    "precision": ("precision", _overlap(lambda right, predicted, correct: (right, predicted))),
    "recall": ("recall", _overlap(lambda right, predicted, correct: (right, correct))),
    "intent": ("intent accuracy", _intent),
    "sentence": ("whole sentences", _sentence),
}
"""printed name of each metric, and its terms"""


class TagScore(NamedTuple):
    """Scores of one tag."""

    tag: str
    words: int
    """number of words whose correct tag is this one"""
    right: int
    """number of them that are tagged correctly"""
    mistaken_for: str
    """most frequent wrong prediction, or "" if there is none"""


def by_tag(pairs: Sequence[Pair]) -> list[TagScore]:
    """The scores of each correct tag, the most frequent first."""
    counts = Counter(each for pair in pairs for each in zip(pair.correct, pair.predicted, strict=True))
    totals = Counter(tag for pair in pairs for tag in pair.correct)
    found = []
    for tag, count in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        wrong = sorted((-n, other) for (true, other), n in counts.items() if true == tag and other != tag)
        found.append(TagScore(tag, count, counts[tag, tag], wrong[0][1] if wrong else ""))
    return found
