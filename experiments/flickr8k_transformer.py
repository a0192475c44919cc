"""Captions of photos by a Transformer over the grid of a convolutional network: Flickr8k, trained from scratch.

Paper     Vaswani et al. 2017, Attention Is All You Need, instead of the recurrent decoder of Xu et al. 2015
Command   s2sjax train experiments/flickr8k_transformer.py      (pip install pillow)
Data      see flickr8k.py
Hardware  one H200, shared with four other training runs; 518 s, 11,681,392 weights
Score     BLEU-1 to 4: 49.79, 31.41, 19.66 and 12.58, beam 5, seed 0
          (nrefs:5|case:mixed|eff:no|tok:none|smooth:none|version:2.6.0)
"""

from pathlib import Path

from s2sjax.config import Transformer, replace
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.tasks.captioning import CaptionModel
from s2sjax.tasks.captioning.picture_grid import Grid

experiment = replace(
    load_experiment(str(Path(__file__).with_name("flickr8k.py"))),
    name="flickr8k_transformer",
    model=CaptionModel(
        Grid(channels=(48, 96, 192, 384), blocks=2),
        Transformer(width=256, heads=4, feedforward=1024, encoder_layers=2, decoder_layers=3, norm="pre", dropout=0.3),
        dropout=0.1,
    ),
)
