"""Text in, batches out: sources -> text -> batches.

sources.py      examples of a corpus, split by split
synthetic.py    examples made on the fly
tfds.py         examples of TensorFlow Datasets, without TensorFlow
text.py         text to ids and back
columns.py      examples as named columns, ragged or dense
batches.py      the batch at step t, a pure function of (data, seed, t)
pairs.py        text pairs as columns, raw or prepared
mixtures.py     the same for several corpora at once
packing.py      several short pairs in one row
parts.py        pairs whose targets have few different words, together
segmentation.py subwords drawn at random
prepare.py      all of it done once, into a folder
records.py      that folder, which training only reads
"""

import hashlib
from typing import Literal, NamedTuple

Split = Literal["train", "dev", "test"]


class Example(NamedTuple):
    """A source text and the texts that are right answers to it, the best known first."""

    source: str
    targets: tuple[str, ...]
    corpus: int = 0
    """which of the corpora of a mixture it is from"""


def split_of(text: str, dev_percent: float, test_percent: float) -> Split:
    """The only split that may hold `text`, from its SHA-256 in 10,000 buckets: test first, then dev, then train.

    It depends on the text alone, so no text is in two splits, on any machine, whatever else the corpus holds.
    """
    bucket = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10_000
    if bucket < round(100 * test_percent):
        return "test"
    return "dev" if bucket < round(100 * test_percent) + round(100 * dev_percent) else "train"
