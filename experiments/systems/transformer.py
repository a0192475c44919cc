"""Spelling to sound: the budget of experiments/systems/rnnsearch.py, another system.

Paper     Vaswani et al. 2017, "Attention is all you need": attention alone, all positions at once (pre-LN).
Command   s2sjax train experiments/systems/transformer.py
"""

from pathlib import Path

from s2sjax.config import Transformer, replace
from s2sjax.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-transformer",
    model=Transformer(width=88, heads=4, feedforward=352, encoder_layers=2, decoder_layers=2, norm="pre", dropout=0.0),
)
