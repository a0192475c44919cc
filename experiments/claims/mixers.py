"""Is a layer with a recurrence as good as one with self-attention, at equal cost?

Claim     Recurrences that are linear in their state match attention at equal cost.
Papers    Sun et al. 2023; Dao and Gu 2024; De et al. 2024; Yang et al. 2024; Beck et al. 2024
Command   python experiments/claims/mixers.py

In a Transformer, recurrences replace self-attention (docs/recurrences.md): Gated DeltaNet, Mamba-2 (with an inner width
equal to the width), gated linear attention (GLA) or mLSTM in all layers, or layers that alternate with attention. All
else is equal, except that the feed-forward networks are narrower, because the recurrences have more weights. RNNsearch
and minGRU with attention are encoder-decoders of recurrent cells. All models have about the same number of weights and
the same data, batches, learning rate and updates (models.py); in all of them the decoder attends to the source.

The four recurrences without self-attention are judged, as fixed before the measurement. The cost is the number of
weights, the FLOPs of the matrix products of an update, and its time. The time is the median over rounds in which the
models take turns, on one batch of the longest bucket.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import common
import models
import numpy as np
import panels

from s2sjax.bench import peers, train_speed
from s2sjax.evaluate.figures import style

CLAIM = common.Claim(
    "mixers",
    "Recurrences at equal cost",
    "Recurrences that are linear in their state match attention at equal cost",
    "Sun et al. 2023; Dao and Gu 2024; De et al. 2024; Yang et al. 2024; Beck et al. 2024",
    "mean gain in test score of the recurrences over the Transformer, in points (below 0: they are worse)",
)
BASE = "transformer"
JUDGED = ("gated_delta", "ssd", "gla", "mlstm")
CURVES = (BASE, *JUDGED, "rnnsearch_equal")
SYSTEMS = (*CURVES, "mingru", "griffin", "delta_attention")
SEEDS = {"small": 5, "full": 5, "toy": 2}
VOCABULARY = {"small": 44, "full": 8000, "toy": 8}
"""number of tokens of a timed batch"""
ROUNDS = {"small": (5, 10), "full": (5, 20), "toy": (2, 2)}
"""number of rounds, and of updates of each model in a round"""
EQUAL = 0.1
"""largest relative difference of times that are called equal"""


def measure(study: common.Study, size: str) -> dict[str, Any]:
    e, chosen = models.SIZES[size](), {name: models.MODELS[size][name] for name in SYSTEMS}
    settings = [chosen, e.train, e.data.buckets[-1], e.data.batch_tokens, VOCABULARY[size], ROUNDS[size]]
    found: dict[str, Any] = study.once("cost", settings, partial(costs, e, chosen, VOCABULARY[size], *ROUNDS[size]))
    found |= {"curves": {}, "weights": {}, "test": {}}
    for name in SYSTEMS:
        runs = models.all_seeds(study, name, SEEDS[size])
        found["curves"][name] = [run.curve for run in runs]
        found["weights"][name] = runs[0].weights
        found["test"][name] = [run.score for run in runs]
        found |= {"label": runs[0].label, "higher": runs[0].higher_is_better}
    return found


def costs(e: Any, chosen: dict[str, Any], vocabulary: int, rounds: int, updates: int) -> dict[str, Any]:
    """Seconds per update of each model in each round, and the FLOPs of an update."""
    bucket = e.data.buckets[-1]
    rows, length = e.data.batch_tokens // sum(bucket), max(bucket)
    cases = {name: train_speed.Case(model, vocabulary, rows, length) for name, model in chosen.items()}
    batch = train_speed.make_batch(cases[BASE])
    steps = {name: train_speed.Trainer(case.model, vocabulary, *batch, e.train) for name, case in cases.items()}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in steps.items():
            seconds[name].append(peers.seconds(partial(run, updates)) / updates)
    flops = {name: float(train_speed.count_flops(case, e.train)) for name, case in cases.items()}
    return {"seconds": seconds, "flops": flops}


def gains(data: dict[str, Any], name: str) -> np.ndarray:
    """Points by which the test score is better than that of the Transformer: [seeds]."""
    sign = 1 if data["higher"] else -1
    return sign * np.subtract(data["test"][name], data["test"][BASE])


def times(data: dict[str, Any], name: str) -> float:
    """The time per update relative to that of the Transformer."""
    return peers.ratio(data["seconds"][name], data["seconds"][BASE])


def judge(data: dict[str, Any]) -> common.Finding:
    gain = {name: gains(data, name) for name in SYSTEMS}
    mean = np.mean([gain[name] for name in JUDGED], axis=0)
    worse = [name for name in JUDGED if common.is_clear(-gain[name])]
    verdict = common.verdict(not worse, len(worse) < len(JUDGED))
    rows = []
    for name in SYSTEMS:
        cells = [f"{data['weights'][name]:,}", f"{data['flops'][name] / 1e9:.3g}"]
        cells += [f"{1e3 * np.median(data['seconds'][name]):.1f}", common.spread(data["test"][name])]
        rows.append([models.TITLES[name], *cells])
    columns = ("model", "weights", "GFLOP per update", "ms per update", f"test {data['label']}")
    paragraph = f"{told_scores(data, gain)} {told_others(data, gain)} {told_times(data)}"
    return common.Finding(mean.tolist(), verdict, paragraph, columns, rows)


def told_scores(data: dict[str, Any], gain: dict[str, np.ndarray]) -> str:
    kinds: dict[str, list[str]] = {}
    for name in JUDGED:
        worse, better = common.is_clear(-gain[name]), common.is_clear(gain[name])
        kind = f"{'worse' if worse else 'better'} by more than two standard errors"
        kinds.setdefault(kind if worse or better else "within two standard errors of 0", []).append(name)
    parts = [f"{listed(names)} {'is' if len(names) == 1 else 'are'} {kind}" for kind, names in kinds.items()]
    every = f"All four are {next(iter(kinds))}" if len(kinds) == 1 else "; ".join(parts)
    shown = ", ".join(f"{models.TITLES[name]} {signed(gain[name])}" for name in JUDGED)
    return (
        f"With as many weights and updates, recurrences in place of self-attention gain these points of "
        f"{models.metric(data)} over the Transformer: {shown}. {every}."
    )


def told_others(data: dict[str, Any], gain: dict[str, np.ndarray]) -> str:
    others = [name for name in SYSTEMS if name not in (BASE, *JUDGED)]
    shown = ", ".join(f"{models.TITLES[name]} {signed(gain[name])}" for name in others)
    best = max(SYSTEMS, key=lambda name: gain[name].mean())
    return (
        f"The models that are not judged gain: {shown}. The best test score is {np.mean(data['test'][best]):.2f}, that "
        f"of {models.TITLES[best]}."
    )


def told_times(data: dict[str, Any]) -> str:
    ratio = {name: times(data, name) for name in SYSTEMS if name != BASE}
    kinds = {
        "less time": [name for name in ratio if ratio[name] < 1 - EQUAL],
        "about as much time": [name for name in ratio if abs(ratio[name] - 1) <= EQUAL],
        "more time": [name for name in ratio if ratio[name] > 1 + EQUAL],
    }
    notes = {name: f" ({ratio[name]:.2f} times)" for name in ratio}
    told = [f"{kind} with {listed(names, notes)}" for kind, names in kinds.items() if names]
    return f"Compared with the Transformer, an update takes {'; '.join(told)}."


def signed(values: np.ndarray) -> str:
    """The mean with its sign, and the standard deviation: +1.20 ± 0.41."""
    return f"{values.mean():+.2f} ± {values.std(ddof=1):.2f}"


def listed(names: list[str], notes: dict[str, str] | None = None) -> str:
    """Titles as a list: A, B and C."""
    titles = [models.TITLES[name] + (notes or {}).get(name, "") for name in names]
    return " and ".join([", ".join(titles[:-1]), titles[-1]] if len(titles) > 1 else titles)


def draw(path: Path, data: dict[str, Any]) -> None:
    figure = panels.Panels()
    panel = figure.add("quality during training", "updates", f"dev {models.axis(data)}", width=4.2)
    steps = [point["step"] for point in data["curves"][BASE][0]]
    scores = lambda name: [[point["score"] for point in curve] for curve in data["curves"][name]]
    panels.lines(panel, steps, {models.TITLES[name]: scores(name) for name in CURVES})
    panels.key(panel)
    panel = figure.add("quality after training", "", f"test {models.axis(data)}", width=4.2)
    panels.bars(panel, {models.TITLES[name]: data["test"][name] for name in SYSTEMS})
    for bar in panel.patches[len(CURVES) :]:
        bar.set_color(style.GRID)  # those without a curve on the left
    panel.set_xticks(range(len(SYSTEMS)), [models.TITLES[name] for name in SYSTEMS], rotation=35, ha="right")
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, {size: size for size in models.SIZES}, measure, judge, draw)
