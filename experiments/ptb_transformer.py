"""Words of the Penn Treebank by a small Transformer, for comparison with the LSTM of ptb_lstm.py.

Paper     Vaswani et al. 2017; Radford et al. 2018, who train the decoder alone
Command   s2sjax train experiments/ptb_transformer.py
Data      s2sjax data get ptb
Hardware  one H200, shared with four other training runs; 208 s, 17,748,754 weights
Score     perplexity 83.55 on valid, windows of 128 with a context of 96, seed 0; the checkpoint of step 4,500, chosen
          on valid
"""

from s2sjax.config import PlainText, Train
from s2sjax.tasks import LanguageModel
from s2sjax.tasks.language_model import Continuation, PerplexityEvaluate, TransformerLM

experiment = LanguageModel(
    name="ptb_transformer",
    data=PlainText(
        train="data:ptb/ptb.train.txt",
        dev="data:ptb/ptb.valid.txt",
        origin="the Penn Treebank as prepared by Mikolov et al. 2010",
        batch_size=64,
        steps=128,
    ),
    model=TransformerLM(width=512, heads=8, feedforward=1024, layers=6, dropout=0.4, word_dropout=0.2),
    train=Train(
        steps=10_000, learning_rate=5e-4, warmup_steps=1000, weight_decay=0.1, ema=0.999, dtype="bfloat16",
        log_every=200, evaluate_every=500, save_every=500,
    ),
    search=Continuation(temperature=0.8),
    evaluate=PerplexityEvaluate(context=96),
    show=("the company said", "in new york"),
)  # fmt: skip
