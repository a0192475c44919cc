"""s2sjax: sequence-to-sequence research in JAX, from the plain recurrent cell to the Transformer.

run = s2sjax.load("runs/g2p")                    a run that was trained before
run = s2sjax.train(experiment, "runs/mine")      trains an experiment
s2sjax.compare("runs/g2p", "runs/mine")          tests whether one is better than the other

See docs/python.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing s2sjax does not import JAX
    from s2sjax.comparison import Comparison
    from s2sjax.config import Experiment
    from s2sjax.evaluations import Evaluation
    from s2sjax.run import Run

__version__ = "0.1.0"


def load(folder: str | Path, trust: bool = False) -> Run:
    """The run in a folder: see s2sjax/run.py.

    trust: executes the code of a run that this user has not trained, now and from now on.
    """
    from s2sjax import run

    return run.load(folder, trust)


def train(
    experiment: Experiment | str | Path,
    folder: str | Path | None = None,
    init: str | Path | None = None,
    init_assets: bool = False,
    accept_code: bool = False,
) -> Run:
    """Trains an experiment in a folder (default: runs/NAME), from its newest checkpoint if there is one: the run.

    `experiment` may be the path of an experiment file. init: a run folder whose parameters a new run starts from; with
    `init_assets` also from its vocabularies. accept_code: continue a run with other code than it was trained with.
    `s2sjax.run.train` also returns the last state.
    """
    from s2sjax import run

    file = None
    if isinstance(experiment, str | Path):
        file, experiment = experiment, run.load_experiment(experiment)
    trained, _ = run.train(experiment, folder or f"runs/{experiment.name}", file, init, init_assets, accept_code)
    return trained


def compare(
    first: Run | Evaluation | str | Path,
    second: Run | Evaluation | str | Path,
    split: str | None = None,
    resamples: int = 1000,
) -> Comparison:
    """Two evaluations, or the newest ones of two runs: their scores and whether the difference is significant."""
    from s2sjax import comparison

    return comparison.compare(first, second, split, resamples)
