"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Kalchbrenner and Blunsom 2013, "Recurrent continuous translation models": a convolutional encoder and
          a plain RNN decoder. No attention.
Command   s2sjax train experiments/systems/rctm.py
"""

from pathlib import Path

from s2sjax.config import RCTM, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-rctm",
    model=RCTM(width=208, embedding_size=64, dropout=0.1),
)
