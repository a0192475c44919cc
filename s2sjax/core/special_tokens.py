"""Special tokens. Every vocabulary shares the ids of the first four."""

PAD, SOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<sos>", "<eos>", "<unk>")

CLS, MASK = "[CLS]", "[MASK]"
"""first token of a text, and replacement of a masked word; only vocabularies of pre-training have them"""
