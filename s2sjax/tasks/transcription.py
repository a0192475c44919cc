"""Frames to labels by an attention decoder: Listen, Attend and Spell (Chan et al. 2016).

The corpora, random changes and error rates are those of recognition by CTC (recognition.py), so that both can be
compared. Here the decoder writes one label after the other, and each depends on those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.config import require, settings
from s2sjax.core import augment
from s2sjax.data import assets, text
from s2sjax.data.columns import Bucket, Columns, Ragged
from s2sjax.data.signals import Signal
from s2sjax.evaluate.decoding import Output
from s2sjax.evaluate.metrics import Result
from s2sjax.models.listener import Listener
from s2sjax.tasks.generation import GenerationTask, check_network, sample_numbers
from s2sjax.tasks.recognition import FrameModel, LabelEvaluate, LabelledSignals
from s2sjax.tasks.signal_task import SignalTask, Transcript, error_rates
from s2sjax.tasks.task import Assets, abstract

# ------------------------------------------------------------------------------------- settings


@settings
class SpellerModel(FrameModel):
    """An encoder-decoder that reads frames."""

    network: config.ModelConfig = field(
        default_factory=lambda: config.RNNsearch(width=128, embedding=64, encoder_layers=2, dropout=0.2)
    )
    """reads the frames and writes the labels; the `embedding` of its encoder is the width that frames are projected
    to, 0 for none"""
    stack: int = 1
    """frames that are read as one"""
    channels: int = 0
    """channels of two convolutions over time and features below the encoder, which read four frames as one; 0: none"""
    normalize: bool = False
    """scale each feature to mean 0 and deviation 1 over the frames of each example"""
    dropout: float = 0.0
    """dropout rate of what the encoder reads"""

    def __post_init__(self):
        self.check_frames()


@settings
class Transcription(config.Experiment):
    """An experiment that writes the labels of sequences of frames."""

    name: str
    """the run goes to runs/NAME"""
    data: LabelledSignals = LabelledSignals(ngram=0)
    """what to learn from; the second number of each of its buckets counts <eos> too"""
    model: SpellerModel = SpellerModel()
    """what learns"""
    train: config.Train = config.Train()
    """how it learns"""
    search: config.Search = config.Search(max_length=20)
    """how it writes"""
    evaluate: LabelEvaluate = LabelEvaluate()
    """how it is judged"""
    seed: int = 0
    """of the initial parameters, the order of the examples, their random changes, and dropout"""

    decode_fields: ClassVar = ("search",)
    evaluate_fields: ClassVar = ("search", "evaluate")
    free_fields: ClassVar = (
        "data.corpus.folder", "search", "evaluate.lines", "evaluate.samples", "evaluate.rows", "evaluate.drawn",
    )  # fmt: skip

    def __post_init__(self):
        self.check_name()
        require(
            self.data.ngram == 0, "data.ngram is a language model for CTC: the decoder is one itself, set data.ngram 0"
        )
        longest = -(-max(T for T, _ in self.data.buckets) // self.model.reduction)
        check_network(self.model.network, self.search, self.train, longest)

    def task(self) -> TranscriptionTask:
        return TranscriptionTask(self)


# ----------------------------------------------------------------------------------------- task


class TranscriptionTask(SignalTask, GenerationTask):
    """Signals through an encoder-decoder. Assets: the statistics of the `features`, and the labels as `target`."""

    experiment: Transcription

    # ------------------------------------------------------------------------------------ data

    @property
    def reader(self) -> Any:
        return config.encoder_and_decoder(self.experiment.model.network)[0]

    def learn_assets(self, data: Sequence[Signal]) -> Assets:
        labels = self.corpus.alphabet
        for label in labels:
            require(len(label.split()) == 1, f"data.corpus has the label {label!r}: a label has no blanks, rename it")
        return {
            "features": assets.Statistics.of([signal.frames for signal in data]),
            "target": text.Vocabulary("words", labels, normalize="none"),
        }

    def load_assets(self, folder: Path, names: Sequence[str]) -> Assets:
        return {
            "features": assets.load_json(assets.Statistics, folder, "features"),
            "target": text.load(folder, "target"),
        }

    def columns(self, data: Sequence[Signal]) -> Columns:
        return self._columns(data, [signal.labels for signal in data], np.arange(len(data), dtype=np.int32))

    def _columns(self, data: Sequence[Signal], labels: Sequence[Sequence[str]], numbers: np.ndarray) -> Columns:
        """`numbers`: of the column `example`."""
        features = self.assets["features"]
        frames = Ragged.of_frames([features.apply(signal.frames) for signal in data])
        target = Ragged.of_ids([self.target.encode(" ".join(each)) for each in labels])
        return Columns({"frames": frames, "target": target}, {}, numbers, (len(data),))

    # ----------------------------------------------------------------------------------- model

    def frontend(self, dtype: Any) -> Listener:
        m = self.experiment.model
        return Listener(self.corpus.features, self.reader.embedding, m.stack, m.channels, m.normalize, m.dropout, dtype)

    def source_of(self, batch: Mapping[str, Any]) -> tuple:
        return batch["frames"], batch["frames_lengths"]

    def source_example(self) -> tuple:
        return jnp.zeros((1, 1, self.corpus.features)), jnp.ones(1, jnp.int32)

    def augmented(self, batch: dict[str, Array], step: Array) -> dict[str, Array]:
        ranges = self.experiment.data.augment.ranges
        if not any(ranges):
            return batch
        keys = augment.example_keys(self.experiment.seed, step, batch["example"])
        change = jax.vmap(partial(augment.augment, ranges))
        frames, lengths = change(keys, batch["frames"], batch["frames_lengths"])
        return batch | {"frames": frames, "frames_lengths": lengths}

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        T, L = bucket
        return abstract(
            frames=((rows, T, self.corpus.features), np.float32), frames_lengths=((rows,), np.int32),
            target=((rows, L), np.int32), example=((rows,), np.int32),
        )  # fmt: skip

    # ----------------------------------------------------------------------------- predictions

    @property
    def layout(self) -> str:
        return f"frames of {self.corpus.features} features, {self.experiment.model.reduction} as one"

    def columns_with(self, examples: Sequence[Signal], outputs: Sequence[Transcript] | None) -> Columns:
        labels = [()] * len(examples) if outputs is None else [output.labels for output in outputs]
        return self._columns(examples, labels, sample_numbers([example.name for example in examples]))

    def output_of(self, found: Output) -> Transcript:
        return Transcript(tuple(found.text.split()), found.score)

    def metrics(self, examples: Sequence[Signal], outputs: Sequence[Transcript]) -> dict[str, Result]:
        return error_rates(self.experiment.evaluate.metrics, examples, outputs)

    @property
    def higher_is_better(self) -> bool:
        return False

    def record(self, example: Signal, output: Transcript) -> dict[str, Any]:
        right = " ".join(example.labels)
        return {"source": example.name, "hypothesis": str(output), "references": [right], "score": output.score}

    def show(self, example: Signal, output: Transcript) -> str:
        right = "✓" if output.labels == example.labels else f"({' '.join(example.labels)})"
        return f"{example.name}  ->  {output}  {right}"

    def draw(self, path: Path, examples: Sequence[Any], outputs: Sequence[Any], weights: Sequence[np.ndarray]) -> None:
        """The frames, and the time that each label looks at."""
        from s2sjax.evaluate import time_figure  # imports Matplotlib, which is slow

        n, each = self.experiment.model.reduction, []
        for example, output, alpha in zip(examples, outputs, weights):
            labels = [*output.labels, "<eos>"]
            alpha = alpha[: len(labels), : -(-len(example.frames) // n)]
            shown = example.frames, labels, alpha, n, self.show(example, output), self.corpus.seconds
            each.append(time_figure.FrameAttention(*shown))
        time_figure.draw(path, each)
