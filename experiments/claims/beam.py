"""Does a wider beam find better outputs, and what does length normalisation change?

Claim     Beam search beats greedy, with diminishing and then falling returns as K grows; length normalisation matters.
Papers    Sutskever, Vinyals and Le 2014; Koehn and Knowles 2017, section 3.6; Wu et al. 2016, section 7
Command   python experiments/claims/beam.py

One trained model a seed (models.py: RNNsearch at small size, a Transformer at full size), decoded with beams of K,
ranked by the sum of log-probabilities or by their mean.
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
    "Beam search beats greedy, with diminishing and then falling returns as K grows; length normalisation matters",
    "Sutskever, Vinyals and Le 2014; Koehn and Knowles 2017, section 3.6; Wu et al. 2016, section 7",
    "gain of the best beam over greedy search, with length normalisation, in points",
)
PENALTIES = {"none": "sum of log-probabilities", "mean": "mean (length normalisation)"}


class Size(NamedTuple):
    model: str
    beams: tuple[int, ...]
    lines: int
    """of test that are decoded"""


SIZES = {
    "small": Size("rnnsearch", (1, 2, 8, 32), 400),
    "full": Size("transformer", (1, 2, 4, 8, 32, 100), 1014),
    "toy": Size("rnnsearch", (1, 2), 4),
}


def decode(trained: models.Trained, beam: int, penalty: str, lines: int) -> list[float]:
    """(score, length of all outputs over that of the references) of the first test lines."""
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
    runs = [models.trained(study, size.model, seed) for seed in range(models.SEEDS[study.size])]
    for penalty in PENALTIES:
        values = [
            [
                # Greedy search keeps one output: there is nothing to rank.
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
    error = lambda values: 2 * values.std(ddof=1) / len(values) ** 0.5
    matter = quality["mean"][:, -1] - quality["none"][:, -1]
    beats = gain.mean() > error(gain)
    falls = {p: fall[p] > error(quality[p][:, best[p]] - quality[p][:, -1]) and fall[p] > 0 for p in fall}
    matters = abs(matter.mean()) > error(matter)
    column = lambda what, p, i, digits: common.spread([seed[i] for seed in data[what][p]], digits)
    rows = [
        [str(beam), *(column(what, p, i, digits) for what, digits in (("scores", 2), ("ratios", 3)) for p in PENALTIES)]
        for i, beam in enumerate(beams)
    ]
    held = [beats, falls["none"], matters and matter.mean() > 0]
    verdict: common.Verdict = "held" if all(held) else "held in part" if any(held) else "did not hold"
    label = data["label"].removesuffix(", %")
    told = lambda p: (
        f"the best beam is {beams[best[p]]}, and K = {beams[-1]} is "
        + (f"{fall[p]:.2f} points of {label} worse" if falls[p] else "not worse beyond the spread over seeds")
    )
    paragraph = (
        f"{data['model']}: with length normalisation {told('mean')}; without it {told('none')}. "
        f"The best normalised beam gains {gain.mean():.2f} points over greedy search"
        + (". " if beats else ", within the spread over seeds. ")
        + f"At K = {beams[-1]} length normalisation changes {label} by {matter.mean():+.2f} points (positive: better), "
        f"and the length of the outputs from {np.mean(data['ratios']['none'], 0)[-1]:.3f} to "
        f"{np.mean(data['ratios']['mean'], 0)[-1]:.3f} of that of the references: "
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
