"""Settings of classification: corpora of sequences with a label each, the model, and how it is judged."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from s2sjax.config.data import Corpus, Text
from s2sjax.config.evaluation import EvaluationSettings
from s2sjax.config.memory import InMemory
from s2sjax.config.models import RNNsearch
from s2sjax.config.pair import Family
from s2sjax.config.paths import FilePath
from s2sjax.config.settings import at_least, check_buckets, require, settings

Pooling = Literal["final", "first", "mean", "max", "attention"]


def check_share(percent: float) -> None:
    require(0 < percent <= 100, f"data.corpus.train_percent is {percent}: it must be above 0 and at most 100")


class _LabelFiles(Corpus):
    """What both kinds of files have in common."""

    folder: str
    train: str
    dev: str
    test: str
    dev_percent: float
    test_percent: float
    split_seed: int

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
    train_percent: float = 100.0
    """percentage of the training examples that is used, by a hash of the text: a smaller one is part of a larger"""
    columns: tuple[str, ...] = ("text", "label")
    """names of the columns of a file; those named text and label are read, the others ignored"""
    split_seed: int = 0
    """another number holds out other examples"""
    origin: str = ""
    """where the data comes from, for the error if a file is missing"""

    def __post_init__(self):
        self._check()
        check_share(self.train_percent)
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
    split_seed: int = 0
    """another number holds out other examples"""
    origin: str = ""
    """where the data comes from, for the error if a file is missing"""

    def __post_init__(self):
        self._check()


@settings
class LabelData:
    corpus: Corpus = field(default_factory=InMemory)
    """texts or frames with their labels"""
    text: Text = Text("words")
    """how texts become ids"""
    buckets: tuple[tuple[int], ...] = ((16,), (32,), (64,))
    """lengths in tokens, <eos> included, or in frames; an example goes to the first one that fits"""
    tokens: int = 1024
    """budget of a batch: rows x length of its bucket"""
    prefetch: int = 4
    """batches made ahead by Grain's threads"""

    def __post_init__(self):
        at_least(1, self, "data", "tokens")
        at_least(0, self, "data", "prefetch")
        check_buckets(self.buckets)
        require(
            self.text.sampling == 0, f"data.text.sampling is {self.text.sampling}: classification has none: set it to 0"
        )


@settings
class LabelModel:
    """An encoder, how its states become one vector, and a dense layer."""

    encoder: Family = field(default_factory=lambda: RNNsearch(width=64, embedding=128))
    """family of the encoder; its decoder settings are not used"""
    pooling: Pooling = "attention"
    """last state of a recurrent encoder, state of the first position ([CLS] if the vocabulary has it, see
    tasks/pretraining.py), mean or maximum of all states, or attention with learned queries"""
    queries: int = 1
    """of attention"""
    attention_width: int = 0
    """of attention's hidden layer; 0: as wide as the states"""
    dropout: float = 0.3
    """dropout rate of the pooled vector"""
    initial: float = 0.1
    """standard deviation of the embedding before training; if it is small, rare words say little"""
    word_dropout: float = 0.0
    """share of the words that training replaces by <unk> (Iyyer et al. 2015)"""

    def __post_init__(self):
        at_least(1, self, "model", "queries")
        at_least(0, self, "model", "attention_width")
        require(self.initial > 0, f"model.initial is {self.initial}: it must be above 0")
        for name in ("dropout", "word_dropout"):
            rate = getattr(self, name)
            require(0 <= rate < 1, f"model.{name} is {rate}: it must be in [0, 1)")
        require(
            self.pooling != "final" or self.encoder.encoder_spec.carries is not None,
            f"model.pooling final takes the last state of a recurrent encoder, and {type(self.encoder).__name__} has "
            "none: set mean, max or attention",
        )
        require(
            self.pooling == "attention" or (self.queries, self.attention_width) == (1, 0),
            f"model.queries and model.attention_width are of pooling attention, not {self.pooling}: leave them out",
        )


@settings
class LabelEvaluate(EvaluationSettings):
    metrics: tuple[Literal["accuracy", "macro_f1"], ...] = ("accuracy", "macro_f1")
    """share of correct labels, and mean F1 of the labels; the first one decides which checkpoint is best"""
    lines: int = 5000
    """dev examples predicted at each evaluation during training"""
    samples: int = 3
    """dev examples shown at each evaluation"""
    rows: int = 64
    """examples predicted at once"""
    figure: int = 10
    """dev examples drawn with their attention after training"""

    def __post_init__(self):
        at_least(1, self, "evaluate", "rows", "lines")
        at_least(0, self, "evaluate", "samples", "figure")
        require(len(self.metrics) > 0, "evaluate.metrics is empty: name at least one metric")
