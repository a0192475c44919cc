"""English to German descriptions of pictures: experiments/multi30k.py with another model.

Paper     Gehring et al. 2017
Command   s2sjax train experiments/multi30k_convs2s.py
Hardware  one H200, shared with nine other training runs; 274 to 418 s, 12,566,048 weights
Score     tokenised lower-case BLEU on test 2016 40.13, 40.04 and 40.48 (seeds 0, 1 and 2)
"""

from pathlib import Path

from s2sjax.config import ConvS2S, replace
from s2sjax.runs.experiment_file import load_experiment

base = load_experiment(str(Path(__file__).with_name("multi30k.py")))
experiment = replace(
    base,
    name="multi30k_convs2s",
    model=ConvS2S(
        embedding_size=256, encoder_layers=((256, 3),) * 6, decoder_layers=((256, 3),) * 4, max_length=256, dropout=0.3
    ),
    train=replace(base.train, steps=8000, ema=0.998),
)
