"""Trains every system with three seeds; what is finished is not trained again, and what was cut continues.

    python experiments/systems/train.py [pronunciation|translation] [--only NAME ...] [--seeds 3] [--out runs/systems]

The runs are OUT/DATA/NAME-SEED. experiments/systems/table.py reads them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from s2sjax import config
from s2sjax.cli import start_jax
from s2sjax.errors import UserError
from s2sjax.runs.experiment_file import load_experiment, load_file
from s2sjax.runs.run import evaluate, train

HERE = Path(__file__).parent
SYSTEMS = {
    "pronunciation": (
        "rctm", "cho", "sutskever", "character", "rnnsearch", "luong", "luong_local", "luong_mingru", "gnmt", "convs2s",
        "transformer", "pair", "lstm_dense", "dense_dense",
    ),
    "translation": (
        "rctm", "cho", "sutskever", "rnnsearch", "luong", "luong_local", "luong_mingru", "gnmt", "convs2s",
        "transformer", "pair",
    ),
}  # fmt: skip


def file_of(data: str, name: str) -> Path:
    return HERE / f"{name if data == 'pronunciation' else 'translation'}.py"


def experiment_of(data: str, name: str) -> config.Experiment:
    experiment = load_experiment(file_of(data, name))
    if data == "pronunciation":
        return experiment
    return config.replace(experiment, model=load_file(file_of(data, name)).MODELS[name])  # type: ignore[type-var]


def finished(run: Path) -> bool:
    return any((run / "evaluations").glob("test-*/results.json"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train every system with several seeds.")
    parser.add_argument("data", nargs="?", choices=SYSTEMS, help="default: both")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=SYSTEMS["pronunciation"], help="some systems")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N-1 (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("runs/systems"), help="where the runs are kept")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}: it must be at least 1")
    start_jax.start_jax()
    try:
        train_all(options)
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: run the same command again to continue")


def train_all(options: argparse.Namespace) -> None:
    for data in [options.data] if options.data else SYSTEMS:
        for seed in range(options.seeds):
            for name in SYSTEMS[data]:
                folder = options.out / data / f"{name}-{seed}"
                if finished(folder) or (options.only and name not in options.only):
                    continue
                experiment = config.replace(experiment_of(data, name), seed=seed)  # type: ignore[type-var]
                run, result = train(experiment, folder, file_of(data, name))
                if result.status == "interrupted":
                    return
                print(evaluate(run), flush=True)
                jax.clear_caches()


if __name__ == "__main__":
    main()
