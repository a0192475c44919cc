"""Pictures to sentences: Show, Attend and Tell (Xu et al. 2015), and the same with any other decoder.

A convolutional network (models/pictures.py) turns a picture into a grid of vectors, to which a decoder attends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.config import at_least, check_buckets, require, settings
from s2sjax.core import pictures as core
from s2sjax.core.augment import example_keys
from s2sjax.data import text
from s2sjax.data.batches import Plan
from s2sjax.data.columns import AnyColumns, Bucket, Buckets, Columns, Ragged, Shared
from s2sjax.data.pictures import Captioned, CaptionedFiles, Picture, fingerprint
from s2sjax.data.remarks import Sides
from s2sjax.evaluate import metrics
from s2sjax.evaluate.decoding import Output
from s2sjax.models.identity import Identity
from s2sjax.models.pictures import Grid, PictureGrid
from s2sjax.tasks.generation import GenerationTask, check_network, sample_numbers
from s2sjax.tasks.task import Assets, SearchExperiment, abstract

# ------------------------------------------------------------------------------------- settings


@settings
class PictureChanges:
    """Random changes of training pictures, a function of (seed, step, example): see s2sjax/core/pictures.py."""

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
    tokens: int = 2048
    """budget of a batch: rows x tokens of a caption"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""

    def __post_init__(self):
        at_least(1, self, "data", "tokens")
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
        default_factory=lambda: config.Pair(Identity(256), config.RNNsearch(width=256, embedding=256, dropout=0.3))
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
            encoder.embedding > 0, "model.network.encoder.embedding is 0: set it to the width of the grid's vectors"
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


@settings
class Captioning(SearchExperiment):
    """An experiment that writes captions of pictures."""

    _: KW_ONLY
    data: CaptionData = CaptionData()
    model: CaptionModel = CaptionModel()
    search: config.Search = config.Search(max_length=30)
    evaluate: CaptionEvaluate = CaptionEvaluate()

    def __post_init__(self):
        self.check_name()
        check_network(self.model.network, self.search, self.train, self.model.grid.side(self.data.corpus.size) ** 2)
        require(
            self.model.attention_penalty == 0 or self.train.scheduled_sampling.schedule == "none",
            "model.attention_penalty requires teacher forcing: leave out train.scheduled_sampling, or set it to 0",
        )
        require(
            self.model.attention_penalty == 0 or self.train.r_drop == 0,
            "model.attention_penalty and train.r_drop cannot be combined: set one of them to 0",
        )

    def task(self) -> CaptioningTask:
        return CaptioningTask(self)


# ----------------------------------------------------------------------------------------- task


