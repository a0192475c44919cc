"""Does pre-training on plain text help, and does it still help when there are many labels?

Claim     Pre-training helps when there are few labels.
Paper     Devlin et al. 2019; Howard and Ruder 2018, figure 3
Command   python experiments/claims/pretraining.py

A small BERT learns from text without labels. Classifiers start from it, or from scratch, with few to many labels.
small: the spelling of 20,000 words (the extra g2p); the label is the number of syllables of the pronunciation.
full: package descriptions (experiments/bert_ddtp.py, fewer updates), then SST-2 (bert_sst2.py). The score is that on
the dev set, which is not used to choose anything.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import common
import numpy as np
import panels

from s2sjax import config
from s2sjax.config import Text, Train, Transformer, replace
from s2sjax.data.corpora import readers
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.tasks import Classification, Pretraining
from s2sjax.tasks.classification import LabelData, LabelModel
from s2sjax.tasks.pretraining import BertEvaluate, BertModel, Paragraphs

CLAIM = common.Claim(
    "pretraining",
    "Pre-training",
    "Pre-training helps when there are few labels",
    "Devlin et al. 2019; Howard and Ruder 2018, figure 3",
    "gain in accuracy by pre-training, with the fewest labels, in points",
)
STARTS = ("pre-trained", "from scratch")
VOWELS = {*["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"]}
MOST = 4
"""maximum number of syllables: longer words are in the same class; words without a vowel have one"""


class Size(NamedTuple):
    seeds: int
    steps: int
    """number of pre-training steps"""
    fine_tuning: int
    labels: tuple[float, ...]
    """numbers of labelled words, or percentages of SST-2"""
    lines: int = 0
    width: int = 0


SIZES = {
    "small": Size(3, 1000, 150, (100, 1000, 10_000), lines=20_000, width=48),
    "full": Size(3, 10_000, 600, (1.0, 10.0, 100.0)),
    "toy": Size(2, 4, 2, (60, 80), lines=100, width=8),
}


@cache
def words(count: int, split: str) -> list[tuple[str, str]]:
    """The first words of a split of the dictionary: (letters separated by spaces, number of syllables)."""
    examples = [each for each in readers.load(config.Cmudict(), split) if len(each.source) > 2][:count]  # type: ignore[arg-type]
    syllables = lambda phones: min(max(sum(phone in VOWELS for phone in phones.split()), 1), MOST)
    return [(" ".join(each.source), str(syllables(each.targets[0]))) for each in examples]


def base(size: Size, folder: Path) -> Pretraining:
    """The pre-training experiment, without labels."""
    if not size.lines:
        file = common.ROOT / "experiments" / "bert_ddtp.py"
        e = config.resolve_paths(load_experiment(str(file)), file.parent)
        train = replace(
            e.train, steps=size.steps, warmup_steps=size.steps // 20, evaluate_every=size.steps, save_every=size.steps
        )
        return replace(e, name="base", train=train)
    folder.mkdir(parents=True, exist_ok=True)
    files = {"train": folder / "spelling.train.txt", "dev": folder / "spelling.dev.txt"}
    for split, file in files.items():
        lines = [letters for letters, _ in words(size.lines if split == "train" else 200, split)]
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return Pretraining(
        "base",
        data=Paragraphs(str(files["train"]), str(files["dev"]), text=Text("words"), buckets=((20,),),
                        batch_tokens=1280),
        model=BertModel(Transformer(size.width, 4, 4 * size.width, 2, 2, norm="pre", dropout=0.0), next_weight=0.0),
        train=Train(steps=size.steps, learning_rate=3e-3, warmup_steps=size.steps // 10,
              log_every=max(1, size.steps // 5), evaluate_every=size.steps, save_every=size.steps),
        evaluate=BertEvaluate(dev_examples=200, samples=0),
    )  # fmt: skip


def classifier(size: Size, labels: float, encoder: Any) -> Classification:
    if not size.lines:
        file = common.ROOT / "experiments" / "bert_sst2.py"
        e = config.resolve_paths(load_experiment(str(file)), file.parent)
        data = replace(e.data, corpus=replace(e.data.corpus, train_percent=labels))
        return replace(e, data=data)
    steps = size.fine_tuning
    test = words(max(20, size.lines // 10), "test")
    return Classification(
        "syllables",
        data=LabelData(
            config.InMemory(train=words(int(labels), "train"), dev=test),
            Text("words"),
            buckets=((20,),),
            batch_tokens=640,
        ),
        model=LabelModel(encoder, "mean", dropout=0.1, initial=1.0),
        train=Train(
            steps=steps,
            learning_rate=1e-3,
            warmup_steps=steps // 10,
            log_every=steps,
            evaluate_every=steps,
            save_every=steps,
        ),
    )


def measure(study: common.Study, size: Size) -> dict[str, Any]:
    e = base(size, study.folder)
    scores = lambda run: "  ".join(map(str, run.evaluations()[-1].results.values()))
    found: dict[str, Any] = {"labels": size.labels, "unit": "%" if not size.lines else ""}
    found["hidden words"] = study.sweep("base", e, {"seed": [0]}, scores)["seed=0"]
    several = {f"{labels:g}": classifier(size, labels, e.model.encoder) for labels in size.labels}
    for start in STARTS:
        init = study.folder / "base" / "seed=0" if start == STARTS[0] else None
        values = study.sweep(
            start.replace(" ", "-"), several, {"seed": range(size.seeds)},
            lambda run: run.evaluations()[-1]["accuracy"].value, init=init, init_assets=init is not None,
        )  # fmt: skip
        found[start] = [
            [values[f"experiment={labels},seed={seed}"] for labels in several] for seed in range(size.seeds)
        ]
    return found


def judge(data: dict[str, Any]) -> common.Finding:
    gains = np.subtract(data[STARTS[0]], data[STARTS[1]])  # [seeds, labels]
    rows = [
        [f"{labels:,g}{data['unit']}", *(common.spread([seed[i] for seed in data[start]], 1) for start in STARTS)]
        for i, labels in enumerate(data["labels"])
    ]
    mean = gains.mean(0)
    helps, shrinks = common.is_clear(gains[:, 0]), mean[-1] < mean[0]
    verdict = common.verdict(helps and shrinks, helps)
    of_all = " of the" if data["unit"] else ""
    told = ", ".join(f"{gain:+.1f} with {labels:,g}{data['unit']}" for gain, labels in zip(mean, data["labels"]))
    paragraph = (
        f"Pre-training changes accuracy by {told}{of_all} labels (points, means over seeds). "
        + f"With the fewest labels, the change is {'' if helps else 'not '}larger than the spread over seeds"
        + ("." if not helps else f", and with the most labels the gain is {'' if shrinks else 'not '}smaller.")
    )  # fmt: skip
    columns = ("labels", *(f"{start}, accuracy, %" for start in STARTS))
    return common.Finding(gains[:, 0].tolist(), verdict, paragraph, columns, rows, digits=1)


def draw(path: Path, data: dict[str, Any]) -> None:
    figure = panels.Panels()
    panel = figure.add("accuracy against labels", "labels used in training", "accuracy, %", width=4.2)
    panels.lines(panel, data["labels"], {start: data[start] for start in STARTS})
    panel.set_xscale("log")
    panel.set_xticks(data["labels"], [f"{labels:,g}{data['unit']}" for labels in data["labels"]])
    panel.set_xticks([], minor=True)
    panels.key(panel, "lower right")
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, SIZES, measure, judge, draw)
