"""English to French debates of the Canadian parliament: a model whose attention is compared with word aligners.

Paper     Bahdanau, Cho and Bengio 2014, "Neural machine translation by jointly learning to align and translate": the
          attention as a soft alignment; Och and Ney 2000, "Improved statistical alignment models": the gold links.
Data      s2sjax data get hansards: train.tsv.gz (English, tab, French), test.text.tsv (the same), dev.tsv (a third
          column: links)
Commands  s2sjax train experiments/hansards.py
          s2sjax align data:hansards/dev.tsv --run runs/hansards --gold data:hansards/dev.tsv --out attention.links
          s2sjax align data:hansards/dev.tsv --add data:hansards/train.tsv.gz --add data:hansards/test.text.tsv
              --gold data:hansards/dev.tsv --out hmm.links           the aligners on the same sentences, on a CPU
Hardware  one H200, shared with eight other training runs; 420 s, 13,236,032 weights
Score     BLEU 23.30 (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0), seed 0. Alignment error rate of the
          attention 56.4% on the 37 dev sentences; those of the aligners are in docs/alignment.md

BLEU on the text of the test part, which has no links here, selects the checkpoint.
"""

from s2sjax.config import Data, Evaluate, RNNsearch, Search, Text, TextFiles, Train
from s2sjax.tasks import Translation

experiment = Translation(
    name="hansards",
    data=Data(
        corpus=TextFiles(train=("data:hansards/train.tsv.gz",), dev=("data:hansards/test.text.tsv",)),
        source=Text("subwords", size=8000),
        target=Text("subwords", size=8000),
        buckets=((12, 14), (20, 24), (36, 40)),
        batch_tokens=16_384,
    ),
    model=RNNsearch(width=512, embedding_size=256, dropout=0.2),
    train=Train(
        steps=4000,
        learning_rate=1e-3,
        warmup_steps=400,
        dtype="bfloat16",
        evaluate_every=1000,
        save_every=1000,
    ),
    search=Search(beam_size=4, length_penalty="mean"),
    evaluate=Evaluate(metrics=("bleu",)),
    show=("the house met at ten .", "i thank the honourable member for his question ."),
)
