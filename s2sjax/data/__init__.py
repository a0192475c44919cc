"""The data pipeline, from text to batches: sources -> text -> columns -> batches.

sources.py      examples of a corpus, split by split
tables.py       text files by line, TSV
signals.py      frames and their labels; strings of pieces
audio.py        recordings and their log-mel features
spoken.py       corpora of recordings
written.py      corpora of written digits
label_models.py the alphabet and the n-gram model of labels
synthetic.py    generated examples
labels.py       examples with a label
assets.py       labels and statistics of the training data
memory.py       examples given in memory, and their copies in a run folder
tfds.py         examples of TensorFlow Datasets, without TensorFlow
text.py         text to ids and back
columns.py      examples as named columns, ragged or dense
batches.py      the rows that form the batch at step t
pairs.py        text pairs as columns, raw or prepared
tagged.py       sentences with a tag for each word
paragraphs.py   lines as pairs of texts, for pre-training
mixtures.py     batches drawn from several corpora
packing.py      several short pairs in one row
parts.py        a training set split into parts with few distinct target words
segmentation.py random subword segmentation
prepare.py      encodes a corpus once, into a folder
records.py      reads that folder
remarks.py      notes on suspicious data; examples that two splits share
"""

import hashlib
from typing import Literal, NamedTuple

Split = Literal["train", "dev", "test"]


class Example(NamedTuple):
    """A source text and its correct target texts, the preferred one first."""

    source: str
    targets: tuple[str, ...]
    corpus: int = 0
    """index of the corpus in a mixture"""


def in_share(text: str, percent: float) -> bool:
    """Whether the SHA-256 of `text` is in a share of `percent` of all hashes. Larger shares include smaller ones."""
    return percent >= 100 or split_of(f"share\t{text}", percent, 0) == "dev"


def split_of(text: str, dev_percent: float, test_percent: float) -> Split:
    """The split of `text`, from its SHA-256 in 10,000 buckets: test first, then dev, then train.

    The split depends on the text alone, so that no text is in two splits, on any machine and in any corpus.
    """
    bucket = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10_000
    if bucket < round(100 * test_percent):
        return "test"
    return "dev" if bucket < round(100 * test_percent) + round(100 * dev_percent) else "train"
