"""Spelling to sound: the budget of experiments/systems/rnnsearch.py, another system.

Paper     Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder for statistical machine
          translation": the whole word becomes one vector, which is given to every step. No attention.
Command   s2sjax train experiments/systems/cho.py
"""

from pathlib import Path

from s2sjax.config import Cho, replace
from s2sjax.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-cho",
    model=Cho(width=176, embedding=64, dropout=0.0),
)
