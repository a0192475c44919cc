"""Settings of pre-training: the text, the model, and its evaluation. The experiment is `tasks.Pretraining`."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from s2sjax.config.data import Corpus, Text, check_text
from s2sjax.config.evaluation import EvaluationSettings
from s2sjax.config.models.pair import Family
from s2sjax.config.models.transformer_settings import Transformer
from s2sjax.config.paths import AnyPath
from s2sjax.config.settings import at_least, check_buckets, require, settings


@settings
class Paragraphs:
    """UTF-8 text files, plain or .gz, one paragraph or sentence per line.

    A paragraph is cut between two of its sentences, a single sentence in its middle: the rest is the second text.
    """

    train: AnyPath = ""
    """file of the training text"""
    dev: AnyPath = ""
    """file of the text evaluated during training"""
    test: AnyPath = ""
    """file of the text evaluated at the end"""
    origin: str = ""
    """source of the files, for the error if one is missing"""
    text: Text = Text("subwords", size=8000)
    """tokenization of the text"""
    buckets: tuple[tuple[int], ...] = ((32,), (64,), (128,))
    """padded lengths in tokens, [CLS] and both <eos> included; a line goes to the first one that fits"""
    batch_tokens: int = 8192
    """budget of a batch: rows x length of its bucket"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""
    corpus: Corpus | None = None
    """corpus in the place of files: each of its sources is a line"""

    def __post_init__(self):
        at_least(1, self, "data", "batch_tokens")
        at_least(0, self, "data", "prefetch")
        check_buckets(self.buckets, least=4)
        check_text(self)
        for name, on in (("sampling", self.text.sampling > 0), ("spelling.on", self.text.spelling.on)):
            require(not on, f"data.text.{name} is set, and pre-training does not use it: leave it out")


@settings
class BertModel:
    """An encoder with two output layers: for masked words, and for whether the second text follows the first."""

    encoder: Family = field(
        default_factory=lambda: Transformer(width=256, heads=4, feedforward=1024, encoder_layers=4, norm="pre")
    )
    """family of the encoder; its decoder settings are not used"""
    initial: float = 1.0
    """standard deviation of the embedding before training"""
    mask_rate: float = 0.15
    """fraction of the words of a line to predict"""
    next_weight: float = 1.0
    """weight of the next-sentence loss relative to that of the words; 0: words alone"""
    activation: Literal["relu", "gelu", "gelu_tanh", "swish"] = "gelu_tanh"
    """activation of the output layer of words; gelu_tanh is the approximation of gelu by tanh"""
    epsilon: float = 1e-6
    """number that the norm of the output layer of words adds to the variance"""

    def __post_init__(self):
        require(self.initial > 0, f"model.initial is {self.initial}: it must be above 0")
        require(0 < self.mask_rate < 1, f"model.mask_rate is {self.mask_rate}: it must be above 0 and below 1")
        require(self.next_weight >= 0, f"model.next_weight is {self.next_weight}: it must be at least 0")
        require(self.epsilon > 0, f"model.epsilon is {self.epsilon}: it must be above 0")
        require(
            self.encoder.embedding_size > 0,
            "model.encoder.embedding_size is 0: the output layer compares states with word embeddings: raise it",
        )


@settings
class BertEvaluate(EvaluationSettings):
    """Evaluation of pre-training. Every evaluation masks the same words and joins the same texts."""

    dev_examples: int = 1000
    """dev lines evaluated during training, spread over the whole file"""
    samples: int = 2
    """dev lines shown at each evaluation"""
    batch_size: int = 64
    """lines evaluated at once"""

    def __post_init__(self):
        at_least(1, self, "evaluate", "dev_examples", "batch_size")
        at_least(0, self, "evaluate", "samples")
