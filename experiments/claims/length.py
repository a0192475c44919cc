"""Does quality fall with the length of the source, with and without attention?

Claim     Without attention, quality falls with sentence length; with attention, it does not.
Paper     Bahdanau, Cho and Bengio 2014, figure 2
Command   python experiments/claims/length.py

Compares an LSTM encoder-decoder, which encodes the source in one state (Sutskever et al. 2014), with RNNsearch, on the
same data and with the same number of updates (models.py), by their scores in buckets of source lengths.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import common
import models
import numpy as np
import panels

CLAIM = common.Claim(
    "length",
    "Attention and length",
    "Without attention, quality falls with sentence length; with attention, it does not",
    "Bahdanau, Cho and Bengio 2014, figure 2",
    "loss of quality from short to long sources, without attention minus with attention, in points",
)
SYSTEMS = {"sutskever": "without attention (LSTM)", "rnnsearch": "with attention (RNNsearch)"}


def measure(study: common.Study, size: str) -> dict[str, Any]:
    return models.by_length({name: models.all_seeds(study, name) for name in SYSTEMS}, size)


def drops(data: dict[str, Any], name: str) -> np.ndarray:
    """Points by which the longest bucket is worse than the best of the shorter ones: [seeds]."""
    scores = np.asarray(data["by_length"][name]) * (1 if data["higher"] else -1)
    return scores[:, :-1].max(1) - scores[:, -1]


def judge(data: dict[str, Any]) -> common.Finding:
    without, with_attention = (drops(data, name) for name in SYSTEMS)
    gap = without - with_attention
    rows = [
        [
            f"{low} to {high}",
            str(count),
            *(common.spread([seed[i] for seed in data["by_length"][name]], 1) for name in SYSTEMS),
        ]
        for i, ((low, high), count) in enumerate(zip(data["buckets"], data["examples"]))
    ]
    clear = common.is_clear(gap)
    flat = with_attention.mean() < without.mean() / 2
    verdict = common.verdict(clear and flat, clear)
    low, high = data["buckets"][-1]
    paragraph = (
        f"From its best bucket to the longest sources ({low} to {high} {data['unit']}), the model without attention "
        f"loses {common.spread(without.tolist(), 1)} points of {models.metric(data)}, and the model with "
        f"attention {common.spread(with_attention.tolist(), 1)}. "
        + ("Quality falls without attention, and hardly with it. " if clear and flat else
           "Both models lose quality, but the one with attention loses less. " if clear else
           "The difference is within the spread over seeds. ")
        + "The model with attention is better at every length."
        * all(a < b if data["higher"] else a > b for a, b in zip(*(np.mean(data["by_length"][n], 0) for n in SYSTEMS)))
    ).strip()  # fmt: skip
    if data["left_out"]:
        paragraph += f" {data['left_out']} other sources, in buckets of fewer than {models.FEWEST}, are left out."
    columns = (f"source, {data['unit']}", "examples", *(f"{title}, {data['label']}" for title in SYSTEMS.values()))
    return common.Finding(gap.tolist(), verdict, paragraph, columns, rows, digits=1)


def draw(path: Path, data: dict[str, Any]) -> None:
    figure = panels.Panels()
    panel = figure.add("quality by source length", f"source length, {data['unit']}", models.axis(data), width=4.5)
    panels.by_length(panel, data["buckets"], {title: data["by_length"][name] for name, title in SYSTEMS.items()})
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, {size: size for size in models.SIZES}, measure, judge, draw)
