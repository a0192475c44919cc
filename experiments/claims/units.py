"""How do characters, words and subwords compare in cost and in translation quality?

Claim     Characters have the smallest vocabulary and the longest sequences; words are the opposite, and some are
          unknown; subwords are in between and translate best.
Papers    Sennrich, Haddow and Birch 2016; Kudo and Richardson 2018; Lee, Cho and Hofmann 2017
Command   python experiments/claims/units.py

The model, the sentences and the number of updates are the same; only the tokenization differs. small: an
artificial pair of languages (language.py); full: Multi30k English to German as in models.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import common
import language
import models
import numpy as np
import panels

from s2sjax import config
from s2sjax.config import Data, Evaluate, Search, Text, replace
from s2sjax.core.special_tokens import UNK
from s2sjax.evaluate import metrics
from s2sjax.runs.run import Run
from s2sjax.tasks import Translation

CLAIM = common.Claim(
    "units",
    "Units of text",
    "Characters have the smallest vocabulary and the longest sequences; words are the opposite, and some are unknown; "
    "subwords are in between and translate best",
    "Sennrich, Haddow and Birch 2016; Kudo and Richardson 2018; Lee, Cho and Hofmann 2017",
    "chrF of subwords minus chrF of words",
)
UNITS = ("characters", "subwords", "words")
Buckets = tuple[tuple[int, int], ...]


class Size(NamedTuple):
    seeds: int
    buckets: dict[str, Buckets]
    """buckets of each unit"""
    tokens: dict[str, int]
    """tokens of a batch, for about the same number of sentences with each unit"""
    subwords: int
    stems: int = 0
    sentences: int = 0
    steps: int = 0


SIZES = {
    "small": Size(
        3,
        {"characters": ((56, 50),), "subwords": ((24, 24),), "words": ((9, 9),)},
        {"characters": 32 * 106, "subwords": 32 * 48, "words": 32 * 18},
        subwords=300, stems=400, sentences=4000, steps=500,
    ),
    "full": Size(
        3,
        {"characters": ((80, 96), (120, 144), (240, 280)), "subwords": (), "words": ((14, 14), (20, 20), (42, 42))},
        {"characters": 40_000, "subwords": 8192, "words": 7000},
        subwords=8000,
    ),
    "toy": Size(
        2,
        {"characters": ((60, 60),), "subwords": ((30, 30),), "words": ((10, 10),)},
        {"characters": 960, "subwords": 480, "words": 160},
        subwords=40, stems=10, sentences=40, steps=4,
    ),
}  # fmt: skip


def experiment(size: Size, name: str, unit: str) -> Translation:
    if name == "full":
        e = replace(models.full(), model=models.MODELS["full"]["transformer"])
        e = replace(e, evaluate=replace(e.evaluate, metrics=("chrf", "bleu_tokenized")))
        text = Text(unit, size=size.subwords, algorithm="bpe", min_count=2 if unit == "words" else 1)
        buckets = size.buckets[unit] or e.data.buckets
        data = replace(e.data, source=text, target=text, buckets=buckets, batch_tokens=size.tokens[unit])
        return replace(e, name=unit, data=data)
    pairs = [pair[:2] for pair in language.corpus(language.make(size.stems), size.sentences, seed=0)]
    held = size.sentences // 10
    corpus = config.InMemory(train=pairs[2 * held :], dev=pairs[:held], test=pairs[held : 2 * held])
    text = Text(unit, size=size.subwords, algorithm="bpe")
    return Translation(
        unit,
        data=Data(corpus, text, text, buckets=size.buckets[unit], batch_tokens=size.tokens[unit]),
        model=language.MODEL,
        train=language.training(size.steps),
        search=Search(beam_size=2),
        evaluate=Evaluate(metrics=("chrf", "wer"), dev_examples=50, samples=0, batch_size=100),
    )


def score(run: Run) -> dict[str, Any]:
    """The vocabulary of a model, sequence lengths, unknown units, and chrF."""
    evaluation, task = run.evaluations()[-1], run.task
    sides = ("source",) if run.experiment.data.shared else ("source", "target")
    seen = {word for example in task.examples("train") for word in example.source.split()}
    outputs = evaluation.outputs
    vocabulary = task.assets["source"]
    ids = [vocabulary.encode(each["source"]) for each in outputs]
    unseen = [bool({*each["source"].split()} - seen) for each in outputs]

    def chrf(which: bool) -> float | None:
        chosen = [each for each, new in zip(outputs, unseen) if new == which]
        references = [tuple(each["references"]) for each in chosen]
        if not chosen:
            return None
        return metrics.score(["chrf"], [each["hypothesis"] for each in chosen], references)["chrf"].value

    return {
        "vocabulary": [task.assets[side].size for side in sides],
        "length": float(np.mean([len(each) for each in ids])),
        "unknown": 100 * sum(each.count(UNK) for each in ids) / sum(map(len, ids)),
        "chrf": evaluation["chrf"].value,
        "chrf_seen": chrf(False),
        "chrf_unseen": chrf(True),
        "unseen_sentences": 100 * float(np.mean(unseen)),
    }


def measure(study: common.Study, size: Size) -> dict[str, Any]:
    grid = {"seed": range(size.seeds)}
    found = {unit: study.sweep(unit, experiment(size, study.size, unit), grid, score) for unit in UNITS}
    return {"units": {unit: list(seeds.values()) for unit, seeds in found.items()}}


def judge(data: dict[str, Any]) -> common.Finding:
    units = data["units"]
    column = lambda unit, name: [seed[name] for seed in units[unit] if seed[name] is not None]
    rows = []
    for unit in UNITS:
        first = units[unit][0]
        scores = [
            common.spread(column(unit, name), 1) for name in ("chrf", "chrf_seen", "chrf_unseen") if column(unit, name)
        ]
        sizes = [
            " + ".join(f"{size:,}" for size in first["vocabulary"]),
            f"{first['length']:.1f}",
            f"{first['unknown']:.2f}%",
        ]
        rows.append([unit, *sizes, *scores, *[""] * (3 - len(scores))])
    gain = np.subtract(column("subwords", "chrf"), column("words", "chrf"))
    over_characters = np.subtract(column("subwords", "chrf"), column("characters", "chrf"))
    size = {unit: sum(units[unit][0]["vocabulary"]) for unit in UNITS}
    length = {unit: units[unit][0]["length"] for unit in UNITS}
    ordered = (
        size["characters"] < size["subwords"] <= size["words"]
        and length["characters"] > length["subwords"] >= length["words"]
    )
    best = max(UNITS, key=lambda unit: np.mean(column(unit, "chrf")))
    clear = common.is_clear(gain)
    verdict = common.verdict(ordered and clear and common.is_clear(over_characters), ordered or clear)
    paragraph = (
        f"A source has {length['characters']:.1f} characters, {length['subwords']:.1f} subwords or "
        f"{length['words']:.1f} words on average. In the test split, {units['words'][0]['unknown']:.2f}% of the words, "
        f"{units['subwords'][0]['unknown']:.2f}% of the subwords and {units['characters'][0]['unknown']:.2f}% of the "
        f"characters are unknown. With equal numbers of updates and sentences, {best} have the best chrF. "
        f"{units['words'][0]['unseen_sentences']:.0f}% of the sentences have a word that is not in the training data; "
        "on these, chrF is "
        + ", ".join(
            f"{np.mean(column(unit, 'chrf_unseen')):.1f} with {unit}" for unit in UNITS if column(unit, "chrf_unseen")
        )
        + "."
        + " Source and target share one vocabulary." * (len(units["words"][0]["vocabulary"]) == 1)
    )
    columns = ("unit", "vocabulary", "source length", "unknown", "chrF", "without new words", "with new words")
    return common.Finding(gain.tolist(), verdict, paragraph, columns, rows, digits=1)


def draw(path: Path, data: dict[str, Any]) -> None:
    figure, units = panels.Panels(), data["units"]
    for title, name, y in (
        ("vocabulary", "vocabulary", "units, both sides"), ("length", "length", "units of a source"),
        ("quality", "chrf", "chrF"), ("sentences with new words", "chrf_unseen", "chrF"),
    ):  # fmt: skip
        panel = figure.add(title, "", y, width=2.3)
        value = lambda seed, name=name: sum(seed[name]) if name == "vocabulary" else seed[name] or 0.0
        panels.bars(panel, {unit: [value(seed) for seed in units[unit]] for unit in UNITS})
        if name == "vocabulary":
            panel.set_yscale("log")
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, SIZES, measure, judge, draw)
