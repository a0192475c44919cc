"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Sutskever, Vinyals and Le 2014, in its smallest form: one LSTM layer on one-hot letters, not reversed. No
          attention.
Command   s2sjax train experiments/systems/character.py
"""

from pathlib import Path

from s2sjax.config import Sutskever, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-character",
    model=Sutskever(width=216, embedding_size=0, layers=1, reverse=False, dropout=0.1),
)
