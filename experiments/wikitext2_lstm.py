"""Words of WikiText-2, case and punctuation included, by an AWD-LSTM.

Paper     Merity, Keskar and Socher 2017: 68.6 on valid
Command   s2sjax train experiments/wikitext2_lstm.py
Data      s2sjax data get wikitext2
Changes   those of ptb_lstm.py, and less dropout of the word vectors. Evaluations during training read eight streams;
          to read the text from beginning to end in one: s2sjax evaluate runs/wikitext2_lstm --evaluate.streams 1
Hardware  one H200, shared with eight other training runs; 502 s, 33,607,744 weights
Score     perplexity 71.86 on valid, state carried in 8 streams with a context of 512, seed 0; the checkpoint of step
          27,000, chosen on valid
"""

from s2sjax.config import PlainText, Train
from s2sjax.tasks import LanguageModel
from s2sjax.tasks.language_model import Continuation, PerplexityEvaluate, RecurrentLM

experiment = LanguageModel(
    name="wikitext2_lstm",
    data=PlainText(
        train="data:wikitext2/wiki.train.txt.gz",
        dev="data:wikitext2/wiki.valid.txt",
        origin="WikiText-2 (Merity et al. 2016)",
        batch_size=80,
        steps=70,
    ),
    model=RecurrentLM(
        embedding_size=400, width=1152, layers=3, tie=True,
        dropout=0.2, input_dropout=0.5, output_dropout=0.4, word_dropout=0.1, weight_drop=0.5,
        activation_penalty=2.0, temporal_penalty=1.0,
    ),
    train=Train(
        steps=30_000, learning_rate=3e-3, warmup_steps=200, b1=0.0, b2=0.999, eps=1e-8, weight_decay=0.05,
        clip_norm=1.0, ema=0.999, dtype="bfloat16", log_every=200, evaluate_every=3000, save_every=3000,
    ),
    search=Continuation(temperature=0.8),
    evaluate=PerplexityEvaluate(streams=8, context=512),
    show=("The game was", "In 1990 ,"),
)  # fmt: skip
