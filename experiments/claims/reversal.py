"""Does it help an LSTM without attention to read the source in reverse?

Claim     Reversing the source helps an LSTM without attention.
Paper     Sutskever, Vinyals and Le 2014, section 3.3: perplexity 5.8 to 4.7, BLEU 25.9 to 30.6
Command   python experiments/claims/reversal.py

Both runs have the same model, data and updates (models.py); only the order of the source differs.
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
    "Reversing the source helps an LSTM without attention",
    "Sutskever, Vinyals and Le 2014, section 3.3",
    "gain in quality by reversing the source, in points",
)
SYSTEMS = {"sutskever_forward": "as it is", "sutskever": "reversed"}


def measure(study: common.Study, size: str) -> dict[str, Any]:
    runs = {name: models.all_seeds(study, name) for name in SYSTEMS}
    scores = {name: [run.score for run in seeds] for name, seeds in runs.items()}
    perplexity = {name: [float(np.exp(run.dev_loss)) for run in seeds] for name, seeds in runs.items()}
    return {"scores": scores, "perplexity": perplexity, **models.by_length(runs, size)}


def judge(data: dict[str, Any]) -> common.Finding:
    sign = 1 if data["higher"] else -1
    forward, reverse = (np.asarray(data["scores"][name]) for name in SYSTEMS)
    gain = sign * (reverse - forward)
    rows = [
        [title, common.spread(data["scores"][name]), common.spread(data["perplexity"][name])]
        for name, title in SYSTEMS.items()
    ]
    clear = common.is_clear(gain) or common.is_clear(-gain)
    verdict = common.verdict(common.is_clear(gain))
    lower, upper = (np.exp(np.log(data["perplexity"][name]).mean()) for name in ("sutskever", "sutskever_forward"))
    longest = [sign * np.mean(data["by_length"][name], 0)[-1] for name in ("sutskever", "sutskever_forward")]
    (low, high), label = data["buckets"][-1], models.metric(data)
    paragraph = (
        f"Reversing the source changes {label} from {forward.mean():.2f} to {reverse.mean():.2f}, "
        f"and dev perplexity from {upper:.2f} to {lower:.2f}. "
        f"The change is {'larger than' if clear else 'within'} the spread over seeds. "
        f"For the longest sources ({low} to {high} {data['unit']}), the gain is {longest[0] - longest[1]:.1f} points "
        f"of {label}."
    )
    columns = ("source", data["label"], "dev perplexity")
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
