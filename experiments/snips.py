"""Slots and intents of requests to an assistant: a bidirectional LSTM with a conditional random field for the slots,
and a second head for the intent of the sentence.

Papers    Goo et al. 2018 (the split, the joint task); Huang et al. 2015 (the random field); data: Snips (Coucke et
          al. 2018), 72 slot tags, 7 intents
Command   s2sjax train experiments/snips.py
Data      s2sjax data get snips: train.tsv, of which 5% are used to choose the checkpoint, and dev.tsv, the published
          dev part, which is scored at the end as `test`
Hardware  one H200, shared with six other training runs; 262 s, 1,287,411 weights
Score     slot F1 93.95%, intent accuracy 98.71%, whole sentences 84.86% on the published dev part, seed 0
"""

from s2sjax.config import Luong, Train
from s2sjax.tasks import Tagging
from s2sjax.tasks.tagging import TagData, TagEvaluate, TaggedFiles, TaggerModel

experiment = Tagging(
    name="snips",
    data=TagData(
        TaggedFiles(
            "data:snips",
            test="dev.tsv",
            dev_percent=5.0,
            origin="Snips (Coucke et al. 2018) in the split of Goo et al. 2018",
        ),
        buckets=((12,), (20,), (36,)),
        batch_tokens=768,
    ),
    model=TaggerModel(
        Luong(width=400, embedding_size=228, layers=1, bidirectional=True, dropout=0.4),
        spelling_width=100,
        word_dropout=0.1,
        crf=True,
        intent=1.0,
    ),
    train=Train(steps=5000, learning_rate=2e-3, warmup_steps=200, log_every=100, evaluate_every=500, save_every=500),
    evaluate=TagEvaluate(("f1", "precision", "recall", "intent", "sentence", "accuracy", "padded")),
)
