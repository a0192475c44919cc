"""Grapheme-to-phoneme conversion with the same budget for every model. The other files here replace the model.

Paper     Bahdanau, Cho and Bengio 2014, "Neural machine translation by jointly learning to align and translate":
          a bidirectional GRU encoder; every decoder step attends to the letters.
Budget    1,000 updates of about 1,024 tokens, one learning rate for all, about 450,000 weights, one seed, no dropout.
          Nothing was tuned for any model, so the table compares first tries.
Command   s2sjax train experiments/systems/rnnsearch.py
Table     docs/systems.md, printed by: python experiments/systems/table.py
"""

from s2sjax.config import Cmudict, Data, Evaluate, RNNsearch, Search, Text, Train
from s2sjax.tasks import Translation

experiment = Translation(
    name="systems-rnnsearch",
    data=Data(
        corpus=Cmudict(),
        source=Text("characters"),
        target=Text("words"),  # phones, separated by spaces
        buckets=((9, 9), (16, 17)),
        tokens=1024,
    ),
    model=RNNsearch(width=128, embedding=64, dropout=0.0),
    train=Train(steps=1000, learning_rate=2.5e-3, warmup=100, log_every=250, evaluate_every=0, save_every=1000),
    search=Search(beam=4, penalty="mean"),
    evaluate=Evaluate(metrics=("per", "wer"), line="word", rows=128),
)
