"""Grapheme-to-phoneme conversion: experiments/systems/rnnsearch.py with another model.

Paper     Gehring et al. 2017, "Convolutional sequence to sequence learning": gated convolutions in the encoder and
          the decoder, attention in every decoder layer.
Command   s2sjax train experiments/systems/convs2s.py
"""

from pathlib import Path

from s2sjax.config import ConvS2S, replace
from s2sjax.runs.experiment_file import load_experiment

experiment = replace(
    load_experiment(str(Path(__file__).with_name("rnnsearch.py"))),
    name="systems-convs2s",
    model=ConvS2S(
        embedding_size=64, encoder_layers=((100, 3),) * 3, decoder_layers=((100, 3),) * 3, max_length=64, dropout=0.1
    ),
)
