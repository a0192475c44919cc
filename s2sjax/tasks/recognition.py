"""Frames to a shorter sequence of labels, without an alignment: speech, pen strokes, written numbers.

Connectionist temporal classification (core/ctc.py) trains an encoder of any family. Labels are decoded greedily, or by
prefix beam search with an n-gram language model of the training labels (core/prefix_search.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config, models
from s2sjax.config import at_least, check_buckets, require, settings
from s2sjax.core import augment, ctc
from s2sjax.core.prefix_search import prefix_search
from s2sjax.data import assets
from s2sjax.data.columns import Columns, Ragged
from s2sjax.data.label_models import LabelModel
from s2sjax.data.signals import Signal, Signals
from s2sjax.data.written import SklearnDigits
from s2sjax.evaluate.batched import Batched
from s2sjax.evaluate.dev_loss import EvaluationLoss
from s2sjax.models.recognizer import Recognizer
from s2sjax.tasks.signal_task import SignalTask, Transcript
from s2sjax.tasks.task import Assets, Predictor, SearchExperiment, Task, check_positions
from s2sjax.training import hosts
from s2sjax.training.mesh import Rules
from s2sjax.training.state import Loss

# ------------------------------------------------------------------------------------- settings


@settings
class Augment:
    """Random changes of training examples, a function of (seed, step, example): see s2sjax/core/augment.py."""

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
        at_least(0, self, "data.augment", *augment.Ranges._fields)
        for name in ("speed", "pitch"):
            require(getattr(self, name) < 1, f"data.augment.{name} is {getattr(self, name)}: it must be below 1")
        for kind in ("time", "feature"):
            masks, width = getattr(self, f"{kind}_masks"), getattr(self, f"{kind}_width")
            require(
                (masks > 0) == (width > 0),
                f"data.augment.{kind}_masks is {masks} and {kind}_width {width}: set both, or neither",
            )

    @property
    def ranges(self) -> augment.Ranges:
        return augment.Ranges(*(getattr(self, name) for name in augment.Ranges._fields))


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
    tokens: int = 2048
    """budget of a batch: rows x (frames + labels)"""
    prefetch: int = 4
    """batches that Grain's threads prepare in advance"""

    def __post_init__(self):
        at_least(1, self, "data", "tokens")
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
        default_factory=lambda: config.Luong(width=128, embedding=0, layers=2, bidirectional=True, dropout=0.2)
    )
    """family of the encoder; its `embedding` is the width to which frames are projected, 0: no projection"""


@settings
class LabelSearch:
    """Decoding of labels."""

    beam: int = 1
    """number of prefixes of prefix beam search; 1: the labels of the most probable alignment (greedy)"""
    language_weight: float = 0.0
    """weight of the log-probability of the language model: see data.ngram"""
    bonus: float = 0.0
    """score added for each label, to counter a preference for short outputs"""

    def __post_init__(self):
        at_least(1, self, "search", "beam")
        at_least(0, self, "search", "language_weight")
        require(
            self.beam > 1 or (self.language_weight == 0 and self.bonus == 0),
            "search.language_weight and search.bonus apply to prefix beam search: set search.beam above 1",
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


LabelEvaluate = RecognitionEvaluate  # its name in config.json of older runs


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


# ----------------------------------------------------------------------------------------- task


def _ctc(
    module: Recognizer, params: Any, batch: Mapping[str, Any], key: Array | None = None
) -> dict[str, tuple[Array, Array]]:
    """The CTC loss of a batch (see `ctc.ctc_loss`), its labels [B, L] padded with 0; dropout if there is a key."""
    rngs = None if key is None else {"dropout": key}
    inputs = batch["frames"], batch["frames_lengths"], key is not None
    found: Any = module.apply({"params": params}, *inputs, rngs=rngs)
    logits, lengths = found
    return ctc.ctc_loss(logits, lengths, batch["labels"], jnp.sum(batch["labels"] > 0, axis=1))


class RecognitionTask(SignalTask):
    """Signals to labels by an encoder and CTC. Assets: the statistics of the `features`, and the `labels`."""

    experiment: Recognition
    settings_fields = ("search.beam",)

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
        labels = LabelModel.of(self.corpus.alphabet, (), 0)
        sequences = [labels.ids(signal.labels) for signal in data]
        return {
            "features": assets.Statistics.of([signal.frames for signal in data]),
            "labels": LabelModel.of(labels.alphabet, sequences, self.experiment.data.ngram),
        }

    def load_assets(self, folder: Path, names: Sequence[str]) -> Assets:
        kinds = {"features": assets.Statistics, "labels": LabelModel}
        return {name: assets.load_json(kind, folder, name) for name, kind in kinds.items()}

    def columns(self, data: Sequence[Signal], labelled: bool = True) -> Columns:
        features, count = self.assets["features"], len(data)
        columns = {"frames": Ragged.of_frames([features.apply(signal.frames) for signal in data])}
        if labelled:
            columns["labels"] = Ragged.of_labels([self.labels.ids(signal.labels) for signal in data])
        return Columns(columns, {}, np.arange(count, dtype=np.int32), (count,))

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

        def loss(params: Any, batch: dict[str, Array], key: Array, step: Array) -> dict[str, tuple[Array, Array]]:
            return _ctc(module, params, self.augmented(batch, step), key)

        return loss

    def evaluation_loss(self) -> EvaluationLoss:
        module = self.module

        def loss(params: Any, batch: dict[str, Any]) -> dict[str, tuple[Array, Array]]:
            return {"loss": _ctc(module, params, batch)["loss"]}

        return loss

    @property
    def rules(self) -> Rules:
        return models.encoder_rules(self.experiment.model.encoder)

    def check_mesh(self, mesh: Mapping[str, int]) -> None:
        models.check_scan_mesh("a loss by CTC", mesh)

    # ----------------------------------------------------------------------------- predictions

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        e = self.experiment
        require(not others, "recognition by CTC has no ensembles: name one run")
        batched = Batched(self._search(), [(T,) for T, _ in e.data.buckets], e.evaluate.rows, mesh, self.longest)

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
            if search.beam == 1:
                return ctc.greedy(log_probs, length)
            found = prefix_search(
                log_probs, length, search.beam, len(log_probs), model, search.language_weight, search.bonus
            )
            return found.labels[0], found.length[0], found.score[0]

        def apply(params: Any, batch: dict[str, Array]) -> tuple[Array, Array, Array]:
            found: Any = module.apply({"params": params}, batch["frames"], batch["frames_lengths"])
            logits, lengths = found
            return jax.vmap(best)(jax.nn.log_softmax(logits), lengths)

        return apply

    def settings_text(self) -> str:
        beam = self.experiment.search.beam
        return "greedy" if beam == 1 else f"beam {beam}"

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Any]) -> list[Path]:
        """Draws some held-out examples: frames, and the probability of each label over time."""
        e, split = self.experiment, self.default_split
        if not e.evaluate.drawn or split is None:
            return []
        examples, params, module = self.examples(split)[: e.evaluate.drawn], restore(), self.module
        outputs = self.predictor(mesh)(params, examples)
        apply = lambda params, batch: module.apply({"params": params}, batch["frames"], batch["frames_lengths"])
        batched = Batched(apply, [(T,) for T, _ in e.data.buckets], len(examples), mesh, self.longest)
        found = batched(params, self.columns(examples, labelled=False))
        path = folder / "spikes.png"
        if hosts.is_leader():
            from s2sjax.evaluate import spikes  # imports Matplotlib, which is slow

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
