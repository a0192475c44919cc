"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder for statistical machine
          translation": the encoder maps the word to one vector, which every decoder step reads. No attention.
Command   s2sjax train experiments/systems/cho.py
"""

from pathlib import Path

from s2sjax.config import Cho, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-cho",
    model=Cho(width=176, embedding_size=64, dropout=0.1),
)
