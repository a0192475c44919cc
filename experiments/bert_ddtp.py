"""A small BERT on descriptions of software packages, from which other models start.

Paper     Devlin et al. 2019, "BERT: pre-training of deep bidirectional Transformers for language understanding"
Command   s2sjax train experiments/bert_ddtp.py
          echo 'This package contains the [MASK] for developers.' | s2sjax decode runs/bert_ddtp
          bert_sst2.py, bert_ud_pos.py and bert_en_de.py start from it; bert_shares.py compares with and without
Data      data:ddtp, descriptions.en.txt.gz: 83,380 paragraphs, 2.1 million words; dev: 1,740 paragraphs. Lower case.
Hardware  one H200, shared with two other training runs; 219 s, 5,348,418 weights
Score     46.58% of the chosen words of dev, a tenth of which are not masked; perplexity 21.57
          (unit:subwords|vocabulary:8000|words:9625); next sentence 92.12%; seed 0
"""

from s2sjax.config import Text, Train, Transformer
from s2sjax.tasks import Pretraining
from s2sjax.tasks.pretraining import BertEvaluate, BertModel, Paragraphs

experiment = Pretraining(
    name="bert_ddtp",
    data=Paragraphs(
        train="data:ddtp/descriptions.en.txt.gz",
        dev="data:ddtp/descriptions.dev.en.txt.gz",
        origin="the Debian Description Translation Project",
        text=Text("subwords", normalize="nfkc_lower", size=8000),
        buckets=((32,), (64,), (96,), (128,)),
        batch_tokens=16_384,
    ),
    model=BertModel(
        Transformer(width=256, heads=4, feedforward=1024, encoder_layers=4, decoder_layers=4, norm="pre", dropout=0.1)
    ),
    train=Train(
        steps=20_000, learning_rate=1e-3, warmup_steps=1000, weight_decay=0.01, dtype="bfloat16",
        log_every=200, evaluate_every=2000, save_every=2000,
    ),
    evaluate=BertEvaluate(dev_examples=2000),
)  # fmt: skip
