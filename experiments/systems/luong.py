"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Luong, Pham and Manning 2015, "Effective approaches to attention-based neural machine translation": the
          query is the current decoder state, and the attentional vector is fed to the next step (input feeding).
Command   s2sjax train experiments/systems/luong.py
"""

from pathlib import Path

from s2sjax.config import Luong, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-luong",
    model=Luong(width=168, embedding_size=64, layers=1, bidirectional=True, dropout=0.1),
)
