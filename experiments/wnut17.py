"""Named entities in noisy text: rare and emerging names in posts, from little data, without pre-training.

Papers    Derczynski et al. 2017 (the shared task and its data, 6 types of entities); Ma and Hovy 2016 (characters,
          bidirectional LSTM, conditional random field)
Command   s2sjax train experiments/wnut17.py
Data      s2sjax data get wnut17: train.tsv, of which 10% are used to choose the checkpoint, and dev.tsv, the official
          dev part, which is scored at the end as `test`
Hardware  one H200, shared with six other training runs; 192 s, 574,600 weights
Score     entity F1 23.20% (precision 49.03%, recall 15.19%) on the official dev part, seed 0
"""

from s2sjax.config import Luong, Train
from s2sjax.tasks import Tagging
from s2sjax.tasks.tagging import TagData, TagEvaluate, TaggedFiles, TaggerModel

experiment = Tagging(
    name="wnut17",
    data=TagData(
        TaggedFiles(
            "data:wnut17", test="dev.tsv", dev_percent=10.0, origin="WNUT 2017 shared task (Derczynski et al. 2017)"
        ),
        buckets=((16,), (32,), (48,)),
        batch_tokens=512,
    ),
    model=TaggerModel(
        Luong(width=200, embedding_size=164, layers=1, bidirectional=True, dropout=0.5),
        spelling_width=64,
        word_dropout=0.2,
        crf=True,
    ),
    train=Train(steps=2000, learning_rate=2e-3, warmup_steps=100, log_every=100, evaluate_every=200, save_every=200),
    evaluate=TagEvaluate(("f1", "precision", "recall", "accuracy", "padded")),
)
