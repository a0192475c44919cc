"""Parts of speech of English web text: experiments/ud_pos.py with a Transformer.

Paper     Vaswani et al. 2017, the encoder alone, a dense layer above it
Command   s2sjax train experiments/ud_pos_transformer.py
Hardware  one H200, shared with six other training runs; 313 s, 3,748,937 weights
Score     accuracy 93.49% on the official dev part, seed 0; if padding counted as right: 98.91%
"""

from pathlib import Path

from s2sjax.config import Transformer, replace
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.tasks.tagging import TaggerModel

base = load_experiment(str(Path(__file__).with_name("ud_pos.py")))
experiment = replace(
    base,
    name="ud-pos-transformer",
    model=TaggerModel(
        Transformer(
            width=256, heads=4, feedforward=1024, encoder_layers=3, norm="pre", positions="relative", dropout=0.3
        ),
        spelling_width=100,
        word_dropout=0.1,
    ),
    train=replace(base.train, learning_rate=1e-3),
)
