"""Characters of the Penn Treebank by an LSTM: 5,017,482 of them, line ends included, of 50 types.

Paper     Merity, Keskar and Socher 2018, An Analysis of Neural Language Modeling at Multiple Scales: 1.175 bits per
          character on the test part, with layers 1,000 wide
Command   s2sjax train experiments/ptb_characters.py
Data      s2sjax data get ptb
Changes   Evaluations during training read 16 streams; to read the text from beginning to end in one:
          s2sjax evaluate runs/ptb_characters --evaluate.streams 1
Hardware  one H200, shared with eight other training runs; 473 s, 22,100,277 weights
Score     1.3476 bits per character on valid, state carried in 16 streams, seed 0; the last checkpoint
"""

from s2sjax.config import PlainText, Train
from s2sjax.tasks import LanguageModel
from s2sjax.tasks.language_model import Continuation, PerplexityEvaluate, RecurrentLM

experiment = LanguageModel(
    name="ptb_characters",
    data=PlainText(
        train="data:ptb/ptb.train.txt",
        dev="data:ptb/ptb.valid.txt",
        origin="the Penn Treebank as prepared by Mikolov et al. 2010",
        unit="characters",
        batch_size=128,
        steps=150,
    ),
    model=RecurrentLM(
        embedding_size=256, width=1024, layers=3, tie=False,
        dropout=0.25, input_dropout=0.1, output_dropout=0.1, weight_drop=0.5,
    ),
    train=Train(
        steps=14_000, learning_rate=2.7e-3, warmup_steps=200, b1=0.0, b2=0.999, eps=1e-8, weight_decay=1e-4,
        clip_norm=1.0, ema=0.999, dtype="bfloat16", log_every=200, evaluate_every=2000, save_every=2000,
    ),
    search=Continuation(temperature=0.7, max_length=120),
    evaluate=PerplexityEvaluate(streams=16, context=512),
    show=("the company said", "in new york"),
)  # fmt: skip
