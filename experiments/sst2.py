"""Sentiment of sentences about films: SST-2 (Socher et al. 2013), whole sentences only, from scratch.

The mean of the features of words, pairs and triples: convolutions as in Kim 2014, averaged as in Iyyer et al. 2015.

Command   s2sjax train experiments/sst2.py          (--seed 1, --seed 2 for others)
          sst2_gru.py and sst2_transformer.py are the same with other encoders
Data      s2sjax data get sst2: train.tsv, dev.tsv, 6,920 and 872 sentences. Settings were chosen on a tenth of train:
          --data.corpus.dev "" --data.corpus.dev_percent 10
Hardware  one x86 core, no accelerator; 32 s, 974,402 weights
Score     accuracy 77.64%, 80.28%, 78.56% for seeds 0, 1, 2: 78.8% on average
          Dev is evaluated once, after the last step, and is not used to choose anything.
"""

from s2sjax.config import Text, Train
from s2sjax.models.families.ngram_cnn import NGrams
from s2sjax.tasks import Classification
from s2sjax.tasks.classification import LabelData, LabelledText, LabelModel

experiment = Classification(
    name="sst2",
    data=LabelData(
        LabelledText("data:sst2", dev="dev.tsv", origin="SST-2 (Socher et al. 2013)"),
        Text("words", normalize="nfkc_lower"),
        buckets=((16,), (32,), (64,)),
        batch_tokens=1536,
    ),
    model=LabelModel(
        NGrams(embedding_size=64, kernels=(1, 2, 3), filters=64, dropout=0.5),
        "mean",
        dropout=0.5,
        initial=0.03,
        word_dropout=0.3,
    ),
    train=Train(steps=500, learning_rate=2e-3, warmup_steps=50, evaluate_every=500, save_every=500),
)
