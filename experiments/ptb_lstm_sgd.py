"""Words of the Penn Treebank by an AWD-LSTM, trained by SGD, and the mean of its parameters at the end.

Paper     Merity, Keskar and Socher 2017, Regularizing and Optimizing LSTM Language Models: 60.0 on valid
Command   s2sjax train experiments/ptb_lstm_sgd.py
Changes   75 epochs, a tenth of the paper's; the mean begins at a fixed step, not when the perplexity stops falling;
          segments of 70 words, not of about 70; bfloat16; layers are 1,152 wide instead of 1,150
Score     not measured yet
"""

from s2sjax.config import Continuation, PlainText, RecurrentLM, Train
from s2sjax.tasks import LanguageModel

experiment = LanguageModel(
    name="ptb_lstm_sgd",
    data=PlainText(
        train="../data/ptb/ptb.train.txt",
        dev="../data/ptb/ptb.valid.txt",
        origin="the Penn Treebank as prepared by Mikolov et al. 2010",
        rows=20,
        steps=70,
    ),
    model=RecurrentLM(
        embedding=400, width=1152, layers=3, tie=True,
        dropout=0.25, input_dropout=0.4, output_dropout=0.4, word_dropout=0.1, weight_drop=0.5,
        activation_penalty=2.0, temporal_penalty=1.0,
    ),
    train=Train(
        steps=50_000, optimizer="sgd", learning_rate=30.0, schedule="constant", warmup=0, weight_decay=1.2e-6,
        clip=0.25, average_from=30_000, dtype="bfloat16", log_every=500, evaluate_every=2500, save_every=2500,
    ),
    search=Continuation(temperature=0.8),
    show=("the company said", "in new york"),
)  # fmt: skip
