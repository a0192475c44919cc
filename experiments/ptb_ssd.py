"""Words of the Penn Treebank by Mamba-2's recurrence with local attention, which keep their state as ptb_lstm.py does.

Papers    Dao and Gu 2024, Transformers are SSMs (Mamba-2); De et al. 2024 (Griffin), for the pattern: two recurrences,
          then local attention
Command   s2sjax train experiments/ptb_ssd.py
Data      s2sjax data get ptb
Score     not measured yet; add the hardware, the time, the number of weights, and the perplexity on valid.
"""

from s2sjax.config import PlainText, Train
from s2sjax.tasks import LanguageModel
from s2sjax.tasks.language_model import Continuation, HybridLM

experiment = LanguageModel(
    name="ptb_ssd",
    data=PlainText(
        train="data:ptb/ptb.train.txt",
        dev="data:ptb/ptb.valid.txt",
        origin="the Penn Treebank as prepared by Mikolov et al. 2010",
        batch_size=64,
        steps=128,
    ),
    model=HybridLM(
        width=512, heads=8, feedforward=1024, layers=6, mixers=("ssd", "ssd", "local_attention"), window=128,
        dropout=0.4, word_dropout=0.2,
    ),
    train=Train(
        steps=10_000, learning_rate=5e-4, warmup_steps=1000, weight_decay=0.1, ema=0.999, dtype="bfloat16",
        log_every=200, evaluate_every=500, save_every=500,
    ),
    search=Continuation(temperature=0.8),
    show=("the company said", "in new york"),
)  # fmt: skip
