"""The gain from pre-training with 1%, 10% and 100% of the labels: models with and without bert_ddtp.py.

    s2sjax train experiments/bert_ddtp.py
    python experiments/bert_shares.py [runs]        trains 12 models, prints a table, draws runs/bert_shares.png

There is one sweep over the shares for each task and start, such as runs/bert_sst2_scratch; what is finished is not
trained again. SST-2 is scored on dev, UD on its official dev part, once.
"""

import sys
from pathlib import Path

import s2sjax
from s2sjax.errors import UserError
from s2sjax.evaluate.figures import share_curves

TASKS = {"bert_sst2": "SST-2, sentiment", "bert_ud_pos": "UD English EWT, parts of speech"}
STARTS = {"bert": "from BERT", "scratch": "from scratch"}
SHARES = (1.0, 10.0, 100.0)


def scores(name: str, start: str, runs: Path) -> list[float]:
    """Accuracies of the model of an experiment file, trained on each share of its labels."""
    init = runs / "bert_ddtp" if start == "bert" else None
    swept = s2sjax.sweep(
        Path(__file__).with_name(f"{name}.py"), {"data.corpus.train_percent": SHARES}, runs / f"{name}_{start}",
        init=init, init_assets=init is not None,
    )  # fmt: skip
    return [run.evaluations()[-1]["accuracy"].value for run in swept.runs.values()]


def main(runs: Path) -> None:
    curves = {
        title: {label: scores(name, start, runs) for start, label in STARTS.items()} for name, title in TASKS.items()
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
