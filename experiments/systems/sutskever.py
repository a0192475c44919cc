"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Sutskever, Vinyals and Le 2014, "Sequence to sequence learning with neural networks": a deep LSTM reads the
          reversed word, and the decoder starts from its final states. No attention.
Command   s2sjax train experiments/systems/sutskever.py
"""

from pathlib import Path

from s2sjax.config import Sutskever, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-sutskever",
    model=Sutskever(width=128, embedding_size=64, layers=2, dropout=0.1),
)
