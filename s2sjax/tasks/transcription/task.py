"""Frames to labels by an attention decoder: Listen, Attend and Spell (Chan et al. 2016).

The corpora, random changes and error rates are those of recognition by CTC (tasks/recognition), so that both can be
compared. Here a decoder writes the labels one by one, each conditioned on those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from s2sjax import config
from s2sjax.config import require, settings
from s2sjax.data import assets, text
from s2sjax.data.batching.columns import Columns, Ragged
from s2sjax.data.signals.signal_examples import Signal
from s2sjax.evaluate.prediction.translator import Output
from s2sjax.tasks.recognition.settings import LabelledSignals, RecognitionEvaluate
from s2sjax.tasks.signal_task import SignalTask, Transcript
from s2sjax.tasks.task import Assets, SearchExperiment
from s2sjax.tasks.text_generation import GenerationTask, check_network, sample_numbers
from s2sjax.tasks.transcription.listener import Listener
from s2sjax.tasks.transcription.settings import SpellerModel


@settings
class Transcription(SearchExperiment):
    """An experiment that writes the labels of sequences of frames."""

    _: KW_ONLY
    data: LabelledSignals = LabelledSignals(ngram=0)
    """training and evaluation data; the second number of each of its buckets includes <eos>"""
    model: SpellerModel = SpellerModel()
    search: config.Search = config.Search(max_length=20)
    evaluate: RecognitionEvaluate = RecognitionEvaluate()

    def __post_init__(self):
        self.check_name()
        require(
            self.data.ngram == 0,
            "data.ngram is a language model for CTC: set data.ngram 0, because a decoder does not use it",
        )
        longest = -(-max(T for T, _ in self.data.buckets) // self.model.reduction)
        check_network(self.model.network, self.search, self.train, longest)

    def task(self) -> TranscriptionTask:
        return TranscriptionTask(self)


class TranscriptionTask(SignalTask, GenerationTask):
    """Signals to labels by an encoder-decoder. Assets: the statistics of the `features`, and the labels as `target`."""

    experiment: Transcription
    label_column = "target"
    json_assets: ClassVar = {"features": assets.Statistics}

    # ------------------------------------------------------------------------------------ data

    @property
    def reader(self) -> Any:
        return config.encoder_and_decoder(self.experiment.model.network)[0]

    def learn_assets(self, data: Sequence[Signal]) -> Assets:
        labels = self.corpus.alphabet
        for label in labels:
            require(len(label.split()) == 1, f"data.corpus has the label {label!r}, which contains blanks: rename it")
        return {
            "features": assets.Statistics.of([signal.frames for signal in data]),
            "target": text.Vocabulary("words", labels, normalize="none"),
        }

    columns_use_seed = False

    def columns(self, data: Sequence[Signal]) -> Columns:
        return self._columns(data, [signal.labels for signal in data])

    def _columns(self, data: Sequence[Signal], labels: Sequence[Sequence[str]]) -> Columns:
        target = Ragged.of_ids([self.target.encode(" ".join(each)) for each in labels])
        return self.frame_columns(data, {"target": target})

    # ----------------------------------------------------------------------------------- model

    def frontend(self, dtype: Any) -> Listener:
        m = self.experiment.model
        return Listener(
            self.corpus.features, self.reader.embedding_size, m.stack, m.channels, m.normalize, m.dropout, dtype
        )

    def source_of(self, batch: Mapping[str, Any]) -> tuple:
        return batch["frames"], batch["frames_lengths"]

    def source_example(self) -> tuple:
        return jnp.zeros((1, 1, self.corpus.features)), jnp.ones(1, jnp.int32)

    # ----------------------------------------------------------------------------- predictions

    @property
    def layout(self) -> str:
        return f"frames of {self.corpus.features} features, {self.experiment.model.reduction} as one"

    def columns_with(self, examples: Sequence[Signal], outputs: Sequence[Transcript] | None) -> Columns:
        labels = [()] * len(examples) if outputs is None else [output.labels for output in outputs]
        numbers = sample_numbers([example.name for example in examples])
        return self._columns(examples, labels)._replace(example=numbers)

    def output_of(self, found: Output) -> Transcript:
        return Transcript(tuple(found.text.split()), found.score)

    def draw(self, path: Path, examples: Sequence[Any], outputs: Sequence[Any], weights: Sequence[np.ndarray]) -> None:
        """Draws the frames and the attention of each label over time."""
        from s2sjax.tasks.transcription import time_figure  # imports Matplotlib, which is slow

        n, each = self.experiment.model.reduction, []
        for example, output, alpha in zip(examples, outputs, weights):
            labels = [*output.labels, "<eos>"]
            alpha = alpha[: len(labels), : -(-len(example.frames) // n)]
            shown = example.frames, labels, alpha, n, self.show(example, output), self.corpus.seconds
            each.append(time_figure.FrameAttention(*shown))
        time_figure.draw(path, each)
