"""English to German sentences of Tatoeba: a medium-size translation experiment.

Paper     Vaswani et al. 2017
Command   s2sjax train experiments/tatoeba_en_de.py
Data      s2sjax data get tatoeba: deu.train.tsv, 162,953 pairs, of which 2% of the sources are used to choose the
          checkpoint; deu.dev.tsv, 3,083 pairs, is scored at the end as `test`, each with its one translation
Hardware  one H200, shared with up to ten other training runs; 851 s, 19,637,760 weights
Score     BLEU 45.36, chrF2 63.33 (seed 0). Nothing was tuned
"""

from s2sjax.config import Data, Evaluate, Search, Text, TextFiles, Train, Transformer
from s2sjax.tasks import Translation

subwords = Text("subwords", size=8000)
experiment = Translation(
    name="tatoeba_en_de",
    data=Data(
        TextFiles(("data:tatoeba/deu.train.tsv",), test=("data:tatoeba/deu.dev.tsv",), dev_percent=2),
        source=subwords,
        target=subwords,
        shared=True,
        buckets=((12, 12), (20, 20), (36, 36)),
        batch_tokens=16_384,
    ),
    model=Transformer(
        width=384, heads=6, feedforward=1536, encoder_layers=4, decoder_layers=4, norm="pre", tie="all", dropout=0.2
    ),
    train=Train(
        steps=12_000, learning_rate=1e-3, warmup_steps=1000, label_smoothing=0.1, ema=0.999, dtype="bfloat16",
        log_every=200, evaluate_every=1500, save_every=1500,
    ),
    search=Search(beam_size=5),
    evaluate=Evaluate(metrics=("bleu", "chrf"), dev_examples=1000, batch_size=256, samples=0),
    show=("Where is the train station?", "I would like to learn German."),
)  # fmt: skip
