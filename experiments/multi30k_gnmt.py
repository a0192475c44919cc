"""English to German descriptions of pictures: experiments/multi30k.py with another model.

Paper     Wu et al. 2016
Command   s2sjax train experiments/multi30k_gnmt.py
Score     tokenised lower-case BLEU 21.85 on val at step 5,000 of 8,000, seed 0: too much dropout; the settings are not
          final
"""

from pathlib import Path

from s2sjax.config import GNMT, replace
from s2sjax.experiment_file import load_experiment

base = load_experiment(str(Path(__file__).with_name("multi30k.py")))
experiment = replace(
    base,
    name="multi30k_gnmt",
    model=GNMT(width=384, embedding=256, layers=4, dropout=0.4),
)
