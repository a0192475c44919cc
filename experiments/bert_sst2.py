"""Sentiment of sentences about films: SST-2 as in sst2.py, by the encoder of bert_ddtp.py.

Paper     Devlin et al. 2019, section 3.2, fine-tuning
Command   s2sjax train experiments/bert_sst2.py --init runs/bert_ddtp --init-assets
          without --init and --init-assets: the same model from scratch; --model.pooling first reads [CLS] alone;
          --data.corpus.train_percent 10 uses a tenth of the labels
Data      s2sjax data get sst2: train.tsv, dev.tsv, 6,920 and 872 sentences
Hardware  one H200, shared with other training runs
Score     accuracy on dev with 1%, 10% and 100% of the labels, seed 0: 57.57%, 67.20% and 80.28% from BERT; 51.72%,
          62.73% and 77.06% from scratch. An earlier run from scratch had 51.61% and 61.01%
          Dev is evaluated once, after the last step, and is not used to choose anything.
"""

from pathlib import Path

from s2sjax.config import Text, Train
from s2sjax.runs.experiment_file import load_experiment
from s2sjax.tasks import Classification
from s2sjax.tasks.classification import LabelData, LabelledText, LabelModel

base = load_experiment(str(Path(__file__).with_name("bert_ddtp.py")))
experiment = Classification(
    name="bert_sst2",
    data=LabelData(
        LabelledText("data:sst2", dev="dev.tsv", origin="SST-2 (Socher et al. 2013)"),
        Text("subwords", normalize="nfkc_lower", size=4000),
        buckets=((32,), (64,), (128,)),
        batch_tokens=2048,
    ),
    model=LabelModel(base.model.encoder, "mean", dropout=0.3, initial=1.0),
    train=Train(steps=600, learning_rate=3e-4, warmup_steps=60, weight_decay=0.01, evaluate_every=600, save_every=600),
)
