"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Sejnowski and Rosenberg 1987, "Parallel networks that learn to pronounce English text": each phone is
          predicted from a window of letters, without recurrence.
Command   s2sjax train experiments/systems/dense_dense.py
"""

from pathlib import Path

from s2sjax.config import DenseDense, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-dense-dense",
    model=DenseDense(width=364, embedding_size=64, window=7, encoder_layers=2, decoder_layers=1, dropout=0.1),
)
