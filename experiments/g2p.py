"""Spelling to sound: a grapheme-to-phoneme model on the CMU pronouncing dictionary, on a CPU in minutes."""

from s2sjax.config import Cmudict, Data, Evaluate, Experiment, Luong, Search, Text, Train

experiment = Experiment(
    name="g2p",
    data=Data(
        corpus=Cmudict(),
        target=Text("words"),
        buckets=((8, 8), (11, 11), (16, 17)),
        tokens=1536,
    ),
    model=Luong(width=256, embedding=64, layers=1, bidirectional=True, input_feeding=False, dropout=0.0),
    train=Train(steps=3000, learning_rate=3e-3, warmup=100, clip=1.0, evaluate_every=1000, save_every=1000, ema=0.995),
    search=Search(beam=4),
    evaluate=Evaluate(metrics=("per", "wer"), line="word", lines=500),
    show=("sequence", "jaxon", "transformerly", "zuckonomics", "fluxerated"),
)
