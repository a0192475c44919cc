"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Luong, Pham and Manning 2015, local attention: the decoder predicts a position and attends to two letters on
          either side of it.
Command   s2sjax train experiments/systems/luong_local.py
"""

from pathlib import Path

from s2sjax.config import Luong, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-luong-local",
    model=Luong(width=168, embedding_size=64, layers=1, bidirectional=True, window="predictive", radius=2, dropout=0.1),
)
