"""How long must a Transformer, a recurrent and a convolutional model train to be equally good?

Claim     The Transformer reaches the quality of recurrent and convolutional models at a fraction of the training cost.
Paper     Vaswani et al. 2017, table 2
Command   python experiments/claims/cost.py

All models have the same data, batches and updates (models.py), and about the same size. Equal quality is the dev score
that every model reaches with every seed: the worst of all best scores. The number of updates to that score is
interpolated linearly between evaluations. The training time is that number times the time per update, without
compilation and evaluation. The time per update is that of the fastest interval between two evaluations, because other
jobs may use the same machine.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import common
import models
import numpy as np
import panels

CLAIM = common.Claim(
    "cost",
    "Cost of training",
    "The Transformer reaches the quality of recurrent and convolutional models at a fraction of the training cost",
    "Vaswani et al. 2017, table 2",
    "training time to equal quality, RNNsearch divided by Transformer",
)
SYSTEMS = models.TIMED


def measure(study: common.Study, size: str) -> dict[str, Any]:
    found: dict[str, Any] = {"curves": {}, "weights": {}, "test": {}}
    for name in SYSTEMS:
        runs = models.all_seeds(study, name)
        found["curves"][name] = [run.curve for run in runs]
        found["weights"][name] = runs[0].weights
        found["test"][name] = [run.score for run in runs]
        found |= {"label": runs[0].label, "higher": runs[0].higher_is_better}
    return found


def reached(curve: list[dict[str, float]], target: float, sign: int) -> float:
    """The number of updates until the score first reaches the target."""
    before = None
    for point in curve:
        if sign * point["score"] >= sign * target:
            if before is None or point["score"] == before["score"]:
                return point["step"]
            part = (target - before["score"]) / (point["score"] - before["score"])
            return before["step"] + part * (point["step"] - before["step"])
        before = point
    return curve[-1]["step"]


def pace(curves: list[list[dict[str, float]]]) -> float:
    """Seconds per update."""
    pairs = [pair for curve in curves for pair in itertools.pairwise(curve)]
    return min((b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in pairs)


def equal_quality(data: dict[str, Any]) -> tuple[float, int]:
    """(the worst of all best dev scores, 1 if higher is better else -1)"""
    sign = 1 if data["higher"] else -1
    best = [max(sign * point["score"] for point in curve) for seeds in data["curves"].values() for curve in seeds]
    return sign * min(best), sign


def judge(data: dict[str, Any]) -> common.Finding:
    target, sign = equal_quality(data)
    curves = data["curves"]
    steps = {name: np.array([reached(curve, target, sign) for curve in curves[name]]) for name in SYSTEMS}
    seconds = {name: pace(curves[name]) * steps[name] for name in SYSTEMS}
    ratio = {name: seconds[name] / seconds["transformer"] for name in SYSTEMS}
    rows = []
    for name in SYSTEMS:
        cells = [common.spread(seconds[name].tolist(), 1), common.spread(steps[name].tolist(), 0)]
        cells += [f"{1e3 * pace(curves[name]):.1f}", common.spread(data["test"][name])]
        rows.append([models.TITLES[name], f"{data['weights'][name]:,}", *cells])
    faster = {name: (ratio[name] > 1).all() for name in SYSTEMS[1:]}
    slower = {name: (ratio[name] < 1).all() for name in SYSTEMS[1:]}
    verdict = common.verdict(all(faster.values()), any(faster.values()) and not all(slower.values()))
    label = models.metric(data)
    told = ", ".join(f"{models.TITLES[name]} {common.spread(seconds[name].tolist(), 1)} s" for name in SYSTEMS)
    better = min(SYSTEMS, key=lambda name: -sign * np.mean(data["test"][name]))
    paragraph = (
        f"The training times to a dev {label} of {target:.2f}, which every model reaches, are: {told}. On one device, "
        f"the cost is proportional to this time. RNNsearch takes {ratio['rnnsearch'].mean():.2f} times and ConvS2S "
        f"{ratio['convs2s'].mean():.2f} times as long as the Transformer. After all updates, {models.TITLES[better]} "
        f"has the best test score, {np.mean(data['test'][better]):.2f}."
    )
    times = ("seconds to equal quality", "updates to it", "ms per update")
    columns = ("model", "weights", *times, f"test {data['label']}")
    return common.Finding(ratio["rnnsearch"].tolist(), verdict, paragraph, columns, rows)


def draw(path: Path, data: dict[str, Any]) -> None:
    figure, (target, sign) = panels.Panels(), equal_quality(data)
    panel = figure.add("quality against time", "seconds of training", f"dev {models.axis(data)}", width=4.5)
    for number, name in enumerate(SYSTEMS):
        for seed, curve in enumerate(data["curves"][name]):
            x = [point["step"] * pace(data["curves"][name]) for point in curve]
            y = [point["score"] for point in curve]
            label = None if seed else models.TITLES[name]
            panel.plot(x, y, color=panels.colour(number), marker="o", markersize=3, linewidth=1.2, label=label)
    panel.axhline(target, color="#6b7280", linewidth=1, linestyle=(0, (3, 2)), label="equal quality")
    panels.key(panel)
    panel = figure.add("time to equal quality", "", "seconds", width=2.8)
    times = lambda curves: [pace(curves) * reached(curve, target, sign) for curve in curves]
    panels.bars(panel, {models.TITLES[name]: times(data["curves"][name]) for name in SYSTEMS})
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, {size: size for size in models.SIZES}, measure, judge, draw)
