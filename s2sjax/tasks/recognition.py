"""Frames to a shorter sequence of labels, without an alignment: speech, pen strokes, written numbers.

Any encoder reads the frames; connectionist temporal classification (core/ctc.py) trains it. Labels are found greedily,
or by prefix beam search with an n-gram language model of the training labels (core/prefix_search.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config, models
from s2sjax.config import at_least, check_buckets, require, settings
from s2sjax.core import augment, ctc
from s2sjax.core.prefix_search import prefix_search
from s2sjax.data import assets
from s2sjax.data.columns import Bucket, Columns, Ragged
from s2sjax.data.label_models import LabelModel
from s2sjax.data.signals import Signal, Signals
from s2sjax.data.written import SklearnDigits
from s2sjax.evaluate.batched import Batched
from s2sjax.evaluate.dev_loss import EvaluationLoss
from s2sjax.evaluate.metrics import Result
from s2sjax.models.recognizer import Recognizer
from s2sjax.tasks.signal_task import SignalTask, Transcript, error_rates
from s2sjax.tasks.task import Assets, Predictor, Task, abstract
from s2sjax.training import hosts
from s2sjax.training.mesh import Rules
from s2sjax.training.state import Loss

# ------------------------------------------------------------------------------------- settings


@settings
class Augment:
    """Random changes of training examples, drawn from (seed, step, example): see s2sjax/core/augment.py."""

    speed: float = 0.0
    """largest relative change of the duration"""
    pitch: float = 0.0
    """largest relative shift along the features, as by another vocal tract"""
    noise: float = 0.0
    """standard deviation of noise that is added to the normalised features"""
    time_masks: int = 0
    """number of runs of frames that are set to 0"""
    time_width: int = 0
    """most frames of such a run"""
    feature_masks: int = 0
    """number of runs of features that are set to 0"""
    feature_width: int = 0
    """most features of such a run"""

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
    """Examples of a corpus, as columns of frames and labels."""

    corpus: Signals = field(default_factory=SklearnDigits)
    """where they come from"""
    augment: Augment = Augment()
    """random changes of training examples"""
    ngram: int = 2
    """order of the language model of the training labels, for search.language_weight; 0 for none"""
    buckets: tuple[tuple[int, int], ...] = ((32, 8), (64, 8))
    """padded numbers of frames and labels"""
    tokens: int = 2048
    """budget of a batch: rows x (frames + labels)"""
    prefetch: int = 4
    """batches made ahead by Grain's threads"""

    def __post_init__(self):
        at_least(1, self, "data", "tokens")
        at_least(0, self, "data", "prefetch", "ngram")
        check_buckets(self.buckets)


class FrameModel:
    """What the settings of models that read frames have in common."""

    stack: int
    channels: int
    dropout: float

    def check_frames(self) -> None:
        at_least(1, self, "model", "stack")
        at_least(0, self, "model", "channels")
        require(
            self.stack == 1 or self.channels == 0,
            "model.channels already reads four frames as one: set model.stack 1, or model.channels 0",
        )
        require(0 <= self.dropout < 1, f"model.dropout is {self.dropout}: it must be in [0, 1)")

    @property
    def reduction(self) -> int:
        """Frames that become one."""
        return 4 if self.channels else self.stack


@settings
class RecognizerModel(FrameModel):
    """An encoder of any family, and a dense layer."""

    encoder: config.Family = field(
        default_factory=lambda: config.Luong(width=128, embedding=0, layers=2, bidirectional=True, dropout=0.2)
    )
    """reads the frames; its `embedding` is the width that they are projected to, 0 for none"""
    stack: int = 1
    """frames that are read as one"""
    channels: int = 0
    """channels of two convolutions over time and features below the encoder, which read four frames as one; 0: none"""
    normalize: bool = False
    """scale each feature to mean 0 and deviation 1 over the frames of each example"""
    dropout: float = 0.0
    """dropout rate of what the output layer reads"""

    def __post_init__(self):
        self.check_frames()


@settings
class LabelSearch:
    """How labels are found."""

    beam: int = 1
    """prefixes of prefix beam search; 1: the labels of the most probable alignment (greedy)"""
    language_weight: float = 0.0
    """weight of the log-probability of the language model: see data.ngram"""
    bonus: float = 0.0
    """score of each label, against short outputs"""

    def __post_init__(self):
        at_least(1, self, "search", "beam")
        at_least(0, self, "search", "language_weight")
        require(
            self.beam > 1 or (self.language_weight == 0 and self.bonus == 0),
            "search.language_weight and search.bonus are of prefix beam search: set search.beam above 1",
        )


