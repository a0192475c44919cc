"""Frames to a shorter sequence of labels, without an alignment: speech, pen strokes, written numbers.

Connectionist temporal classification (core/chains/ctc.py) trains an encoder of any family. Labels are decoded greedily,
or by prefix beam search with an n-gram language model of the training labels (core/chains/ctc_prefix_search.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config, models
from s2sjax.config import require, settings
from s2sjax.core.chains import ctc
from s2sjax.core.chains.ctc_prefix_search import prefix_search
from s2sjax.data import assets
from s2sjax.data.batching.columns import Columns, Ragged
from s2sjax.data.signals.signal_examples import Signal
from s2sjax.evaluate.prediction.batched_apply import Batched
from s2sjax.evaluate.prediction.heldout_loss import EvaluationLoss
from s2sjax.tasks.recognition.label_model import LabelModel
from s2sjax.tasks.recognition.recognizer import Recognizer
from s2sjax.tasks.recognition.settings import LabelledSignals, LabelSearch, RecognitionEvaluate, RecognizerModel
from s2sjax.tasks.signal_task import SignalTask, Transcript
from s2sjax.tasks.task import Assets, Predictor, SearchExperiment, Task, apply_model, check_positions
from s2sjax.training import multihost
from s2sjax.training.mesh import Rules
from s2sjax.training.train_state import Loss


@settings
class Recognition(SearchExperiment):
    """An experiment that recognises the labels of sequences of frames."""

    _: KW_ONLY
    data: LabelledSignals = LabelledSignals()
    model: RecognizerModel = RecognizerModel()
    search: LabelSearch = LabelSearch()
    evaluate: RecognitionEvaluate = RecognitionEvaluate()

    def __post_init__(self):
        self.check_name()
        self.refuse_train("recognition by CTC", "label_smoothing", "r_drop", "scheduled_sampling", "softmax")
        require(
            self.search.language_weight == 0 or self.data.ngram > 0,
            "search.language_weight requires a language model: set data.ngram above 0",
        )
        longest = -(-max(T for T, _ in self.data.buckets) // self.model.reduction)
        check_positions(self.model.encoder, longest)

    def task(self) -> RecognitionTask:
        return RecognitionTask(self)


def _apply(module: Recognizer, params: Any, batch: Mapping[str, Any], key: Array | None = None) -> tuple[Array, Array]:
    """Logits [B, T, V] and their lengths [B]."""
    return apply_model(module, params, batch["frames"], batch["frames_lengths"], key=key)


def _ctc(logits: Array, lengths: Array, batch: Mapping[str, Any]) -> dict[str, tuple[Array, Array]]:
    """The CTC loss of a batch (see `ctc.ctc_loss`), its labels [B, L] padded with 0."""
    return ctc.ctc_loss(logits, lengths, batch["labels"], jnp.sum(batch["labels"] > 0, axis=1))


class RecognitionTask(SignalTask):
    """Signals to labels by an encoder and CTC. Assets: the statistics of the `features`, and the `labels`."""

    experiment: Recognition
    settings_fields = ("search.beam_size",)
    json_assets: ClassVar = {"features": assets.Statistics, "labels": LabelModel}

    # ------------------------------------------------------------------------------------ data

    @property
    def labels(self) -> LabelModel:
        return self.assets["labels"]

    @property
    def reader(self) -> config.Family:
        return self.experiment.model.encoder

    def remarks(self, data: Sequence[Signal]) -> list[str]:
        short = sum(not self._feasible(signal) for signal in data)
        if not short:
            return []
        of_one = "1 training sequence has fewer frames than its labels need, so it has no effect"
        of_many = f"{short:,} training sequences have fewer frames than their labels need, so they have no effect"
        return [of_one if short == 1 else of_many]

    def _feasible(self, signal: Signal) -> bool:
        repeats = sum(a == b for a, b in pairwise(signal.labels))
        return -(-len(signal.frames) // self.experiment.model.reduction) >= len(signal.labels) + repeats

    def learn_assets(self, data: Sequence[Signal]) -> Assets:
        require(
            bool(self.corpus.alphabet),
            "data.corpus has text of any words, and recognition by CTC writes the labels of an alphabet: use "
            "transcription",
        )
        labels = LabelModel.of(self.corpus.alphabet, (), 0)
        sequences = [labels.ids(signal.labels) for signal in data]
        return {
            "features": assets.Statistics.of([signal.frames for signal in data]),
            "labels": LabelModel.of(labels.alphabet, sequences, self.experiment.data.ngram),
        }

    columns_use_seed = False

    def columns(self, data: Sequence[Signal], labelled: bool = True) -> Columns:
        labels = Ragged.of_labels([self.labels.ids(signal.labels) for signal in data if labelled])
        return self.frame_columns(data, {"labels": labels} if labelled else {})

    # ----------------------------------------------------------------------------------- model

    @property
    def model_name(self) -> str:
        return f"{type(self.experiment.model.encoder).__name__} encoder and CTC"

    @property
    def module(self) -> Recognizer:
        e, m = self.experiment, self.experiment.model
        return Recognizer(
            m.encoder, self.corpus.features, self.labels.symbols, m.stack, m.channels, m.normalize,
            m.dropout, jnp.dtype(e.train.dtype), e.train.remat,
        )  # fmt: skip

    def init(self, key: Array) -> Any:
        return self.module.init(key, jnp.zeros((1, 1, self.corpus.features)), jnp.ones(1, jnp.int32))["params"]

    def loss(self, columns: Any = None) -> Loss:
        """The CTC loss of randomly changed examples."""
        module = self.module
        return lambda params, batch, key, step: _ctc(*_apply(module, params, self.augmented(batch, step), key), batch)

    def evaluation_loss(self) -> EvaluationLoss:
        module = self.module
        return lambda params, batch: {"loss": _ctc(*_apply(module, params, batch), batch)["loss"]}

    @property
    def rules(self) -> Rules:
        return models.encoder_rules(self.experiment.model.encoder)

    # ----------------------------------------------------------------------------- predictions

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        e = self.experiment
        require(not others, "recognition by CTC has no ensembles: name one run")
        batched = Batched(self._search(), [(T,) for T, _ in e.data.buckets], e.evaluate.batch_size, mesh, self.longest)

        def predict(params: Any, examples: Sequence[Signal]) -> list[Transcript]:
            found = batched(params, self.columns(examples, labelled=False))
            names = self.labels.alphabet
            return [Transcript(tuple(names[i - 1] for i in ids[:n]), float(score)) for ids, n, score in found]

        return predict

    def _search(self) -> Callable:
        """search(params, batch) -> labels [B, *], their number [B], score [B]."""
        module, search = self.module, self.experiment.search
        model = self.labels.language_model if search.language_weight else None

        def best(log_probs: Array, length: Array) -> tuple[Array, Array, Array]:
            if search.beam_size == 1:
                return ctc.greedy(log_probs, length)
            found = prefix_search(
                log_probs, length, search.beam_size, len(log_probs), model, search.language_weight, search.bonus
            )
            return found.labels[0], found.length[0], found.score[0]

        def apply(params: Any, batch: dict[str, Array]) -> tuple[Array, Array, Array]:
            logits, lengths = _apply(module, params, batch)
            return jax.vmap(best)(jax.nn.log_softmax(logits), lengths)

        return apply

    def settings_text(self) -> str:
        beam = self.experiment.search.beam_size
        return "greedy" if beam == 1 else f"beam {beam}"

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Any]) -> list[Path]:
        """Draws some held-out examples: frames, and the probability of each label over time."""
        e, split = self.experiment, self.default_split
        if not e.evaluate.drawn or split is None:
            return []
        examples, params, module = self.examples(split)[: e.evaluate.drawn], restore(), self.module
        outputs = self.predictor(mesh)(params, examples)
        batched = Batched(partial(_apply, module), [(T,) for T, _ in e.data.buckets], len(examples), mesh, self.longest)
        found = batched(params, self.columns(examples, labelled=False))
        path = folder / "spikes.png"
        if multihost.is_leader():
            from s2sjax.tasks.recognition import spikes  # imports Matplotlib, which is slow

            drawn = []
            for example, output, (logits, length) in zip(examples, outputs, found):
                log_probs, ids = jax.nn.log_softmax(logits[:length]), self.labels.ids(output.labels)
                states, _ = ctc.align(log_probs, length, jnp.array(ids, int), jnp.array(len(ids)))
                drawn.append(spikes.Spikes(
                    example.frames, np.exp(log_probs), self.labels.alphabet, ids, np.asarray(states),
                    e.model.reduction, self.show(example, output), self.corpus.seconds,
                ))  # fmt: skip
            spikes.spike_figure(path, drawn)
        return [path]
