"""Grapheme-to-phoneme conversion on the CMU pronouncing dictionary: spelling in, pronunciation out.

Paper     Bahdanau, Cho and Bengio 2014, "Neural machine translation by jointly learning to align and translate":
          a bidirectional GRU encoder over the letters, a GRU decoder with attention for the phones.
Command   make run      (or: s2sjax train experiments/g2p.py)
Hardware  2 ARM cores as two devices, no accelerator
Time      4 min 45 s with the installation
Score     PER 8.89%, WER 36.56% on the 6,244 test words (closest of several pronunciations, beam 4, no stress marks);
          with --train.steps 4500: PER 6.86%, WER 28.73%; docs/results.md says how the settings were chosen

The path of one example through the model, in a batch of B words of the first bucket:

    "seven"                                    the spelling
    s e v e n <eos> <pad>       [B, 7]         ids of 33 letters and special tokens
    embedded letters            [B, 7, 48]
    encoder states              [B, 7, 256]    a GRU of width 128 in each direction
    attention, for each phone   [B, 7]         weights of the encoder states; their mean is the context [B, 256]
    decoder states              [B, 6, 128]    a GRU that reads the previous phone and the context
    logits                      [B, 6, 43]     43 phones and special tokens; the loss compares them with the target
    S EH V AH N <eos>           [B, 6]         the pronunciation: the target, or the output of beam search
"""

from s2sjax.config import Cmudict, Data, Evaluate, RNNsearch, Search, Text, Train
from s2sjax.tasks import Translation

experiment = Translation(
    name="g2p",
    data=Data(
        corpus=Cmudict(),
        source=Text("characters"),
        target=Text("words"),  # phones separated by spaces
        # Four programs to compile; 86% of the positions that they compute are tokens, the rest padding.
        buckets=((7, 6), (9, 8), (12, 11), (16, 17)),
        batch_tokens=2048,
    ),
    model=RNNsearch(width=128, embedding_size=48, attention_size=64, dropout=0.0),
    train=Train(
        steps=1200,
        learning_rate=4e-3,
        schedule="linear",
        label_smoothing=0.05,
        ema=0.998,
        warmup_steps=100,
        log_every=100,
        evaluate_every=600,
        save_every=500,
    ),
    search=Search(beam_size=4, length_penalty="mean"),
    evaluate=Evaluate(metrics=("per", "wer"), target_unit="word", dev_examples=1024, batch_size=128),
    show=("jaxon", "brexiteer", "transformerish", "zuckonomics", "glimflorp", "schwarzwaldine"),
)
