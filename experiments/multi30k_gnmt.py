"""English to German descriptions of pictures: experiments/multi30k.py with another model.

Paper     Wu et al. 2016
Command   s2sjax train experiments/multi30k_gnmt.py
Changes   two layers, so that none is residual: residual connections begin at the third
Hardware  one H200, shared with up to eleven other training runs; 661 to 781 s, 16,350,864 weights
Score     tokenised lower-case BLEU on test 2016 34.81, 35.46 and 35.65 (seeds 0, 1 and 2);
          docs/results.md says how the settings were chosen
"""

from pathlib import Path

from s2sjax.config import GNMT, replace
from s2sjax.runs.experiment_file import load_experiment

base = load_experiment(str(Path(__file__).with_name("multi30k.py")))
experiment = replace(
    base,
    name="multi30k_gnmt",
    model=GNMT(width=384, embedding_size=256, layers=2, dropout=0.3),
    train=replace(base.train, steps=8000, ema=0.998, r_drop=2.0),
)