class CaptioningTask(GenerationTask):
    """Pictures through a convolutional network and a decoder. Assets: the vocabulary `target`."""

    experiment: Captioning
    noun = "picture"

    # ------------------------------------------------------------------------------------ data

    @property
    def corpus(self) -> Captioned:
        return self.experiment.data.corpus

    def has(self, split: str) -> bool:
        return self.corpus.has(split)

    def read(self) -> list[Picture]:
        return self.examples("train")

    def row_count(self, data: Sequence[Picture]) -> int:
        return sum(len(picture.captions) for picture in data)

    def examples(self, split: str) -> list[Picture]:
        found = self.corpus.examples(split)
        require(len(found) > 0, f"data.corpus has no {split} pictures: give some, or name another split")
        for picture in found:
            require(len(picture.captions) > 0, f"{picture.name} of {split} has no caption: give it one, or remove it")
        return found

    def example_of(self, line: str, where: str) -> Picture:
        return self.corpus.example_of(line, where)

    @property
    def file_kinds(self) -> str:
        return "JPEG or PNG"

    def example_from(self, content: bytes, where: str) -> Picture:
        return self.corpus.example_from(content, where)

    def blank_example(self) -> Picture:
        return Picture(np.zeros((self.corpus.size, self.corpus.size, 3), np.uint8), (), "")

    @property
    def source_buckets(self) -> Buckets:
        """One bucket: all pictures have one size, and no program depends on the length of the caption to write."""
        return self.experiment.data.buckets[:1]

    def fingerprint(self, data: Sequence[Picture]) -> str:
        return fingerprint(data)

    def sides(self, split: str, examples: Sequence[Picture]) -> Iterable[Sides]:
        return (Sides(picture.pixels.tobytes(), tuple(picture.captions)) for picture in examples)

    def learn_assets(self, data: Sequence[Picture]) -> Assets:
        lines = [caption for picture in data for caption in picture.captions]
        return {"target": text.build(self.experiment.data.text, lines)}

    def adopt_assets(self, data: Sequence[Picture], assets: Assets) -> Assets:
        found = assets.get("target")
        require(
            isinstance(found, text.AnyVocabulary), "the other run has no vocabulary to take: leave out --init-assets"
        )
        return {"target": found}

    def load_assets(self, folder: Path, names: Sequence[str]) -> Assets:
        return {"target": text.load(folder, "target")}

    def columns(self, data: Sequence[Picture]) -> Columns:
        """The columns, with one row per caption."""
        rows = [(number, caption) for number, picture in enumerate(data) for caption in picture.captions]
        ids = [self.target.encode(caption) for _, caption in rows]
        return _columns(data, [number for number, _ in rows], ids)

    def describe(self, columns: AnyColumns, plan: Plan) -> list[str]:
        count = len(columns.lengths)
        lines = [f"{count:,} captions, vocabulary {self.target.size}, {plan.steps_per_epoch:,} steps an epoch"]
        if plan.left_out:
            longest = self.experiment.data.buckets[-1][0]
            lines.append(f"{plan.left_out:,} captions are longer than the last of data.buckets, {longest}: left out")
        return lines

    # ----------------------------------------------------------------------------------- model

    def frontend(self, dtype: Any) -> PictureGrid:
        model = self.experiment.model
        width = config.encoder_and_decoder(model.network)[0].embedding
        return PictureGrid(model.grid, self.corpus.size, width, model.dropout, dtype)

    def source_of(self, batch: Mapping[str, Any]) -> tuple:
        return (batch["picture"],)

    def source_example(self) -> tuple:
        return (jnp.zeros((1, self.corpus.size, self.corpus.size, 3), jnp.uint8),)

    def augmented(self, batch: dict[str, Array], step: Array) -> dict[str, Array]:
        changes = self.experiment.data.augment.changes
        if not any(changes):
            return batch
        keys = example_keys(self.experiment.seed, step, batch["example"])
        return batch | {"picture": jax.vmap(partial(core.change, changes))(keys, batch["picture"])}

    @property
    def attention_penalty(self) -> float:
        return self.experiment.model.attention_penalty

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        size = self.corpus.size
        return abstract(
            picture=((rows, size, size, 3), np.uint8), target=((rows, *bucket), np.int32), example=((rows,), np.int32)
        )

    def output_bytes(self, bucket: Bucket) -> int:
        return 2 * 4 * bucket[0] * self.target.size

    # ----------------------------------------------------------------------------- predictions

    @property
    def layout(self) -> str:
        size = self.corpus.size
        side = self.experiment.model.grid.side(size)
        return f"pictures of {size} x {size} pixels as {side} x {side} vectors"

    def columns_with(self, examples: Sequence[Picture], outputs: Sequence[Output] | None) -> Columns:
        ids: list[Sequence[int]] = [()] * len(examples) if outputs is None else [output.ids[:-1] for output in outputs]
        return _columns(examples, range(len(examples)), ids, sample_numbers([example.name for example in examples]))

    def output_of(self, found: Output) -> Output:
        return found

    def metrics(self, examples: Sequence[Picture], outputs: Sequence[Output]) -> dict[str, metrics.Result]:
        texts, references = [output.text for output in outputs], [example.captions for example in examples]
        return metrics.score(self.experiment.evaluate.metrics, texts, references)

    @property
    def higher_is_better(self) -> bool:
        return True

    def show(self, example: Picture, output: Output) -> str:
        return f"{example.name}  ->  {output.text}  ({example.captions[0]})"

    def record(self, example: Picture, output: Output) -> dict[str, Any]:
        return {"source": example.name, "hypothesis": output.text, "references": list(example.captions)}

    def draw(self, path: Path, examples: Sequence[Any], outputs: Sequence[Any], weights: Sequence[np.ndarray]) -> None:
        """Draws pictures with their captions and the attention of each word."""
        from s2sjax.evaluate import picture_figure  # imports Matplotlib, which is slow

        each = [
            picture_figure.CaptionAttention(
                picture.pixels, self.target.pieces(output.ids), alpha[: len(output.ids)], str(output)
            )
            for picture, output, alpha in zip(examples, outputs, weights)
        ]
        picture_figure.draw(path, each)


def _columns(
    data: Sequence[Picture], index: Sequence[int], ids: Sequence[Sequence[int]], numbers: np.ndarray | None = None
) -> Columns:
    """Row n has picture index[n] and caption ids[n]. numbers: the column `example`, by default 0, 1, ..."""
    pictures = Shared(np.stack([picture.pixels for picture in data]), np.array(index))
    count = len(index)
    numbers = np.arange(count, dtype=np.int32) if numbers is None else numbers
    return Columns({"target": Ragged.of_ids(ids)}, {"picture": pictures}, numbers, (count,))
