"""Does it help an LSTM without attention to read the source from its end?

Claim     Reversing the source helps the attention-free LSTM.
Paper     Sutskever, Vinyals and Le 2014, section 3.3: perplexity 5.8 to 4.7, BLEU 25.9 to 30.6
Command   python experiments/claims/reversal.py

The same model, data and updates (models.py); only the order of the source differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import common
import models
import numpy as np
import panels

CLAIM = common.Claim(
    "reversal",
    "A reversed source",
    "Reversing the source helps the attention-free LSTM",
    "Sutskever, Vinyals and Le 2014, section 3.3",
    "gain in quality by reversing the source, in points",
)
SYSTEMS = {"sutskever_forward": "as it is", "sutskever": "reversed"}


def measure(study: common.Study, size: str) -> dict[str, Any]:
    found: dict[str, Any] = {"scores": {}, "perplexity": {}, "by_length": {}}
    for name in SYSTEMS:
        runs = [models.trained(study, name, seed) for seed in range(models.SEEDS[size])]
        buckets = [run.by_length(size) for run in runs]
        found["scores"][name] = [run.score for run in runs]
        found["perplexity"][name] = [float(np.exp(run.dev_loss)) for run in runs]
        found["by_length"][name] = [[result.value for _, _, result in each] for each in buckets]
        found |= {"buckets": [(low, high) for low, high, _ in buckets[0]], "label": runs[0].label}
        found |= {"higher": runs[0].higher_is_better, "unit": "words" if size == "full" else "letters"}
    return found


def judge(data: dict[str, Any]) -> common.Finding:
    sign = 1 if data["higher"] else -1
    forward, reverse = (np.asarray(data["scores"][name]) for name in SYSTEMS)
    gain = sign * (reverse - forward)
    rows = [
        [title, common.spread(data["scores"][name]), common.spread(data["perplexity"][name])]
        for name, title in SYSTEMS.items()
    ]
    clear = abs(gain.mean()) > 2 * gain.std(ddof=1) / len(gain) ** 0.5
    verdict: common.Verdict = "held" if clear and gain.mean() > 0 else "did not hold"
    lower, upper = (np.exp(np.log(data["perplexity"][name]).mean()) for name in ("sutskever", "sutskever_forward"))
    longest = [sign * np.mean(data["by_length"][name], 0)[-1] for name in ("sutskever", "sutskever_forward")]
    (low, high), label = data["buckets"][-1], data["label"].removesuffix(", %")
    paragraph = (
        f"Reversing the source changes {label} from {forward.mean():.2f} to {reverse.mean():.2f}, "
        f"and the perplexity of dev from {upper:.2f} to {lower:.2f}. "
        + ("This is more than the spread over seeds. " if clear else "This is within the spread over seeds. ")
        + f"In the longest sources ({low} to {high} {data['unit']}) the gain is {longest[0] - longest[1]:.1f} points "
        f"of {label}."
    )
    columns = ("source", data["label"], "perplexity of dev")
    return common.Finding(gain.tolist(), verdict, paragraph, columns, rows)


def draw(path: Path, data: dict[str, Any]) -> None:
    figure = panels.Panels()
    panel = figure.add("all sources", "source", models.axis(data), width=2.2)
    panels.bars(panel, {title: data["scores"][name] for name, title in SYSTEMS.items()})
    panel = figure.add("by length", f"source length, {data['unit']}", "", width=4.2)
    panels.by_length(panel, data["buckets"], {title: data["by_length"][name] for name, title in SYSTEMS.items()})
    figure.save(path)


if __name__ == "__main__":
    common.main(CLAIM, {size: size for size in models.SIZES}, measure, judge, draw)
