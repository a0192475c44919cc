"""English to German descriptions of pictures: experiments/multi30k.py with another model.

Paper     Bahdanau, Cho and Bengio 2014
Command   s2sjax train experiments/multi30k_rnnsearch.py
Hardware  one H200, shared with nine to eleven other training runs; 417 to 681 s, 14,774,032 weights
Score     tokenised lower-case BLEU on test 2016 39.18, 39.30 and 38.92 (seeds 0, 1 and 2)
"""

from pathlib import Path

from s2sjax.config import RNNsearch, replace
from s2sjax.runs.experiment_file import load_experiment

base = load_experiment(str(Path(__file__).with_name("multi30k.py")))
experiment = replace(
    base,
    name="multi30k_rnnsearch",
    model=RNNsearch(width=512, embedding_size=256, dropout=0.4),
    train=replace(base.train, steps=8000, ema=0.998),
)
