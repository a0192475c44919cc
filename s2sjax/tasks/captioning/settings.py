"""Settings of captioning: the pictures, the model and the evaluation."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from typing import Literal

from s2sjax import config
from s2sjax.config import at_least, check_buckets, require, settings
from s2sjax.core.signals import image_augmentation as core
from s2sjax.models.families.identity import Identity
from s2sjax.tasks.captioning.captioned_pictures import Captioned, CaptionedFiles
from s2sjax.tasks.captioning.picture_grid import Grid


@settings
class PictureChanges:
    """Random changes of training pictures, given (seed, step, example): see core/signals/image_augmentation.py."""

    zoom: float = 0.0
    """largest relative crop: a window with sides of 1 - zoom to 1 times those of the picture is enlarged to its size"""
    flip: float = 0.0
    """probability of a mirror image"""
    colour: float = 0.0
    """largest relative change of contrast, and of each colour"""

    def __post_init__(self):
        at_least(0, self, "data.augment", *core.Changes._fields)
        for name, most in (("zoom", 0.9), ("flip", 1), ("colour", 1)):
            require(getattr(self, name) <= most, f"data.augment.{name} is {getattr(self, name)}: at most {most}")

    @property
    def changes(self) -> core.Changes:
        return core.Changes(self.zoom, self.flip, self.colour)


@settings
class CaptionData:
    """Pictures with captions: each caption is one row, and the captions of a picture share its pixels."""

    corpus: Captioned = field(default_factory=CaptionedFiles)
    """source of the pictures and captions"""
    text: config.Text = config.Text(unit="words", min_count=5)
    """tokenization of the captions"""
    augment: PictureChanges = PictureChanges()
    """random changes of training pictures"""
    buckets: tuple[tuple[int], ...] = ((12,), (16,), (24,), (40,))
    """padded lengths of captions, <eos> included"""
    batch_tokens: int = 2048
    """budget of a batch: rows x tokens of a caption"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""

    def __post_init__(self):
        at_least(1, self, "data", "batch_tokens")
        at_least(0, self, "data", "prefetch")
        check_buckets(self.buckets)
        require(
            self.text.sampling == 0 and not self.text.spelling.on,
            "data.text.sampling and data.text.spelling do not apply to captions: leave them out",
        )


@settings
class CaptionModel:
    """A convolutional network, and an encoder-decoder over its grid."""

    grid: Grid = Grid()
    """network that reads the picture"""
    network: config.ModelConfig = field(
        default_factory=lambda: config.Pair(Identity(256), config.RNNsearch(width=256, embedding_size=256, dropout=0.3))
    )
    """encoder-decoder that reads the grid; the `embedding` of its encoder is the width of the grid's vectors. With the
    encoder `Identity`, the grid is the memory, as in the paper"""
    dropout: float = 0.0
    """dropout rate of the grid's vectors"""
    attention_penalty: float = 0.0
    """weight (lambda) of doubly stochastic attention, which encourages equal total attention to all positions; for
    RNNsearch and Luong"""

    def __post_init__(self):
        at_least(0, self, "model", "attention_penalty")
        require(0 <= self.dropout < 1, f"model.dropout is {self.dropout}: it must be in [0, 1)")
        encoder, decoder = config.encoder_and_decoder(self.network)
        require(
            encoder.embedding_size > 0,
            "model.network.encoder.embedding_size is 0: set it to the width of the grid's vectors",
        )
        require(
            self.attention_penalty == 0 or isinstance(decoder, config.RNNsearch | config.Luong),
            f"model.attention_penalty requires the attention of each word in training, which {type(decoder).__name__} "
            "does not give: set it to 0, or choose RNNsearch or Luong",
        )


@settings
class CaptionEvaluate(config.PredictionSettings):
    """Evaluation of captions."""

    metrics: tuple[Literal["bleu_1", "bleu_2", "bleu_3", "bleu_4", "chrf"], ...] = (
        "bleu_4", "bleu_3", "bleu_2", "bleu_1",
    )  # fmt: skip
    """scores of lower-case words without punctuation, against all captions of a picture; the first one selects the best
    checkpoint"""
    _: KW_ONLY
    samples: int = 2
    drawn: int = 4
    """pictures drawn after training with the attention of each word, of the split that is scored then"""

    def __post_init__(self):
        super().__post_init__()
        at_least(0, self, "evaluate", "drawn")
