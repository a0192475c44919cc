"""Settings of taggers: the sentences, the model, and its evaluation. The experiment is `tasks.Tagging`."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from typing import Literal

from s2sjax.config.data import Corpus, Spelling, SplitFiles, Text
from s2sjax.config.evaluation import PredictionSettings
from s2sjax.config.models.pair import Family
from s2sjax.config.models.recurrent_settings import Luong
from s2sjax.config.settings import at_least, check_buckets, check_share, require, settings

TagMetric = Literal["accuracy", "padded", "f1", "precision", "recall", "intent", "sentence"]


@settings
class TaggedFiles(SplitFiles):
    """Tagged sentences: UTF-8 TSV files, plain or .gz. A line is words, a tab, a tag for each, and optionally a tab and
    an intent.

    A part of train can be held out by a hash of the words: equal sentences stay together.
    """

    _: KW_ONLY
    train_percent: float = 100.0
    """percentage of the training sentences to use, chosen by a hash of the words"""

    def __post_init__(self):
        super().__post_init__()
        check_share(self.train_percent)


@settings
class TagData:
    """Tagged sentences, and how they are batched."""

    corpus: Corpus = field(default_factory=TaggedFiles)
    """source of the sentences: TaggedFiles, or InMemory with rows (words, tags) or (words, tags, intent)"""
    lower: bool = True
    """whether the word embedding ignores case; the characters keep theirs"""
    min_count: int = 2
    """minimum count of a word; rarer ones become <unk> and are read by their characters alone"""
    buckets: tuple[tuple[int], ...] = ((16,), (32,), (64,), (128,), (256,))
    """padded lengths in words, or in subwords with [CLS] and <eos>; a sentence goes to the first one that fits"""
    batch_tokens: int = 1024
    """budget of a batch: rows x words of its bucket"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""
    text: Text = Text("words")
    """tokenization of the words: with the unit words, `lower` and `min_count` apply; with subwords or pretrained, the
    encoder reads subwords, and the first of each word is tagged"""

    def __post_init__(self):
        at_least(1, self, "data", "min_count", "batch_tokens")
        at_least(0, self, "data", "prefetch")
        check_buckets(self.buckets)
        require(
            self.text.unit != "characters",
            "data.text.unit is characters, and a tagger reads words, subwords or pretrained: set one of them",
        )
        for name, on in (("sampling", self.text.sampling > 0), ("spelling.on", self.text.spelling.on)):
            require(not on, f"data.text.{name} is set, and a tagger does not use it: leave it out")


@settings
class TaggerModel:
    """Word vectors from words and characters, an encoder, and a dense layer; optionally a CRF and an intent.

    With data.text subwords or pretrained, the encoder reads subwords, and the settings of characters do not apply.
    """

    encoder: Family = field(
        default_factory=lambda: Luong(width=256, embedding_size=192, layers=1, bidirectional=True, dropout=0.3)
    )
    """family of the encoder; its decoder settings are not used"""
    spelling: Spelling = Spelling(on=True, width=32, kernels=(3,), filters=32, highways=0)
    """network that reads the characters of a word; off: words alone"""
    spelling_width: int = 64
    """width of the character part of a word vector; the whole vector is encoder.embedding_size wide"""
    initial: float = 0.1
    """standard deviation of the word embedding before training; if it is small, rare words have little effect"""
    word_dropout: float = 0.0
    """probability that training replaces a word by <unk>; its characters are still read"""
    dropout: float = 0.0
    """dropout rate of the states that the output layers read, in addition to that of the encoder"""
    crf: bool = False
    """whether to score sequences of tags instead of single ones (Lafferty et al. 2001; Huang et al. 2015)"""
    intent: float = 0.0
    """weight of the loss of a sentence's intent relative to the loss of its words; 0: no intent"""

    def __post_init__(self):
        for name in ("word_dropout", "dropout"):
            rate = getattr(self, name)
            require(0 <= rate < 1, f"model.{name} is {rate}: it must be in [0, 1)")
        require(self.initial > 0, f"model.initial is {self.initial}: it must be above 0")
        require(self.intent >= 0, f"model.intent is {self.intent}: it must be at least 0")
        at_least(1, self, "model", "spelling_width")

    def check_width(self) -> None:
        """Raises if the vectors of words have no room for their characters."""
        needed = 1 + self.spelling_width if self.spelling.on else 1
        require(
            self.encoder.embedding_size >= needed,
            f"model.encoder has vectors of width {self.encoder.embedding_size} for a word, of which "
            f"model.spelling_width gives {self.spelling_width} to its characters: at least {needed} are needed",
        )


@settings
class TagEvaluate(PredictionSettings):
    """Evaluation of taggers."""

    metrics: tuple[TagMetric, ...] = ("accuracy", "padded")
    """accuracy of the words; padded: the same with padding counted as correct; f1, precision and recall of the entities
    of B- and I- tags; intent: accuracy of the intents; sentence: intent and all tags correct. The first one selects the
    best checkpoint"""
    _: KW_ONLY
    dev_examples: int = 5000
    samples: int = 2
    batch_size: int = 128
