"""English to German descriptions of pictures: experiments/multi30k.py with another model.

Paper     Luong, Pham and Manning 2015
Command   s2sjax train experiments/multi30k_luong.py
Hardware  one H200, shared with nine to eleven other training runs; 552 to 803 s, 18,384,656 weights
Score     tokenised lower-case BLEU on test 2016 39.42, 38.88 and 38.70 (seeds 0, 1 and 2);
          docs/results.md says how the settings were chosen
"""

from pathlib import Path

from s2sjax.config import Luong, replace
from s2sjax.runs.experiment_file import load_experiment

base = load_experiment(str(Path(__file__).with_name("multi30k.py")))
experiment = replace(
    base,
    name="multi30k_luong",
    model=Luong(width=512, embedding_size=256, layers=2, bidirectional=True, dropout=0.2),
    train=replace(base.train, steps=8000, ema=0.998, r_drop=2.0),
)
