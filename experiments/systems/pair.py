"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Chen et al. 2018, "The best of both worlds": a Transformer encoder and a GRU decoder with attention.
Command   s2sjax train experiments/systems/pair.py
"""

from pathlib import Path

from s2sjax.config import Pair, RNNsearch, Transformer, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-pair",
    model=Pair(
        Transformer(width=72, heads=4, feedforward=288, encoder_layers=2, norm="pre", dropout=0.1),
        RNNsearch(width=96, embedding_size=64, dropout=0.1),
    ),
)
