"""Spelling to sound: the budget of experiments/systems/rnnsearch.py, another system.

Paper     Sejnowski and Rosenberg 1987, "Parallel networks that learn to pronounce English text": a window of letters
          decides on each phone, without any recurrence.
Command   s2sjax train experiments/systems/dense_dense.py
"""

from pathlib import Path

from s2sjax.config import DenseDense, replace
from s2sjax.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-dense-dense",
    model=DenseDense(width=364, embedding=64, window=7, encoder_layers=2, decoder_layers=1, dropout=0.0),
)
