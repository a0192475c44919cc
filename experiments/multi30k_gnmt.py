"""English to German descriptions of pictures: experiments/multi30k.py with another model.

Paper     Wu et al. 2016
Command   s2sjax train experiments/multi30k_gnmt.py
Hardware  one H200, shared with nine other trainings; 572 s, 22,255,248 weights
Score     tokenised lower-case BLEU on test 2016 27.88 (seed 0). Dropout and R-Drop were chosen by val: 27.94; with
          those of multi30k.py 21.85 at step 5,000. It fits the training part, but not val (loss 2.49)
"""

from pathlib import Path

from s2sjax.config import GNMT, replace
from s2sjax.experiment_file import load_experiment

base = load_experiment(str(Path(__file__).with_name("multi30k.py")))
experiment = replace(
    base,
    name="multi30k_gnmt",
    model=GNMT(width=384, embedding=256, layers=4, dropout=0.2),
    train=replace(base.train, r_drop=2.0),
)
