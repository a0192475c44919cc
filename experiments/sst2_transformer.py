"""SST-2 as in sst2.py, read by a Transformer (Vaswani et al. 2017), pooled by attention with a learned query.

Command   s2sjax train experiments/sst2_transformer.py      (--model.pooling mean or max for the others)
Hardware  one x86 core, no accelerator; 78 s, 1,020,674 weights
Score     accuracy 77.29%, macro F1 77.29%, for seed 0
"""

from pathlib import Path

from s2sjax.config import Transformer, replace
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.tasks.classification import LabelModel

experiment = replace(
    load_experiment(str(Path(__file__).with_name("sst2.py"))),
    name="sst2_transformer",
    model=LabelModel(
        Transformer(width=64, heads=4, feedforward=128, encoder_layers=2, norm="pre", dropout=0.3),
        "attention",
        dropout=0.5,
        initial=0.3,
        word_dropout=0.2,
    ),
)
