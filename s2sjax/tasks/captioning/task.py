"""Pictures to sentences: Show, Attend and Tell (Xu et al. 2015), and the same with any other decoder.

A convolutional network (picture_grid.py) turns a picture into a grid of vectors, to which a decoder attends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.config import require, settings
from s2sjax.core.signals import image_augmentation as core
from s2sjax.core.signals.frame_augmentation import example_keys
from s2sjax.data import text
from s2sjax.data.batching.batch_plan import Plan
from s2sjax.data.batching.columns import AnyColumns, Bucket, Buckets, Columns, Ragged, Shared
from s2sjax.data.data_notes import Sides
from s2sjax.evaluate import metrics
from s2sjax.evaluate.prediction.translator import Output
from s2sjax.tasks.captioning.captioned_pictures import Captioned, Picture, fingerprint
from s2sjax.tasks.captioning.picture_grid import PictureGrid
from s2sjax.tasks.captioning.settings import CaptionData, CaptionEvaluate, CaptionModel
from s2sjax.tasks.task import Assets, SearchExperiment, abstract
from s2sjax.tasks.text_generation import GenerationTask, check_network, sample_numbers


@settings
class Captioning(SearchExperiment):
    """An experiment that writes captions of pictures."""

    _: KW_ONLY
    data: CaptionData = CaptionData()
    model: CaptionModel = CaptionModel()
    search: config.Search = config.Search(max_length=30)
    evaluate: CaptionEvaluate = CaptionEvaluate()

    init_fields: ClassVar = ("model", "data.text", "search")

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


class CaptioningTask(GenerationTask):
    """Pictures through a convolutional network and a decoder. Assets: the vocabulary `target`."""

    experiment: Captioning
    noun = "picture"
    higher_is_better = True
    file_kinds = "JPEG or PNG"

    # ------------------------------------------------------------------------------------ data

    @property
    def corpus(self) -> Captioned:
        return self.experiment.data.corpus

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

    columns_use_seed = False

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
        width = config.encoder_and_decoder(model.network)[0].embedding_size
        return PictureGrid(model.grid, self.corpus.size, width, model.dropout, dtype)

    def source_of(self, batch: Mapping[str, Any]) -> tuple:
        return (batch["picture"],)

    def source_example(self) -> tuple:
        return (jnp.zeros((1, self.corpus.size, self.corpus.size, 3), jnp.uint8),)

    def augmented(self, batch: dict[str, Array], step: Array) -> dict[str, Array]:
        changes = self.experiment.data.augment.changes
        if not any(changes):
            return batch
        keys = example_keys(self.experiment.order_seed, step, batch["example"])
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
        numbers = sample_numbers([example.name for example in examples])
        return _columns(examples, range(len(examples)), ids)._replace(example=numbers)

    def output_of(self, found: Output) -> Output:
        return found

    def metrics(self, examples: Sequence[Picture], outputs: Sequence[Output]) -> dict[str, metrics.MetricResult]:
        texts, references = [output.text for output in outputs], [example.captions for example in examples]
        return metrics.score(self.experiment.evaluate.metrics, texts, references)

    def show(self, example: Picture, output: Output) -> str:
        return f"{example.name}  ->  {output.text}  ({example.captions[0]})"

    def record(self, example: Picture, output: Output) -> dict[str, Any]:
        return {"source": example.name, "hypothesis": output.text, "references": list(example.captions)}

    def draw(self, path: Path, examples: Sequence[Any], outputs: Sequence[Any], weights: Sequence[np.ndarray]) -> None:
        """Draws pictures with their captions and the attention of each word."""
        from s2sjax.tasks.captioning import picture_figure  # imports Matplotlib, which is slow

        each = [
            picture_figure.CaptionAttention(
                picture.pixels, self.target.pieces(output.ids), alpha[: len(output.ids)], str(output)
            )
            for picture, output, alpha in zip(examples, outputs, weights)
        ]
        picture_figure.draw(path, each)


def _columns(data: Sequence[Picture], index: Sequence[int], ids: Sequence[Sequence[int]]) -> Columns:
    """Row n has picture index[n] and caption ids[n]."""
    pictures, count = Shared(np.stack([picture.pixels for picture in data]), np.array(index)), len(index)
    numbers = np.arange(count, dtype=np.int32)
    return Columns({"target": Ragged.of_ids(ids)}, {"picture": pictures}, numbers, (count,))
