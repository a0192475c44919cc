"""Does attention align words with their translations, and how does it compare with alignment models?

Claim     Attention learns alignments: its alignment error compared with the IBM models.
Papers    Bahdanau, Cho and Bengio 2014, section 5.2.1; Brown et al. 1993; Vogel et al. 1996; Och and Ney 2003
Command   python experiments/claims/alignment.py

RNNsearch decodes the given target, and each target word is linked with the source word that gets the most attention.
The aligners learn from the same sentences by plain EM, and link each target word with its most likely source word, or
with none.

small: an artificial pair of languages whose links are known (language.py), with two word orders of the target: fixed,
and free, where the object comes first in 30% of the sentences. Attention is computed before the target word is known,
so a free order is harder for it. full: the Hansards, English to French, with the gold links of Och and Ney 2000.
"""

from __future__ import annotations

import gzip
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import common
import language
import numpy as np
import panels

from s2sjax import align, config
from s2sjax.align import gold as gold_files
from s2sjax.config import Data, Evaluate, Search, Text, replace
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.runs.run import Run
from s2sjax.tasks import Translation

CLAIM = common.Claim(
    "alignment",
    "Alignment",
    "Attention learns alignments: its alignment error compared with the IBM models",
    "Bahdanau, Cho and Bengio 2014, section 5.2.1; Och and Ney 2003",
    "alignment error rate of attention minus that of IBM Model 1, in points (small: with a free word order)",
)
ALIGNERS = {"ibm1": "IBM Model 1", "ibm2": "IBM Model 2", "hmm": "HMM"}
Text2 = tuple[str, str]


class Size(NamedTuple):
    seeds: int
    steps: int
    stems: int = 0
    sentences: int = 0
    gold: int = 0
    """number of sentences whose links are compared"""
    orders: tuple[float, ...] = (0.0,)
    """fraction of sentences whose object comes first, for each artificial corpus; the last corpus is judged"""


SIZES = {
    "small": Size(3, steps=700, stems=100, sentences=4000, gold=300, orders=(0.0, 0.3)),
    "full": Size(3, steps=3000),
    "toy": Size(2, steps=4, stems=10, sentences=40, gold=8, orders=(0.0, 0.3)),
}


class Corpus(NamedTuple):
    train: list[Text2]
    pairs: list[Text2]
    """pairs with gold links, not in `train`; the aligners read them too, without their links"""
    gold: list[align.Gold]


@cache
def corpus(size: Size, free: float) -> Corpus:
    if not size.sentences:
        train, test = common.require_data("hansards/train.tsv.gz", "hansards/dev.tsv")
        with gzip.open(train, "rt", encoding="utf-8") as file:
            pairs = [tuple(line.rstrip("\n").split("\t")[:2]) for line in file]
        found = gold_files.read(test.read_text("utf-8").splitlines(), str(test))
        return Corpus(pairs, found.pairs, found.gold)  # type: ignore[arg-type]
    pairs = language.corpus(language.make(size.stems), size.sentences, seed=0, free=free)
    held, rest = pairs[: size.gold], pairs[size.gold :]
    texts = lambda part: [(pair.source, pair.target) for pair in part]
    return Corpus(texts(rest), texts(held), [align.Gold(pair.links, pair.links) for pair in held])


def experiment(size: Size, free: float) -> Translation:
    name = f"attention-{100 * free:.0f}"
    if not size.sentences:
        file = common.ROOT / "experiments" / "hansards.py"
        e = config.resolve_paths(load_experiment(str(file)), file.parent)
        train = replace(e.train, steps=size.steps, evaluate_every=size.steps, save_every=size.steps)
        return replace(e, name=name, train=train)
    pairs, held = corpus(size, free).train, size.gold // 2
    return Translation(
        name,
        data=Data(
            config.InMemory(train=pairs[held:], dev=pairs[:held]),
            Text("words", min_count=2),
            Text("words", min_count=2),
            buckets=((9, 9),),
            batch_tokens=64 * 18,
        ),
        model=language.MODEL,
        train=language.training(size.steps),
        search=Search(beam_size=2),
        evaluate=Evaluate(metrics=("wer",), dev_examples=50, samples=0, batch_size=50),
    )


def of_attention(size: Size, free: float, run: Run) -> dict[str, float]:
    found = align.score(run.align(corpus(size, free).pairs), corpus(size, free).gold)
    return {"aer": found.aer, "precision": found.precision, "recall": found.recall}


