"""s2sjax: sequence-to-sequence research in JAX, from the plain recurrent cell to the Transformer.

run = s2sjax.load("runs/g2p")                a run that was trained before
s2sjax.train(experiment, "runs/mine")        trains an experiment
"""

from typing import Any

__version__ = "0.1.0"


def load(folder: Any) -> Any:
    """The run in a folder: see s2sjax/run.py."""
    from s2sjax import run  # imports JAX

    return run.load(folder)


def train(experiment: Any, folder: Any, init: Any = None, init_assets: bool = False) -> Any:
    """Trains an experiment in a folder, from its newest checkpoint if there is one: (run, result).

    init: a run folder whose parameters a new run starts from; with `init_assets` also from its vocabularies.
    """
    from s2sjax import run

    return run.train(experiment, folder, init=init, init_assets=init_assets)
