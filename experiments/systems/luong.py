"""Spelling to sound: the budget of experiments/systems/rnnsearch.py, another system.

Paper     Luong, Pham and Manning 2015, "Effective approaches to attention-based neural machine translation": the
          current state asks, the context is read out and fed to the next step.
Command   s2sjax train experiments/systems/luong.py
"""

from pathlib import Path

from s2sjax.config import Luong, replace
from s2sjax.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-luong",
    model=Luong(width=168, embedding=64, layers=1, bidirectional=True, dropout=0.0),
)
