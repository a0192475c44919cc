"""s2sjax: sequence-to-sequence research in JAX, from the plain recurrent cell to the Transformer.

run = s2sjax.load("runs/g2p")                    a run that was trained before
run = s2sjax.train(experiment, "runs/mine")      trains an experiment
s2sjax.compare("runs/g2p", "runs/mine")          tests whether one is better than the other

See docs/python.md.
"""

from typing import Any

__version__ = "0.1.0"


def load(folder: Any, trust: bool = False) -> Any:
    """The run in a folder: see s2sjax/run.py.

    trust: executes the code of a run that this user has not trained, now and from now on.
    """
    from s2sjax import run  # imports JAX

    return run.load(folder, trust)


def train(
    experiment: Any, folder: Any = None, init: Any = None, init_assets: bool = False, accept_code: bool = False
) -> Any:
    """Trains an experiment in a folder (default: runs/NAME), from its newest checkpoint if there is one: the run.

    `experiment` may be the path of an experiment file. init: a run folder whose parameters a new run starts from; with
    `init_assets` also from its vocabularies. accept_code: continue a run with other code than it was trained with.
    `s2sjax.run.train` also returns the last state.
    """
    from s2sjax import run

    file = None if hasattr(experiment, "task") else experiment
    if file is not None:
        experiment = run.load_experiment(file)
    trained, _ = run.train(experiment, folder or f"runs/{experiment.name}", file, init, init_assets, accept_code)
    return trained


def compare(first: Any, second: Any, split: str | None = None, resamples: int = 1000) -> Any:
    """Two evaluations, or the newest ones of two runs: their scores and whether the difference is significant."""
    from s2sjax import comparison

    return comparison.compare(first, second, split, resamples)
