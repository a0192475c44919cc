"""Spelling to sound: the budget of experiments/systems/rnnsearch.py, another system.

Paper     Graves and Schmidhuber 2005, "Framewise phoneme classification with bidirectional LSTM": letter t alone
          decides on phone t, all of them at once. For matched lengths, which words and their phones only nearly have.
Command   s2sjax train experiments/systems/lstm_dense.py
"""

from pathlib import Path

from s2sjax.config import LSTMDense, replace
from s2sjax.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-lstm-dense",
    model=LSTMDense(width=208, embedding=64, layers=2, decoder_layers=1, dropout=0.0),
)
