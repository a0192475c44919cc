"""Spelling to sound: the budget of experiments/systems/rnnsearch.py, another system.

Paper     Kalchbrenner and Blunsom 2013, "Recurrent continuous translation models": convolutions read the word, a
          plain recurrent cell writes. No attention.
Command   s2sjax train experiments/systems/rctm.py
"""

from pathlib import Path

from s2sjax.config import RCTM, replace
from s2sjax.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-rctm",
    model=RCTM(width=208, embedding=64, dropout=0.0),
)
