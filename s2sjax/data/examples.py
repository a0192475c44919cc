"""Examples of text to text, and splits of texts by their hash."""

import hashlib
from typing import Literal, NamedTuple, get_args

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


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
