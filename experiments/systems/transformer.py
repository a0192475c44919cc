"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Vaswani et al. 2017, "Attention is all you need": self-attention, all positions in parallel (pre-LN).
Command   s2sjax train experiments/systems/transformer.py
"""

from pathlib import Path

from s2sjax.config import Transformer, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-transformer",
    model=Transformer(width=88, heads=4, feedforward=352, encoder_layers=2, decoder_layers=2, norm="pre", dropout=0.1),
)
