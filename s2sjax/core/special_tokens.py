"""Special tokens. Every vocabulary shares the ids of the first four."""

PAD, SOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<sos>", "<eos>", "<unk>")

CLS, MASK = "[CLS]", "[MASK]"
"""first token of a text, and replacement of a masked word; only vocabularies of pre-training have them"""


def never_written(start: int) -> tuple[int, ...]:
    """The tokens that no output contains, if the decoder reads `start` first: <pad>, and <sos> if it is `start`."""
    return (PAD, SOS) if start == SOS else (PAD,)
