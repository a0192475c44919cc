"""Parts of speech of English web text: experiments/ud_pos.py with dense layers that see a window of five words.

Paper     Collobert et al. 2011, "Natural language processing (almost) from scratch": the window approach
Command   s2sjax train experiments/ud_pos_dense.py
Hardware  one H200, shared with six other training runs; 192 s, 1,987,541 weights
Score     accuracy 94.82% on the official dev part, seed 0; if padding counted as right: 99.13%
"""

from pathlib import Path

from s2sjax.config import DenseDense, replace
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.tasks.tagging import TaggerModel

experiment = replace(
    load_experiment(str(Path(__file__).with_name("ud_pos.py"))),
    name="ud-pos-dense",
    model=TaggerModel(
        DenseDense(width=512, embedding_size=228, window=5, encoder_layers=2, dropout=0.4),
        spelling_width=100,
        word_dropout=0.1,
    ),
)
