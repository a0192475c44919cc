"""Grapheme-to-phoneme conversion with the same budget for every model. The other files here replace the model.

Paper     Bahdanau, Cho and Bengio 2014, "Neural machine translation by jointly learning to align and translate":
          a bidirectional GRU encoder; every decoder step attends to the letters.
Budget    5,000 updates of about 4,096 tokens, one learning rate for all, dropout 0.1, an average of the parameters,
          about 450,000 weights. Dev chooses the checkpoint. Nothing was tuned for any model.
Command   s2sjax train experiments/systems/rnnsearch.py
          s2sjax sweep experiments/systems/*.py --seed 0,1,2,3,4 --name systems-pronunciation      trains all
Table     docs/systems/comparison.md, written by: python experiments/systems_table.py
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
        batch_tokens=4096,
    ),
    model=RNNsearch(width=128, embedding_size=64, dropout=0.1),
    train=Train(
        steps=5000, learning_rate=2e-3, warmup_steps=400, ema=0.999, log_every=500, evaluate_every=1000, save_every=1000
    ),
    search=Search(beam_size=4, length_penalty="mean"),
    evaluate=Evaluate(metrics=("per", "wer"), target_unit="word", dev_examples=3000, batch_size=512, samples=0),
)
