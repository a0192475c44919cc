"""Reverse a string: the smallest complete experiment.

Command   s2sjax train experiments/reverse.py
"""

from s2sjax.config import Data, Evaluate, Luong, Search, Synthetic, Train
from s2sjax.tasks import Translation

experiment = Translation(
    name="reverse",
    data=Data(corpus=Synthetic("reverse", alphabet=26), buckets=((11, 11),), batch_tokens=1408),
    model=Luong(width=64, embedding_size=32, layers=1, bidirectional=True, dropout=0.0),
    train=Train(steps=600, learning_rate=5e-3, warmup_steps=50, evaluate_every=200, save_every=200),
    search=Search(beam_size=2),
    evaluate=Evaluate(metrics=("exact", "cer"), dev_examples=200),
    show=("abcdef", "reverse"),
)
