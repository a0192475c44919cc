"""The gain from pre-training with 1%, 10% and 100% of the labels: models with and without bert_ddtp.py.

    s2sjax train experiments/bert_ddtp.py
    python experiments/bert_shares.py [runs]        trains 12 models, prints a table, draws runs/bert_shares.png

Existing runs are not trained again. SST-2 is scored on dev, UD on its official dev part, once.
"""

import sys
from pathlib import Path
from typing import Any

from s2sjax import config
from s2sjax.config import replace
from s2sjax.errors import UserError
from s2sjax.evaluate.figures import share_curves
from s2sjax.runs import run
from s2sjax.runs.experiment_file import load_experiment

TASKS = {"bert_sst2": "SST-2, sentiment", "bert_ud_pos": "UD English EWT, parts of speech"}
SHARES = (1.0, 10.0, 100.0)


def score(name: str, percent: float, start: Path | None, runs: Path) -> float:
    """Accuracy of the model of an experiment file, trained on a percentage of its labels."""
    file = Path(__file__).with_name(f"{name}.py")
    e: Any = load_experiment(str(file))
    corpus = replace(e.data.corpus, train_percent=percent)
    e = replace(e, name=f"{name}_{percent:g}_{'bert' if start else 'scratch'}", data=replace(e.data, corpus=corpus))
    e = config.resolve_paths(e, file.parent)
    trained, result = run.train(e, runs / e.name, init=start, init_assets=start is not None)
    if result.status == "interrupted":
        raise KeyboardInterrupt
    split = "test" if trained.task.has("test") else "dev"
    return run.evaluate(trained, split).results["accuracy"].value


def main(runs: Path) -> None:
    curves = {
        title: {
            label: [score(name, percent, start, runs) for percent in SHARES]
            for label, start in (("from BERT", runs / "bert_ddtp"), ("from scratch", None))
        }
        for name, title in TASKS.items()
    }
    print("| data | start | " + " | ".join(f"{percent:g}%" for percent in SHARES) + " |")
    print("|---|---|" + "---:|" * len(SHARES))
    for title, each in curves.items():
        for label, values in each.items():
            print(f"| {title} | {label} | " + " | ".join(f"{value:.2f}%" for value in values) + " |")
    share_curves.curves(runs / "bert_shares.png", SHARES, curves)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: run the same command again to continue")
