"""Words of the Penn Treebank by an AWD-LSTM: three layers, tied weights, every regularisation of the paper.

Paper     Merity, Keskar and Socher 2017, Regularizing and Optimizing LSTM Language Models: 60.0 on valid
Command   s2sjax train experiments/ptb_lstm.py
Data      s2sjax data get ptb
Changes   Adam without its first moment (as Melis, Dyer and Blunsom 2017), a cosine, 64 streams and an exponential
          average of the parameters, instead of averaged SGD on 20 streams (ptb_lstm_sgd.py); bfloat16; layers are 1,152
          wide instead of 1,150, which suits the matrix units of a GPU; more dropout, since Adam overfits sooner
          (docs/systems/language-models.md)
Hardware  one H200, shared with five other training runs; 543 s, 24,273,266 weights
Score     perplexity 63.89 on valid, state carried in one stream, seed 0; the checkpoint of the last step, chosen on
          valid
"""

from s2sjax.config import PlainText, Train
from s2sjax.tasks import LanguageModel
from s2sjax.tasks.language_model import Continuation, PerplexityEvaluate, RecurrentLM

experiment = LanguageModel(
    name="ptb_lstm",
    data=PlainText(
        train="data:ptb/ptb.train.txt",
        dev="data:ptb/ptb.valid.txt",
        origin="the Penn Treebank as prepared by Mikolov et al. 2010",
        batch_size=64,
        steps=70,
    ),
    model=RecurrentLM(
        embedding_size=400, width=1152, layers=3, tie=True,
        dropout=0.3, input_dropout=0.5, output_dropout=0.5, word_dropout=0.2, weight_drop=0.6,
        activation_penalty=2.0, temporal_penalty=1.0,
    ),
    train=Train(
        steps=24_000, learning_rate=3e-3, warmup_steps=200, b1=0.0, b2=0.999, eps=1e-8, weight_decay=0.05,
        clip_norm=1.0, ema=0.999, dtype="bfloat16", log_every=200, evaluate_every=3000, save_every=3000,
    ),
    search=Continuation(temperature=0.8),
    evaluate=PerplexityEvaluate(samples=2),
    show=("the company said", "in new york"),
)  # fmt: skip
