"""Settings of recognition (CTC): the signals, the model, the search and the evaluation."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from typing import Literal

from s2sjax import config
from s2sjax.config import at_least, check_buckets, require, settings
from s2sjax.core.signals import frame_augmentation
from s2sjax.data.signals.handwritten_digits import SklearnDigits
from s2sjax.data.signals.signal_examples import Signals


@settings
class Augment:
    """Random changes of training examples, given (seed, step, example): see core/signals/frame_augmentation.py."""

    speed: float = 0.0
    """largest relative change of the duration"""
    pitch: float = 0.0
    """largest relative shift along the features, which imitates another vocal tract"""
    noise: float = 0.0
    """standard deviation of the noise added to the normalised features"""
    time_masks: int = 0
    """number of runs of frames to set to 0"""
    time_width: int = 0
    """maximum number of frames in such a run"""
    feature_masks: int = 0
    """number of runs of features to set to 0"""
    feature_width: int = 0
    """maximum number of features in such a run"""

    def __post_init__(self):
        at_least(0, self, "data.augment", *frame_augmentation.Ranges._fields)
        for name in ("speed", "pitch"):
            require(getattr(self, name) < 1, f"data.augment.{name} is {getattr(self, name)}: it must be below 1")
        for kind in ("time", "feature"):
            masks, width = getattr(self, f"{kind}_masks"), getattr(self, f"{kind}_width")
            require(
                (masks > 0) == (width > 0),
                f"data.augment.{kind}_masks is {masks} and {kind}_width {width}: set both, or neither",
            )

    @property
    def ranges(self) -> frame_augmentation.Ranges:
        return frame_augmentation.Ranges(*(getattr(self, name) for name in frame_augmentation.Ranges._fields))


@settings
class LabelledSignals:
    """Signals with their labels, and how they are batched."""

    corpus: Signals = field(default_factory=SklearnDigits)
    """source of the signals"""
    augment: Augment = Augment()
    """random changes of training examples"""
    ngram: int = 2
    """order of the language model of the training labels, for search.language_weight; 0: none"""
    buckets: tuple[tuple[int, int], ...] = ((32, 8), (64, 8))
    """padded numbers of frames and labels"""
    batch_tokens: int = 2048
    """budget of a batch: rows x (frames + labels)"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""

    def __post_init__(self):
        at_least(1, self, "data", "batch_tokens")
        at_least(0, self, "data", "prefetch", "ngram")
        check_buckets(self.buckets)


@settings
class FrameModel:
    """Settings of a model that reads frames."""

    _: KW_ONLY
    stack: int = 1
    """number of frames to read as one"""
    channels: int = 0
    """channels of two convolutions over time and features before the encoder, which read four frames as one; 0: none"""
    normalize: bool = False
    """whether to scale each feature to mean 0 and standard deviation 1 over the frames of each example"""
    dropout: float = 0.0
    """dropout rate of the encoder's outputs in recognition, of its inputs in transcription"""

    def __post_init__(self):
        at_least(1, self, "model", "stack")
        at_least(0, self, "model", "channels")
        require(
            self.stack == 1 or self.channels == 0,
            "model.channels already reads four frames as one: set model.stack 1, or model.channels 0",
        )
        require(0 <= self.dropout < 1, f"model.dropout is {self.dropout}: it must be in [0, 1)")

    @property
    def reduction(self) -> int:
        """Number of frames that the encoder reads as one."""
        return 4 if self.channels else self.stack


@settings
class RecognizerModel(FrameModel):
    """An encoder of any family, and a dense layer."""

    encoder: config.Family = field(
        default_factory=lambda: config.Luong(width=128, embedding_size=0, layers=2, bidirectional=True, dropout=0.2)
    )
    """family of the encoder; its `embedding` is the width to which frames are projected, 0: no projection"""


@settings
class LabelSearch:
    """Decoding of labels."""

    beam_size: int = 1
    """number of prefixes of prefix beam search; 1: the labels of the most probable alignment (greedy)"""
    language_weight: float = 0.0
    """weight of the log-probability of the language model: see data.ngram"""
    bonus: float = 0.0
    """score added for each label, to counter a preference for short outputs"""

    def __post_init__(self):
        at_least(1, self, "search", "beam_size")
        at_least(0, self, "search", "language_weight")
        require(
            self.beam_size > 1 or (self.language_weight == 0 and self.bonus == 0),
            "search.language_weight and search.bonus apply to prefix beam search: set search.beam_size above 1",
        )


@settings
class RecognitionEvaluate(config.PredictionSettings):
    """Evaluation of sequences of labels."""

    metrics: tuple[Literal["ler", "ser"], ...] = ("ler", "ser")
    """label error rate (edit distance) and sequence error rate; the first one selects the best checkpoint"""
    _: KW_ONLY
    drawn: int = 3
    """examples drawn after training, of the split that is scored then"""

    def __post_init__(self):
        super().__post_init__()
        at_least(0, self, "evaluate", "drawn")
