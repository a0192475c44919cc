"""Is neural translation better than statistical translation, and from how many sentence pairs on?

Claim     Neural translation outperforms statistical translation.
Papers    Koehn, Och and Marcu 2003; Bahdanau, Cho and Bengio 2014; Vaswani et al. 2017
Command   python experiments/claims/statistical.py

Compares the dictionary of the 1950s, a stack decoder for words and one for phrases (s2sjax.statistical; the weights are
tuned on dev) with RNNsearch, the Transformer and, at full size, an LSTM without attention, from the first N pairs.

small: an artificial pair of languages (language.py), whose target has another order of words; all read words. full:
Multi30k as in models.py, whose neural models are those with all pairs; they read subwords, fewer with fewer pairs, and
the statistical systems words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import common
import language
import models
import numpy as np
import panels

from s2sjax import align, config
from s2sjax.config import Data, Evaluate, RNNsearch, Search, Text, Transformer, replace
from s2sjax.evaluate import metrics
from s2sjax.runs.run import Run
from s2sjax.statistical import Dictionary, PhraseTranslator
from s2sjax.tasks import Translation

CLAIM = common.Claim(
    "statistical",
    "Statistical translation",
    "Neural translation outperforms statistical translation",
    "Koehn, Och and Marcu 2003; Bahdanau, Cho and Bengio 2014; Vaswani et al. 2017",
    "BLEU of the Transformer minus that of phrase-based translation, with all pairs",
)
STATISTICAL = {
    "dictionary": "dictionary, word for word",
    "words": "statistical, words",
    "phrases": "statistical, phrases",
}
NEURAL = {"sutskever": "LSTM, no attention", "rnnsearch": "RNNsearch", "transformer": "Transformer"}
TUNED_ON = 500
"""number of dev sentences that the weights are tuned on"""
SUBWORDS = {1000: 2000, 3000: 4000, 10000: 6000}
"""sizes of the vocabulary of Multi30k for fewer pairs than all"""


class Size(NamedTuple):
    name: str
    seeds: int
    pairs: tuple[int, ...]
    """numbers of training pairs"""
    steps: int = 0
    stems: int = 0
    held_out: tuple[int, int] = (0, 0)
    """sentences of dev and test"""
    models: Mapping[str, Any] = MappingProxyType(models.MODELS["full"])
    """models, of which those of NEURAL are trained"""


SIZES = {
    "small": Size(
        "small", 3, (500, 4000), steps=1500, stems=100, held_out=(200, 400),
        models={
            "rnnsearch": language.MODEL,
            "transformer": Transformer(48, 4, 192, 2, 2, norm="pre", dropout=0.1),
        },
    ),
    "full": Size("full", models.SEEDS["full"], (1000, 3000, 10000, 28000)),
    "toy": Size(
        "toy", 2, (40,), steps=4, stems=10, held_out=(8, 8),
        models={
            "rnnsearch": RNNsearch(width=8, embedding_size=4, dropout=0.0),
            "transformer": Transformer(8, 2, 8, 1, 1, norm="pre", dropout=0.0),
        },
    ),
}  # fmt: skip


class Corpus(NamedTuple):
    train: Sequence[tuple[str, ...]]
    dev: Sequence[tuple[str, ...]]
    test: Sequence[tuple[str, ...]]


@cache
def corpus(stems: int, most: int, held_out: tuple[int, int]) -> Corpus:
    """All pairs."""
    if not stems:
        found = models.multi30k()
        return Corpus(found.train.rows, found.dev.rows, found.test.rows)
    drawn = language.corpus(language.make(stems), most + sum(held_out), seed=0)
    pairs = [(pair.source, pair.target) for pair in drawn]
    dev, test = held_out
    return Corpus(pairs[dev + test :], pairs[:dev], pairs[dev : dev + test])


def data_of(size: Size, pairs: int) -> Corpus:
    """The first training pairs, all of dev and test."""
    every = corpus(size.stems, size.pairs[-1], size.held_out)
    return every._replace(train=every.train[:pairs])


# --------------------------------------------------------------------------------- the systems


def of_statistics(size: Size, pairs: int, system: str) -> float:
    """BLEU of a statistical system."""
    data = data_of(size, pairs)
    translator: Any
    if system == "dictionary":
        translator = Dictionary.learn(data.train)
    else:
        aligned = align.fit(data.train, report=print)
        longest = 1 if system == "words" else 7
        translator = PhraseTranslator.train(data.train, longest, aligned=aligned, report=print)
        translator = translator.tune(*zip(*data.dev[:TUNED_ON]), report=print)
    outputs = translator.translate([source for source, _ in data.test])
    found = metrics.score(["bleu_tokenized"], outputs, [(target,) for _, target in data.test])
    return found["bleu_tokenized"].value


def experiment(size: Size, pairs: int, model: str) -> Translation:
    name, data = f"{model}-{pairs}", config.InMemory(*data_of(size, pairs))
    if not size.stems:
        e = models.full()
        subwords = replace(e.data.source, size=SUBWORDS[pairs])
        text = replace(e.data, corpus=data, source=subwords, target=subwords)
        return replace(e, name=name, data=text, model=size.models[model])
    return Translation(
        name,
        data=Data(data, Text("words"), Text("words"), buckets=((9, 9),), batch_tokens=64 * 18),
        model=size.models[model],
        train=language.training(size.steps),
        search=Search(beam_size=4, length_penalty="mean"),
        evaluate=Evaluate(metrics=("bleu_tokenized",), dev_examples=size.held_out[0], samples=0, batch_size=200),
    )


def of_run(run: Run) -> float:
    return run.evaluations()[-1]["bleu_tokenized"].value


def of_networks(study: common.Study, size: Size, pairs: int, model: str) -> list[float]:
    """BLEU of each seed of a neural system."""
    if not size.stems and pairs == size.pairs[-1]:
        return [run.score for run in models.all_seeds(study, model)]
    e = experiment(size, pairs, model)
    return list(study.sweep(e.name, e, {"seed": range(size.seeds)}, of_run).values())


def measure(study: common.Study, size: Size) -> dict[str, Any]:
    sentences = len(data_of(size, 0).test)
    found: dict[str, list[list[float]]] = {}
    for system in STATISTICAL:
        found[system] = [
            [study.once(f"{system}-{pairs}", [size, pairs], partial(of_statistics, size, pairs, system))]
            for pairs in size.pairs
        ]
    for model in (name for name in NEURAL if name in size.models):
        found[model] = [of_networks(study, size, pairs, model) for pairs in size.pairs]
    return {"pairs": list(size.pairs), "bleu": found, "sentences": sentences}  # bleu[system][pairs][seed]


# ------------------------------------------------------------------------------------ the verdict


def cell(values: list[float]) -> str:
    """The text of a cell. A statistical system has a single value, because nothing in it is random."""
    return common.spread(values, 1) if len(values) > 1 else f"{values[0]:.1f}"


def judge(data: dict[str, Any]) -> common.Finding:
    bleu, pairs = data["bleu"], data["pairs"]
    neural = {name: title for name, title in NEURAL.items() if name in bleu}
    rows = [[title, *(cell(values) for values in bleu[name])] for name, title in (STATISTICAL | neural).items()]
    gaps = {name: [np.array(a) - b[0] for a, b in zip(bleu[name], bleu["phrases"])] for name in neural}
    better = {name: [common.is_clear(gap) for gap in of_each] for name, of_each in gaps.items()}
    attention = ("rnnsearch", "transformer")
    verdict = common.verdict(all(better[n][-1] for n in attention), any(better[n][-1] for n in attention))
    told = "; ".join(
        f"{title} {'+' if gaps[name][-1].mean() > 0 else ''}{common.spread(gaps[name][-1].tolist(), 1)}"
        for name, title in neural.items()
    )
    ahead = [
        f"{title} {f'from {first:,} pairs on' if first else 'at no number of pairs'}"
        for name, title in neural.items()
        for first in [next((n for k, n in enumerate(pairs) if all(better[name][k:])), None)]
    ]
    first, last = bleu["phrases"][0][0], bleu["phrases"][-1][0]
    paragraph = (
        f"With all {pairs[-1]:,} pairs, the neural systems have these points of BLEU more than phrases: {told}. "
        f"They are better by more than two standard errors: {', '.join(ahead)}. With {pairs[0]:,} pairs, phrases "
        f"have {first:.1f} BLEU, {last:.1f} with all; the dictionary has {bleu['dictionary'][-1][0]:.1f}, and a stack "
        f"decoder for words {bleu['words'][-1][0]:.1f}. Scores are on {data['sentences']:,} sentences."
    )
    columns = ("BLEU, number of pairs:", *(f"{n:,}" for n in pairs))
    return common.Finding(gaps["transformer"][-1].tolist(), verdict, paragraph, columns, rows, 1)


def draw(path: Path, data: dict[str, Any]) -> None:
    figure = panels.Panels()
    panel = figure.add("quality by number of sentence pairs", "sentence pairs", "BLEU", width=5)
    titles = {name: title for name, title in (STATISTICAL | NEURAL).items() if name in data["bleu"]}
    curves = {title: list(zip(*data["bleu"][name])) for name, title in titles.items()}
    panels.lines(panel, data["pairs"], curves)
    for line in panel.lines[: len(STATISTICAL)]:
        line.set(linestyle="--", marker="s")
    panel.set_xscale("log")
    panel.set_xticks(data["pairs"], [f"{n:,}" for n in data["pairs"]])
    panel.set_xticks([], minor=True)
    panel.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1, 1))
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, SIZES, measure, judge, draw)