@settings
class LabelEvaluate(config.EvaluationSettings):
    metrics: tuple[Literal["ler", "ser"], ...] = ("ler", "ser")
    """label error rate (edit distance) and sequence error rate; the first one decides which checkpoint is best"""
    lines: int = 500
    """dev examples predicted at each evaluation during training"""
    samples: int = 0
    """dev examples shown at each evaluation"""
    rows: int = 64
    """examples predicted at once"""
    drawn: int = 3
    """examples drawn after training, of the split that is scored then"""

    def __post_init__(self):
        at_least(1, self, "evaluate", "rows", "lines")
        at_least(0, self, "evaluate", "samples", "drawn")
        require(len(self.metrics) > 0, "evaluate.metrics is empty: name at least one metric")


@settings
class Recognition(config.Experiment):
    """An experiment that finds the labels of sequences of frames."""

    name: str
    """the run goes to runs/NAME"""
    data: LabelledSignals = LabelledSignals()
    """what to learn from"""
    model: RecognizerModel = RecognizerModel()
    """what learns"""
    train: config.Train = config.Train()
    """how it learns"""
    search: LabelSearch = LabelSearch()
    """how it finds labels"""
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
        self.refuse_train("recognition by CTC", "label_smoothing", "r_drop", "scheduled_sampling", "softmax")
        require(
            self.search.language_weight == 0 or self.data.ngram > 0,
            "search.language_weight requires a language model: set data.ngram above 0",
        )
        longest = -(-max(T for T, _ in self.data.buckets) // self.model.reduction)
        places = self.model.encoder.max_positions
        require(
            places is None or places >= longest,
            f"model.encoder.max_length {places} is shorter than the longest of data.buckets, {longest} frames that are "
            "read: raise it",
        )

    def task(self) -> RecognitionTask:
        return RecognitionTask(self)


# ----------------------------------------------------------------------------------------- task


def _ctc(
    module: Recognizer, params: Any, frames: Any, lengths: Any, labels: Any, train: bool = False, rngs: Any = None
) -> dict[str, tuple[Array, Array]]:
    """The loss of a batch, see `ctc.ctc_loss`; labels [B, L], 0 after the last."""
    logits, lengths = module.apply({"params": params}, frames, lengths, train, rngs=rngs)
    return ctc.ctc_loss(logits, lengths, labels, jnp.sum(labels > 0, axis=1))


class RecognitionTask(SignalTask):
    """Signals through an encoder and CTC. Assets: the statistics of the `features`, and the `labels`."""

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
        of_one = "1 training sequence has fewer frames than its labels need: it has no effect"
        of_many = f"{short:,} training sequences have fewer frames than their labels need: they have no effect"
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
        """CTC of the changed examples."""
        module, ranges, seed = self.module, self.experiment.data.augment.ranges, self.experiment.seed

        def loss(params: Any, batch: dict[str, Array], key: Array, step: Array) -> dict[str, tuple[Array, Array]]:
            frames, lengths = batch["frames"], batch["frames_lengths"]
            if any(ranges):
                # Of (seed, step, example), whatever the other rows are; not of `key`, which differs by micro-batch.
                keys = augment.example_keys(seed, step, batch["example"])
                frames, lengths = jax.vmap(partial(augment.augment, ranges))(keys, frames, lengths)
            return _ctc(module, params, frames, lengths, batch["labels"], True, {"dropout": key})

        return loss

    def evaluation_loss(self) -> EvaluationLoss:
        module = self.module

        def loss(params: Any, batch: dict[str, Any]) -> dict[str, tuple[Array, Array]]:
            return {"loss": _ctc(module, params, batch["frames"], batch["frames_lengths"], batch["labels"])["loss"]}

        return loss

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        T, L = bucket
        return abstract(
            frames=((rows, T, self.corpus.features), np.float32), frames_lengths=((rows,), np.int32),
            labels=((rows, L), np.int32), example=((rows,), np.int32),
        )  # fmt: skip

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

    def settings_text(self) -> str:
        beam = self.experiment.search.beam
        return "greedy" if beam == 1 else f"beam {beam}"

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Any]) -> list[Path]:
        """Draws some examples that training has not seen: frames, and the probability of each label over time."""
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
