"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Graves and Schmidhuber 2005, "Framewise phoneme classification with bidirectional LSTM": phone t is
          predicted from encoder state t. The model is meant for inputs and outputs of equal length; words and their
          phones have only about the same length.
Command   s2sjax train experiments/systems/lstm_dense.py
"""

from pathlib import Path

from s2sjax.config import LSTMDense, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-lstm-dense",
    model=LSTMDense(width=208, embedding_size=64, layers=2, decoder_layers=1, dropout=0.1),
)
