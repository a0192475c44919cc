"""Settings of classification: corpora of labelled sequences, the model, and its evaluation."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from typing import ClassVar, Literal

from s2sjax.config.data import Corpus, SplitFiles, Text
from s2sjax.config.evaluation import PredictionSettings
from s2sjax.config.in_memory import InMemory
from s2sjax.config.models.pair import Family
from s2sjax.config.models.recurrent_settings import RNNsearch
from s2sjax.config.settings import at_least, check_buckets, check_share, require, settings

Pooling = Literal["final", "first", "pooler", "mean", "max", "attention"]


@settings
class LabelledFiles(SplitFiles):
    """Files of labelled sequences. Parts of train can be held out as dev and as test."""

    _: KW_ONLY
    test_percent: float = 0.0
    """percentage of the train file held out as test, if there is no test file"""
    split_seed: int = 0
    """seed of the choice of the held-out examples"""

    held_out: ClassVar = ("dev", "test")


@settings
class LabelledFrames(LabelledFiles):
    """Labelled sequences of vectors: TSV files; a line is a label and one field for each frame.

    A frame is numbers separated by blanks, the same number in all frames.
    """


@settings
class LabelledText(LabelledFiles):
    """Labelled texts: UTF-8 TSV files without header or quoting, plain or .gz.

    A part of train can be held out by a hash of the text: texts that differ only in case or spacing stay together.
    """

    _: KW_ONLY
    train_percent: float = 100.0
    """percentage of the training examples to use, chosen by a hash of the text; a larger part includes a smaller one"""
    columns: tuple[str, ...] = ("text", "label")
    """names of the columns of a file; only text and label are read"""

    def __post_init__(self):
        super().__post_init__()
        check_share(self.train_percent)
        for name in ("text", "label"):
            count = self.columns.count(name)
            require(count == 1, f"data.corpus.columns is {self.columns}: it must name one column {name}, not {count}")


@settings
class LabelData:
    """Labelled sequences, and how they are batched."""

    corpus: Corpus = field(default_factory=InMemory)
    """texts or frames with their labels"""
    text: Text = Text("words")
    """tokenization of the texts"""
    buckets: tuple[tuple[int], ...] = ((16,), (32,), (64,))
    """padded lengths in tokens, <eos> included, or in frames; an example goes to the first one that fits"""
    batch_tokens: int = 1024
    """budget of a batch: rows x length of its bucket"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""

    def __post_init__(self):
        at_least(1, self, "data", "batch_tokens")
        at_least(0, self, "data", "prefetch")
        check_buckets(self.buckets)
        require(
            self.text.sampling == 0, f"data.text.sampling is {self.text.sampling}: classification has none: set it to 0"
        )


@settings
class LabelModel:
    """An encoder, a pooling of its states into one vector, and a dense layer."""

    encoder: Family = field(default_factory=lambda: RNNsearch(width=64, embedding_size=128))
    """family of the encoder; its decoder settings are not used"""
    pooling: Pooling = "attention"
    """pooling of the states: the last one of a recurrent encoder, the first one ([CLS] if the vocabulary has it, see
    tasks/pretraining/task.py), the first one after a dense layer with tanh (the pooler of BERT), their mean or maximum,
    or attention with learned queries"""
    queries: int = 1
    """number of learned queries of attention pooling"""
    attention_width: int = 0
    """width of the hidden layer of attention pooling; 0: the width of the states"""
    dropout: float = 0.3
    """dropout rate of the pooled vector"""
    initial: float = 0.1
    """standard deviation of the embedding before training; if it is small, rare words have little effect"""
    word_dropout: float = 0.0
    """probability that training replaces a word by <unk> (Iyyer et al. 2015)"""

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
            f"model.queries and model.attention_width apply to pooling attention, not {self.pooling}: leave them out",
        )


@settings
class LabelEvaluate(PredictionSettings):
    """Evaluation of classification."""

    metrics: tuple[Literal["accuracy", "macro_f1"], ...] = ("accuracy", "macro_f1")
    """accuracy, and mean F1 of the labels; the first one selects the best checkpoint"""
    _: KW_ONLY
    dev_examples: int = 5000
    samples: int = 3
    figure: int = 10
    """dev examples drawn with their attention after training"""

    def __post_init__(self):
        super().__post_init__()
        at_least(0, self, "evaluate", "figure")
