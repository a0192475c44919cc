"""English to German: Transformer-base on WMT 2014, for several GPUs or a TPU pod.

Paper     Vaswani et al. 2017, "Attention is all you need": BLEU 27.3 on newstest2014 (their table 2, their scoring).
Commands  s2sjax plan experiments/wmt.py --devices 16 --chip v6e --source-size 37000 --target-size 37000
          s2sjax prepare experiments/wmt.py           once; downloads and writes tens of gigabytes
          s2sjax train experiments/wmt.py             on each host with --distributed: see docs/pod.md
Score     not measured yet; add the hardware, the time, and the score with its signature.
"""

from s2sjax.config import Data, Evaluate, Prepared, Search, Text, Tfds, Train, Transformer
from s2sjax.tasks import Translation

subwords = Text("subwords", size=37_000)
experiment = Translation(
    name="wmt",
    data=Data(
        corpus=Prepared("../prepared/wmt", Tfds("wmt14_translate/de-en", source="en", target="de")),
        source=subwords,
        target=subwords,
        shared=True,
        buckets=((16, 16), (32, 32), (64, 64), (128, 128)),
        batch_tokens=50_000,  # source and target together, like the paper's 25,000 of each
    ),
    model=Transformer(width=512, heads=8, feedforward=2048, encoder_layers=6, decoder_layers=6, dropout=0.1, tie="all"),
    train=Train(
        steps=100_000,
        schedule="inverse_sqrt",
        learning_rate=7e-4,  # the peak of the paper's schedule: 512^-0.5 x 4000^-0.5
        warmup_steps=4000,
        label_smoothing=0.1,
        clip_norm=0.0,
        dtype="bfloat16",
        evaluate_every=5000,
        save_every=1000,
        max_to_keep=5,
    ),
    search=Search(beam_size=4, length_penalty="gnmt", alpha=0.6),
    evaluate=Evaluate(metrics=("bleu", "chrf")),
)
