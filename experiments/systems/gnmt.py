"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Wu et al. 2016, "Google's neural machine translation system": a residual stack over one bidirectional layer;
          the lowest decoder layer computes the attention of all layers.
Command   s2sjax train experiments/systems/gnmt.py
"""

from pathlib import Path

from s2sjax.config import GNMT, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-gnmt",
    model=GNMT(width=80, embedding_size=64, layers=3, dropout=0.1),
)
