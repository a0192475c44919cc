"""Settings of taggers: the sentences, the model, and how it is judged. The experiment is `tasks.Tagging`."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from s2sjax.config.data import Corpus, Spelling
from s2sjax.config.evaluation import EvaluationSettings
from s2sjax.config.labels import check_share
from s2sjax.config.models import Luong
from s2sjax.config.pair import Family
from s2sjax.config.paths import FilePath
from s2sjax.config.settings import at_least, check_buckets, require, settings

TagMetric = Literal["accuracy", "padded", "f1", "precision", "recall", "intent", "sentence"]


@settings
class TaggedFiles(Corpus):
    """TSV files, UTF-8, plain or .gz: words, a tab, equally many tags, and perhaps a tab and the intent.

    A part of train can be held out, by a hash of the words, so that no sentence is in two parts.
    """

    folder: FilePath = ""
    """of the files, relative to the experiment file"""
    train: str = "train.tsv"
    """file of the training sentences"""
    dev: str = ""
    """file of the sentences evaluated during training"""
    test: str = ""
    """file of the sentences evaluated at the end"""
    dev_percent: float = 0.0
    """percentage of the train file held out as dev, if there is no dev file"""
    train_percent: float = 100.0
    """percentage of the training sentences that is used, chosen by a hash of the words"""
    origin: str = ""
    """where the data set comes from, for the error if a file is missing"""

    def __post_init__(self):
        check_share(self.train_percent)
        require(self.train != "", "data.corpus.train is empty: name the file with the training sentences")
        require(
            0 <= self.dev_percent < 100,
            f"data.corpus.dev_percent is {self.dev_percent}: it must be at least 0 and below 100",
        )
        require(
            not (self.dev and self.dev_percent),
            "data.corpus has both dev and dev_percent: name a file, or hold out a part of train",
        )


@settings
class TagData:
    corpus: Corpus = field(default_factory=TaggedFiles)
    """where the sentences come from: TaggedFiles, or InMemory with rows (words, tags) or (words, tags, intent)"""
    lower: bool = True
    """word embeddings ignore case; characters never do"""
    min_count: int = 2
    """words that occur less often become <unk>, and are known by their characters alone"""
    buckets: tuple[tuple[int], ...] = ((16,), (32,), (64,), (128,), (256,))
    """lengths in words; a sentence goes to the first one that fits"""
    tokens: int = 1024
    """budget of a batch: rows x words of its bucket"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""

    def __post_init__(self):
        at_least(1, self, "data", "min_count", "tokens")
        at_least(0, self, "data", "prefetch")
        check_buckets(self.buckets)


@settings
class TaggerModel:
    """Words and characters, an encoder, a dense layer; on top a conditional random field, beside it an intent."""

    encoder: Family = field(
        default_factory=lambda: Luong(width=256, embedding=192, layers=1, bidirectional=True, dropout=0.3)
    )
    """the encoder's family; its decoder settings are not used"""
    spelling: Spelling = Spelling(on=True, width=32, kernels=(3,), filters=32, highways=0)
    """the network that reads the characters of a word; off: words alone"""
    spelling_width: int = 64
    """width of the characters' part of a word's vector, which is encoder.embedding wide as a whole"""
    initial: float = 0.1
    """standard deviation of the word embedding before training; if it is small, rare words say little"""
    word_dropout: float = 0.0
    """probability that training replaces a word by <unk>: its characters are still read"""
    dropout: float = 0.0
    """of the states that the output layers read, besides the encoder's own"""
    crf: bool = False
    """score sequences of tags instead of single ones (Lafferty et al. 2001; Huang et al. 2015)"""
    intent: float = 0.0
    """weight of the intent's loss beside the sum of its words'; 0: no intent"""

    def __post_init__(self):
        for name in ("word_dropout", "dropout"):
            rate = getattr(self, name)
            require(0 <= rate < 1, f"model.{name} is {rate}: it must be in [0, 1)")
        require(self.initial > 0, f"model.initial is {self.initial}: it must be above 0")
        require(self.intent >= 0, f"model.intent is {self.intent}: it must be at least 0")
        at_least(1, self, "model", "spelling_width")
        needed = 1 + self.spelling_width if self.spelling.on else 1
        require(
            self.encoder.embedding >= needed,
            f"model.encoder has vectors of width {self.encoder.embedding} for a word, of which model.spelling_width "
            f"gives {self.spelling_width} to its characters: at least {needed} are needed",
        )


@settings
class TagEvaluate(EvaluationSettings):
    metrics: tuple[TagMetric, ...] = ("accuracy", "padded")
    """accuracy of the words, or `padded` to see what counting padding would make of it; f1, precision, recall of the
    entities of B- and I- tags; intent; sentence: intent and all tags right. The first selects the best checkpoint"""
    lines: int = 5000
    """dev sentences predicted at each evaluation during training"""
    samples: int = 2
    """dev sentences shown at each evaluation"""
    rows: int = 128
    """sentences predicted at once; fewer of those that are longer than the longest bucket"""

    def __post_init__(self):
        at_least(1, self, "evaluate", "rows", "lines")
        at_least(0, self, "evaluate", "samples")
        require(len(self.metrics) > 0, "evaluate.metrics is empty: give at least one metric")
