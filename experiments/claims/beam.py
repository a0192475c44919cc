"""Does a wider beam find better outputs, and what does length normalization change?

Claim     Beam search beats greedy search; its returns diminish and then fall as K grows; length normalization matters.
Papers    Sutskever, Vinyals and Le 2014; Koehn and Knowles 2017, section 3.6; Wu et al. 2016, section 7
Command   python experiments/claims/beam.py

One model per seed (models.py: RNNsearch at small size, a Transformer at full size) decodes with beams of several sizes
K. Hypotheses are ranked by the sum of their log-probabilities, or by the mean.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import common
import models
import numpy as np
import panels

from s2sjax.evaluate import metrics
from s2sjax.runs import run

CLAIM = common.Claim(
    "beam",
    "Beam search",
    "Beam search beats greedy search; its returns diminish and then fall as K grows; length normalization matters",
    "Sutskever, Vinyals and Le 2014; Koehn and Knowles 2017, section 3.6; Wu et al. 2016, section 7",
    "gain of the best beam over greedy search, with length normalization, in points",
)
PENALTIES = {"none": "sum of log-probabilities", "mean": "mean (length normalization)"}


class Size(NamedTuple):
    model: str
    beams: tuple[int, ...]
    lines: int
    """number of test lines to decode"""


SIZES = {
    "small": Size("rnnsearch", (1, 2, 8, 32), 400),
    "full": Size("transformer", (1, 2, 4, 8, 32, 100), 1014),
    "toy": Size("rnnsearch", (1, 2), 4),
}


def decode(trained: models.Trained, beam: int, penalty: str, lines: int) -> list[float]:
    """Decodes the first test lines: [score, length of all outputs divided by that of the references]."""
    examples = trained.outputs[:lines]
    outputs = run.load(trained.folder).decode(
        [each["source"] for each in examples], beam_size=beam, length_penalty=penalty
    )
    references = [tuple(each["references"]) for each in examples]
    score = metrics.score([trained.metric], outputs, references)[trained.metric].value
    count = lambda texts: sum(len(text.split()) or 1 for text in texts)
    return [score, count(outputs) / count([answers[0] for answers in references])]


def measure(study: common.Study, size: Size) -> dict[str, Any]:
    found: dict[str, Any] = {"beams": size.beams, "scores": {}, "ratios": {}}
    runs = models.all_seeds(study, size.model)
    for penalty in PENALTIES:
        values = [
            [
                # Greedy search has one hypothesis: there is nothing to rank.
                study.once(
                    f"{size.model}-{seed}-beam{beam}-{penalty if beam > 1 else 'none'}",
                    [size, trained.score],
                    partial(decode, trained, beam, penalty if beam > 1 else "none", size.lines),
                )
                for beam in size.beams
            ]
            for seed, trained in enumerate(runs)
        ]
        found["scores"][penalty] = [[score for score, _ in seed] for seed in values]
        found["ratios"][penalty] = [[ratio for _, ratio in seed] for seed in values]
    found |= {"label": runs[0].label, "higher": runs[0].higher_is_better, "model": models.TITLES[size.model]}
    return found


def judge(data: dict[str, Any]) -> common.Finding:
    sign, beams = (1 if data["higher"] else -1), list(data["beams"])
    quality = {penalty: sign * np.asarray(scores) for penalty, scores in data["scores"].items()}  # [seeds, K]
    means = {penalty: scores.mean(0) for penalty, scores in quality.items()}
    best = {penalty: int(scores.argmax()) for penalty, scores in means.items()}
    gain = quality["mean"][:, best["mean"]] - quality["mean"][:, 0]
    fall = {penalty: means[penalty][best[penalty]] - means[penalty][-1] for penalty in means}
    matter = quality["mean"][:, -1] - quality["none"][:, -1]
    beats = common.is_clear(gain)
    falls = {p: fall[p] > 0 and common.is_clear(quality[p][:, best[p]] - quality[p][:, -1]) for p in fall}
    matters = common.is_clear(matter) or common.is_clear(-matter)
    column = lambda what, p, i, digits: common.spread([seed[i] for seed in data[what][p]], digits)
    rows = [
        [str(beam), *(column(what, p, i, digits) for what, digits in (("scores", 2), ("ratios", 3)) for p in PENALTIES)]
        for i, beam in enumerate(beams)
    ]
    held = [beats, falls["none"], matters and matter.mean() > 0]
    verdict = common.verdict(all(held), any(held))
    label = models.metric(data)
    told = lambda p: (
        f"the best beam is {beams[best[p]]}, and K = {beams[-1]} is "
        + (f"{fall[p]:.2f} points of {label} worse" if falls[p] else "not worse by more than the spread over seeds")
    )
    paragraph = (
        f"{data['model']}: with length normalization, {told('mean')}; without it, {told('none')}. "
        f"With normalization, the best beam gains {gain.mean():.2f} points over greedy search"
        + (". " if beats else ", within the spread over seeds. ")
        + f"At K = {beams[-1]}, length normalization changes {label} by {matter.mean():+.2f} points (positive: "
        "better), "
        f"and the length of the outputs from {np.mean(data['ratios']['none'], 0)[-1]:.3f} to "
        f"{np.mean(data['ratios']['mean'], 0)[-1]:.3f} of the length of the references: "
        + ("it matters here." if matters else "it hardly matters here.")
    )
    columns = ("K", f"{data['label']}, sum", f"{data['label']}, mean", "length, sum", "length, mean")
    return common.Finding(gain.tolist(), verdict, paragraph, columns, rows)


def draw(path: Path, data: dict[str, Any]) -> None:
    figure = panels.Panels()
    for title, what, y in (
        ("quality", "scores", models.axis(data)),
        ("length of the outputs", "ratios", "part of the references'"),
    ):
        panel = figure.add(title, "beam size K", y)
        panels.lines(panel, data["beams"], {name: data[what][p] for p, name in PENALTIES.items()})
        panel.set_xscale("log", base=2)
        panel.set_xticks(data["beams"], [str(beam) for beam in data["beams"]])
        if what == "scores":
            panels.key(panel)
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, SIZES, measure, judge, draw)
