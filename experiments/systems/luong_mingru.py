"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Feng et al. 2024, "Were RNNs all we needed?": Luong's model with minGRU cells, whose gates depend only on
          the input, so that training is parallel over time.
Command   s2sjax train experiments/systems/luong_mingru.py
"""

from pathlib import Path

from s2sjax.config import Luong, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-luong-mingru",
    model=Luong(
        width=232, embedding_size=64, layers=2, cell="mingru", bidirectional=True, input_feeding=False, dropout=0.1
    ),
)
