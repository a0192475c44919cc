"""Spelling to sound: the budget of experiments/systems/rnnsearch.py, another system.

Paper     Luong, Pham and Manning 2015, local attention: a state predicts where to look, and looks two letters to either
          side.
Command   s2sjax train experiments/systems/luong_local.py
"""

from pathlib import Path

from s2sjax.config import Luong, replace
from s2sjax.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-luong-local",
    model=Luong(width=168, embedding=64, layers=1, bidirectional=True, window="predictive", radius=2, dropout=0.0),
)
