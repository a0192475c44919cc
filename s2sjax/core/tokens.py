"""The ids that every vocabulary shares."""

PAD, SOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<sos>", "<eos>", "<unk>")

CLS, MASK = "[CLS]", "[MASK]"
"""what a text begins with, and what stands for a hidden word; only vocabularies of pre-training have their ids"""
