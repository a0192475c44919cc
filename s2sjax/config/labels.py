"""Corpora of sequences with a label each: text or frames, in TSV files."""

from __future__ import annotations

from s2sjax.config.data import Corpus
from s2sjax.config.paths import FilePath
from s2sjax.config.settings import require, settings


class _LabelFiles(Corpus):
    """What both kinds of files have in common."""

    folder: str
    train: str
    dev: str
    test: str
    dev_percent: float
    test_percent: float

    def _check(self) -> None:
        require(self.train != "", "data.corpus.train is empty: name the file with the training examples")
        for split in ("dev", "test"):
            percent = getattr(self, f"{split}_percent")
            require(
                not (getattr(self, split) and percent),
                f"data.corpus has both {split} and {split}_percent: name a file, or hold out a part of train",
            )
            require(percent >= 0, f"data.corpus.{split}_percent is {percent}: it must be at least 0")
        total = self.dev_percent + self.test_percent
        require(total < 100, f"data.corpus: dev_percent + test_percent is {total}: nothing is left to train on")


@settings
class LabelledText(_LabelFiles):
    """Texts with a label each: UTF-8 TSV files without header and quoting, plain or .gz.

    A part of train can be held out, by a hash of the text, so that no text is in two parts, in any case or spacing.
    """

    folder: FilePath = ""
    """of the files, relative to the experiment file"""
    train: str = "train.tsv"
    """file of the training split"""
    dev: str = ""
    """file of the split evaluated during training"""
    test: str = ""
    """file of the split evaluated at the end"""
    dev_percent: float = 0.0
    """percentage of the train file held out as dev, if there is no dev file"""
    test_percent: float = 0.0
    """percentage of the train file held out as test, if there is no test file"""
    columns: tuple[str, ...] = ("text", "label")
    """names of the columns of a file; those named text and label are read, the others ignored"""
    origin: str = ""
    """where the data comes from, for the error if a file is missing"""

    def __post_init__(self):
        self._check()
        for name in ("text", "label"):
            count = self.columns.count(name)
            require(count == 1, f"data.corpus.columns is {self.columns}: it must name one column {name}, not {count}")


@settings
class LabelledFrames(_LabelFiles):
    """Sequences of vectors with a label each: TSV files, a label and then one field a frame.

    A frame is numbers separated by blanks, equally many in all frames.
    """

    folder: FilePath = ""
    """of the files, relative to the experiment file"""
    train: str = "train.tsv"
    """file of the training split"""
    dev: str = ""
    """file of the split evaluated during training"""
    test: str = ""
    """file of the split evaluated at the end"""
    dev_percent: float = 0.0
    """percentage of the train file held out as dev, by a hash of its numbers, if there is no dev file"""
    test_percent: float = 0.0
    """percentage of the train file held out as test, if there is no test file"""
    origin: str = ""
    """where the data comes from, for the error if a file is missing"""

    def __post_init__(self):
        self._check()
