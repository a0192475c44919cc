"""Spelling to phones: experiments/cmudict.py with a recurrent model.

Paper     Bahdanau, Cho and Bengio 2014; Yao and Zweig 2015, a bidirectional LSTM: 23.55% of the words wrong; Toshniwal
          and Livescu 2016, an ensemble with attention: 20.24%
Command   s2sjax train experiments/cmudict_rnnsearch.py
Hardware  one H200, shared with nine to eleven other training runs; 385 to 866 s, 14,084,523 weights
Score     19.72%, 20.08% and 19.65% of the test words wrong (seeds 0, 1 and 2)
"""

from pathlib import Path

from s2sjax.config import RNNsearch, replace
from s2sjax.runs.experiment_file import load_experiment

base = load_experiment(str(Path(__file__).with_name("cmudict.py")))
experiment = replace(
    base,
    name="cmudict_rnnsearch",
    model=RNNsearch(width=512, embedding_size=128, encoder_layers=2, cell="lstm", dropout=0.4),
    train=replace(base.train, steps=12_000, schedule_steps=20_000, learning_rate=1e-3, r_drop=2.0),
)
