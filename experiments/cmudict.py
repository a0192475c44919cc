"""Spelling to phones on the published split of the CMU dictionary, by a Transformer.

Paper     Vaswani et al. 2017; cmusphinx/g2p-seq2seq, a Transformer of 3 x 256: 20.6% of the words wrong
Command   s2sjax train experiments/cmudict.py
Data      s2sjax data get cmudict: train.tsv, of which 2% of the words are used to choose the checkpoint, and test.tsv,
          12,000 words
Hardware  one H200, shared with up to eleven other training runs; 248 to 409 s, 22,129,195 weights
Score     20.32%, 20.66% and 20.70% of the test words wrong (seeds 0, 1 and 2); the three as an ensemble 19.59%;
          docs/results.md says how the settings were chosen
"""

from s2sjax.config import Data, Evaluate, Search, Text, TextFiles, Train, Transformer
from s2sjax.tasks import Translation

experiment = Translation(
    name="cmudict",
    data=Data(
        TextFiles(("data:cmudict/train.tsv",), test=("data:cmudict/test.tsv",), dev_percent=2),
        source=Text("characters"),
        target=Text("words"),
        buckets=((8, 8), (11, 11), (16, 16), (34, 34)),
        batch_tokens=8192,
    ),
    model=Transformer(
        width=512, heads=8, feedforward=2048, encoder_layers=3, decoder_layers=3, norm="post", tie="none", dropout=0.2
    ),
    train=Train(
        steps=14_000, schedule_steps=18_000, learning_rate=5e-4, warmup_steps=1000, label_smoothing=0.1, r_drop=1.0,
        ema=0.999, dtype="bfloat16",
        log_every=500, evaluate_every=2000, save_every=2000,
    ),
    search=Search(beam_size=5),
    evaluate=Evaluate(metrics=("wer", "per"), target_unit="word", dev_examples=2500, batch_size=512, samples=0),
    show=("JAXON", "ZUCKONOMICS"),
)  # fmt: skip
