"""Six classes of questions (TREC, Li and Roth 2002): convolutions of several widths, the maximum over time (Kim 2014).

Command   s2sjax train experiments/trec.py
Score     not measured yet
"""

from s2sjax.config import LabelData, LabelledText, LabelModel, Text, Train
from s2sjax.models.ngrams import NGrams
from s2sjax.tasks import Classification

experiment = Classification(
    name="trec",
    data=LabelData(
        LabelledText(
            "../data/trec",
            dev_percent=10.0,
            columns=("text", "label", "fine"),
            origin="TREC questions (Li and Roth 2002)",
        ),
        Text("words", normalize="nfkc_lower"),
        buckets=((12,), (20,), (40,)),
        tokens=640,
    ),
    model=LabelModel(NGrams(embedding=128, kernels=(1, 2, 3), filters=100, dropout=0.3), "max", dropout=0.5),
    train=Train(steps=1000, learning_rate=1e-3, warmup=50, evaluate_every=100, save_every=500),
)
