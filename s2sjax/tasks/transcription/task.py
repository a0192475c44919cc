"""Frames to labels by an attention decoder: Listen, Attend and Spell (Chan et al. 2016).

The corpora, random changes and error rates are those of recognition by CTC (tasks/recognition), so that both can be
compared. Here a decoder writes the labels one by one, each conditioned on those before it.

A corpus of free text has no alphabet: its vocabulary is that of a pretrained model, and its labels are words. If it has
windows (data/signals/spoken_text.py), each window is decoded alone, and the words of all are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import config
from s2sjax.config import require, settings
from s2sjax.data import assets, text
from s2sjax.data.assets import Statistics
from s2sjax.data.batching.columns import Columns, Ragged
from s2sjax.data.signals.signal_examples import Signal
from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.evaluate.prediction.translator import Output
from s2sjax.tasks.recognition.settings import LabelledSignals, RecognitionEvaluate
from s2sjax.tasks.signal_task import SignalTask, Transcript
from s2sjax.tasks.task import Assets, Predictor, SearchExperiment, Task
from s2sjax.tasks.text_generation import GenerationTask, check_network, sample_numbers
from s2sjax.tasks.transcription.convolutions import Convolutions
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
        window = self.data.corpus.window_frames
        require(
            not window or all(window == T for T, _ in self.data.buckets),
            f"data.corpus has windows of {window} frames, which the model reads in full: set data.buckets to "
            f"(({window}, {self.search.max_length}),), the second number being that of tokens",
        )

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
        require(
            bool(labels),
            "data.corpus has text of any words, whose vocabulary comes with a pretrained model: set init of the "
            "experiment to an imported run, or use --init RUN --init-assets",
        )
        for label in labels:
            require(len(label.split()) == 1, f"data.corpus has the label {label!r}, which contains blanks: rename it")
        return {
            "features": assets.Statistics.of([signal.frames for signal in data]),
            "target": text.Vocabulary("words", labels, normalize="none"),
        }

    def adopt_assets(self, data: Sequence[Signal], assets: Assets) -> Assets:
        if self.corpus.alphabet:
            return super().adopt_assets(data, assets)
        features, target = assets.get("features"), assets.get("target")
        require(
            isinstance(features, Statistics) and isinstance(target, PretrainedVocabulary),
            "the other run has no pretrained vocabulary, which the text of data.corpus requires: name an imported run",
        )
        assert isinstance(features, Statistics)
        require(
            features.features == self.corpus.features,
            f"the other run reads {features.features} features, and data.corpus has {self.corpus.features}: set "
            f"data.corpus.audio.filters {features.features}",
        )
        return {"features": features, "target": target}

    columns_use_seed = False

    @property
    def longest(self) -> int | None:
        return self.corpus.window_frames or super().longest

    def _checked(self, signal: Signal, where: str) -> Signal:
        return signal if self.corpus.window_frames else super()._checked(signal, where)

    def columns(self, data: Sequence[Signal]) -> Columns:
        return self._columns(data, [signal.labels for signal in data])

    def _columns(self, data: Sequence[Signal], labels: Sequence[Sequence[str]]) -> Columns:
        return self.frame_columns(data, {"target": Ragged.of_ids([self._ids(each) for each in labels])})

    def _ids(self, labels: Sequence[str]) -> list[int]:
        return self.target.encode(" ".join(labels))

    # ----------------------------------------------------------------------------------- model

    def frontend(self, dtype: Any) -> Listener | Convolutions:
        m = self.experiment.model
        if m.convolve:
            return Convolutions(self.corpus.features, self.reader.embedding_size, m.dropout, dtype)
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
        # The ids of a decoded text may be more than those that it was decoded from.
        places = config.encoder_and_decoder(self.network)[1].max_positions
        ids = [[]] * len(examples) if outputs is None else [self._ids(output.labels) for output in outputs]
        target = Ragged.of_ids([each[: places - 1] if places else each for each in ids])
        numbers = sample_numbers([example.name for example in examples])
        return self.frame_columns(examples, {"target": target})._replace(example=numbers)

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        predict_each = super().predictor(mesh, others)

        def predict(params: Any, examples: Sequence[Signal]) -> list[Transcript]:
            parts = [self._windows(example) for example in examples]
            found = iter(predict_each(params, [window for windows in parts for window in windows]))
            return [_joined([next(found) for _ in windows]) for windows in parts]

        return predict

    def _windows(self, signal: Signal) -> list[Signal]:
        """The parts of a signal that the model reads alone: one, if there are no windows."""
        size = self.corpus.window_frames
        if len(signal.frames) <= size or not size:
            return [signal]
        starts = range(0, len(signal.frames), size)
        return [Signal(signal.frames[at : at + size], (), f"{signal.name} from frame {at}") for at in starts]

    def drawn_examples(self, split: str, count: int) -> list[Signal]:
        return [signal for signal in self.examples(split) if len(self._windows(signal)) == 1][:count]

    def output_of(self, found: Output) -> Transcript:
        return Transcript(tuple(found.text.split()), found.score)

    def draw(self, path: Path, examples: Sequence[Any], outputs: Sequence[Any], weights: Sequence[np.ndarray]) -> None:
        """Draws the frames and the attention of each label over time."""
        from s2sjax.tasks.transcription import time_figure  # imports Matplotlib, which is slow

        n, each = self.experiment.model.reduction, []
        for example, output, alpha in zip(examples, outputs, weights):
            labels = [*self.target.pieces(self._ids(output.labels)), "<eos>"][: len(alpha)]
            alpha = alpha[: len(labels), : -(-len(example.frames) // n)]
            shown = example.frames, labels, alpha, n, self.show(example, output), self.corpus.seconds
            each.append(time_figure.FrameAttention(*shown))
        time_figure.draw(path, each)


def _joined(parts: Sequence[Transcript]) -> Transcript:
    """The words of all windows, with their mean score."""
    labels = tuple(label for part in parts for label in part.labels)
    return Transcript(labels, sum(part.score for part in parts) / len(parts))
