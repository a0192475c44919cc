"""English to German descriptions of pictures: experiments/multi30k.py with another model.

Paper     Bahdanau, Cho and Bengio 2014
Command   s2sjax train experiments/multi30k_rnnsearch.py
Score     not measured yet
"""

from pathlib import Path

from s2sjax.config import RNNsearch, replace
from s2sjax.experiment_file import load_experiment

base = load_experiment(str(Path(__file__).with_name("multi30k.py")))
experiment = replace(
    base,
    name="multi30k_rnnsearch",
    model=RNNsearch(width=512, embedding=256, dropout=0.4),
    train=replace(base.train, learning_rate=1e-3),
)