def of_aligner(size: Size, free: float, model: str) -> dict[str, float]:
    """Scores of an aligner that links each target word with one source word or none."""
    pairs = corpus(size, free).pairs
    fitted = align.fit([*pairs, *corpus(size, free).train], model, agree=False, report=print)
    links = [fitted.links_of(number, "forward") for number in range(len(pairs))]
    found = align.score(links, corpus(size, free).gold)
    return {"aer": found.aer, "precision": found.precision, "recall": found.recall}


def measure(study: common.Study, size: Size) -> dict[str, Any]:
    orders = [measure_order(study, size, free) for free in size.orders]
    return {"orders": orders, "sentences": len(corpus(size, size.orders[-1]).gold)}


def measure_order(study: common.Study, size: Size, free: float) -> dict[str, Any]:
    key = size._replace(orders=(free,))
    of_aligners = {
        model: [study.once(f"{model}-{100 * free:.0f}", key, partial(of_aligner, size, free, model))]
        for model in ALIGNERS
    }
    e = experiment(size, free)
    of_runs = study.sweep(e.name, e, {"seed": range(size.seeds)}, partial(of_attention, size, free))
    return {"free": free, **of_aligners, "attention": list(of_runs.values())}


TITLES = ALIGNERS | {"attention": "attention"}


def titles(data: dict[str, Any]) -> list[str]:
    """The titles of the word orders; empty if there is only one."""
    orders = data["orders"]
    name = lambda free: "free word order" if free else "fixed word order"
    return [name(order["free"]) for order in orders] if len(orders) > 1 else [""]


def judge(data: dict[str, Any]) -> common.Finding:
    names = ("aer", "precision", "recall")
    rows = [
        [
            f"{title}, {order_title}".rstrip(", "),
            *(cell([each[n] for each in order[method]]) for n in names),
        ]
        for order_title, order in zip(titles(data), data["orders"])
        for method, title in TITLES.items()
    ]
    found = [compared(order) for order in data["orders"]]
    last = data["orders"][-1]
    attention = np.array([seed["aer"] for seed in last["attention"]])
    better = found[-1]
    held = all(len(each) == len(ALIGNERS) for each in found)
    verdict = common.verdict(held, any(found) or attention.mean() < 50)
    told = [
        f"{f'with a {title}, its' if title else 'its'} alignment error rate is "
        f"{cell([seed['aer'] for seed in order['attention']])}%, {lower(each)}"
        for title, order, each in zip(titles(data), data["orders"], found)
    ]
    later = " The free word order was added after the fixed one had been measured." if len(found) > 1 else ""
    paragraph = (
        f"Attention is measured on {data['sentences']:,} sentences with gold links. "
        + " ".join(f"{text[0].upper()}{text[1:]}." for text in told)
        + " Attention always links a target word; the aligners can leave it unlinked."
    )
    if len(found) > 1 and len(better) < len(found[0]):
        paragraph += (
            " It is computed before the target word is known, so words that cannot be predicted are linked wrongly."
        )
    paragraph += later
    gap = attention - last["ibm1"][0]["aer"]
    return common.Finding(
        gap.tolist(), verdict, paragraph, ("alignment", "AER, %", "precision, %", "recall, %"), rows, 1
    )


def cell(values: list[float]) -> str:
    """The text of a cell. An aligner has a single value, because nothing in it is random."""
    return common.spread(values, 1) if len(values) > 1 else f"{values[0]:.1f}"


def compared(order: dict[str, Any]) -> list[str]:
    """The aligners that attention beats in every seed."""
    worst = max(seed["aer"] for seed in order["attention"])
    return [title for model, title in ALIGNERS.items() if worst < order[model][0]["aer"]]


def lower(better: list[str]) -> str:
    if not better:
        return "not lower than that of any aligner"
    return f"lower in every seed than that of {', '.join(better)}"


def draw(path: Path, data: dict[str, Any]) -> None:
    figure = panels.Panels()
    for title, order in zip(titles(data), data["orders"]):
        for name, label in (("aer", "alignment error rate"), ("precision", "precision"), ("recall", "recall")):
            if name != "aer" and len(data["orders"]) > 1:
                continue
            panel = figure.add(f"{label}, {title}".rstrip(", "), "", "percent" if name == "aer" else "", width=3.2)
            panels.bars(panel, {TITLES[method]: [each[name] for each in order[method]] for method in TITLES})
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, SIZES, measure, judge, draw)
