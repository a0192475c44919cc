"""s2sjax: sequence-to-sequence research in JAX, from the plain recurrent cell to the Transformer.

run = s2sjax.load("runs/g2p")                    opens a trained run
run = s2sjax.train(experiment, "runs/mine")      trains an experiment
s2sjax.compare("runs/g2p", "runs/mine")          tests whether their scores differ significantly

See docs/python.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from s2sjax import former_names
from s2sjax.version import __version__ as __version__

if TYPE_CHECKING:  # importing s2sjax does not import JAX
    from s2sjax.config import Experiment
    from s2sjax.runs.comparison import Comparison
    from s2sjax.runs.evaluations import Evaluation
    from s2sjax.runs.run import Run

former_names.install()


def load(folder: str | Path, trust: bool = False) -> Run:
    """Opens the run in a folder. See s2sjax/runs/run.py.

    trust: execute the code of a run that this user has not trained, and remember that it is trusted.
    """
    from s2sjax.runs import run

    return run.load(folder, trust)


def train(
    experiment: Experiment | str | Path,
    folder: str | Path | None = None,
    init: str | Path | None = None,
    init_assets: bool = False,
    *,
    accept_code: bool = False,
) -> Run:
    """Trains an experiment in a folder (default: runs/NAME) and returns the run. Continues from its newest checkpoint.

    experiment: an experiment, or the path of an experiment file. init: the run folder from which a new run takes its
    initial parameters; with `init_assets`, also its vocabularies. accept_code: continue a run whose code has changed.
    `s2sjax.runs.run.train` also returns the final state.
    """
    from s2sjax.runs import run

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
    """Compares two evaluations, or the newest ones of two runs: scores, and significance of the difference."""
    from s2sjax.runs import comparison

    return comparison.compare(first, second, split, resamples)
