"""Classification of sequences: sentences by topic or sentiment, recordings by speaker.

The encoder of any family reads text or frames; its states are pooled into one vector, from which a dense layer
computes the logits of the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.config import require, settings
from s2sjax.core import losses
from s2sjax.core.special_tokens import CLS, PAD
from s2sjax.data import text
from s2sjax.data.assets import Labels, Statistics, sha256
from s2sjax.data.batching.columns import Bucket, Columns, Ragged
from s2sjax.data.data_notes import Sides
from s2sjax.errors import UserError
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult
from s2sjax.evaluate.prediction.batched_apply import Batched
from s2sjax.evaluate.prediction.heldout_loss import EvaluationLoss
from s2sjax.layers.embedding import Spelling
from s2sjax.tasks.classification import label_metrics as scores
from s2sjax.tasks.classification import labelled_examples
from s2sjax.tasks.classification.classifier import Classifier, Labelling
from s2sjax.tasks.classification.labelled_examples import Labelled
from s2sjax.tasks.classification.settings import LabelData, LabelEvaluate, LabelModel
from s2sjax.tasks.task import Assets, EncoderTask, Predictor, Task, abstract, apply_model, check_positions, only_row
from s2sjax.tasks.vocabulary_transfer import source_vocabulary, word_rows
from s2sjax.training import multihost
from s2sjax.training.checkpoints.transfer import Rows
from s2sjax.training.train_state import Loss


@settings
class Classification(config.Experiment):
    """An experiment that gives each sequence one of a set of labels."""

    _: KW_ONLY
    data: LabelData = LabelData()
    model: LabelModel = LabelModel()
    evaluate: LabelEvaluate = LabelEvaluate()

    init_fields: ClassVar = ("model", "data.text")
    free_fields: ClassVar = (
        "data.corpus.folder", "evaluate.dev_examples", "evaluate.samples", "evaluate.batch_size", "evaluate.figure",
    )  # fmt: skip

    def task(self) -> ClassificationTask:
        return ClassificationTask(self)

    def __post_init__(self):
        self.check_name()
        self.refuse_train("a classification", "r_drop", "scheduled_sampling", "softmax")
        encoder = self.model.encoder
        check_positions(encoder, self.data.buckets[-1][0])
        require(
            self.train.remat != "products" or not encoder.encoder_is_products,
            f"train.remat products frees nothing of a {type(encoder).__name__} encoder: set layers, or none",
        )
        require(
            encoder.embedding_size > 0 or not self.data.text.spelling.on,
            "data.text.spelling.on builds word vectors: raise model.encoder.embedding_size above 0",
        )


def _apply(module: Classifier, params: Any, batch: Mapping[str, Array], key: Array | None = None) -> Labelling:
    return apply_model(module, params, batch["source"], batch.get("source_lengths"), key=key)


def evaluation_loss(
    module: Classifier, params: Any, batch: dict[str, Array], key: Array | None = None, smoothing: float = 0.0
) -> dict[str, losses.Total]:
    """The cross-entropy of a batch: its sum, and the number of examples. In training, with the `key` of dropout."""
    logits = _apply(module, params, batch, key).logits
    real = batch["source_lengths"] > 0 if "source_lengths" in batch else (batch["source"] != PAD).any(-1)  # [B]
    return {"loss": losses.cross_entropy(logits, batch["label"], real, smoothing)}


class Prediction(NamedTuple):
    """The predicted label of a sequence."""

    label: str
    probability: float
    """probability of the label"""
    probabilities: Mapping[str, float]
    """probability of each label"""
    attention: np.ndarray | None = None
    """attention to each position [S], the mean over the queries"""

    def __str__(self) -> str:
        return self.label


class ClassificationTask(EncoderTask):
    """Sequences to labels. Assets: the `labels`, and the vocabulary `text` or the statistics `frames`."""

    has_ensembles = True
    higher_is_better = True
    json_assets: ClassVar = {"labels": Labels, "frames": Statistics}
    experiment: Classification

    # ------------------------------------------------------------------------------------ data

    def examples(self, split: str) -> list[Labelled]:
        return labelled_examples.load(self.experiment.data.corpus, split)  # type: ignore[arg-type]

    def example_of(self, line: str, where: str) -> Labelled:
        require(line.strip() != "", f"{where} is empty: write a text, or frames separated by tabs")
        source: Any = line.strip() if "text" in self.assets else labelled_examples.parse_frames(line.split("\t"), where)
        example = Labelled(source, "", where)
        self._check_lengths(self.columns([example]), [example])
        return example

    def blank_example(self) -> Labelled:
        return Labelled("a" if "text" in self.assets else np.zeros((1, self._features)), "")

    def fingerprint(self, data: Sequence[Labelled]) -> str:
        as_bytes = lambda source: source.encode() if isinstance(source, str) else source.tobytes()
        return sha256(as_bytes(source) + f"\t{label}\n".encode() for source, label, _ in data)

    def sides(self, split: str, examples: Sequence[Labelled]) -> Iterable[Sides]:
        plain = lambda source: source if isinstance(source, str) else source.tobytes()
        return (Sides(plain(example.source), (example.label,)) for example in examples)

    def check_examples(self, split: str, examples: Sequence[Labelled]) -> None:
        """Raises for labels that training does not have and, in dev and test, for sources that are too long."""
        columns = self.columns(examples)
        if split != "train":
            self._check_lengths(columns, examples)

    def _check_lengths(self, columns: Columns, examples: Sequence[Labelled]) -> None:
        """Raises if an example is too long for the model."""
        most, lengths = self.longest, columns.lengths[:, 0]
        for row in np.flatnonzero(lengths > most)[:1]:
            where = f"{examples[row].where} has {lengths[row]} positions"
            raise UserError(f"{where}, the model reads at most {most}: shorten it")

    def learn_assets(self, data: Sequence[Labelled]) -> Assets:
        found: dict[str, Any] = {"labels": Labels.of([example.label for example in data])}
        require(
            len(found["labels"].names) > 1,
            f"all training examples have the label {found['labels'].names[0]!r}: give examples of two or more labels",
        )
        if isinstance(data[0].source, str):
            options = self.experiment.data.text
            return found | {"text": text.build(options, [str(example.source) for example in data])}
        require(self.experiment.model.word_dropout == 0, "model.word_dropout is for text, not for frames: set it to 0")
        return found | {"frames": Statistics.of([np.asarray(example.source) for example in data])}

    def adopt_assets(self, data: Sequence[Labelled], assets: Assets) -> Assets:
        """Combines the vocabulary of the other run with the labels of this one."""
        other, options = source_vocabulary(assets), self.experiment.data.text
        if other is None:
            raise UserError("the other run has no source vocabulary: leave out --init-assets")
        for name in ("unit", "normalize"):
            there, wanted = getattr(other, name), getattr(options, name)
            require(
                there == wanted,
                f"the vocabulary of the other run has {name} {there}, data.text.{name} is {wanted}: make them equal",
            )
        return {"labels": Labels.of([example.label for example in data]), "text": other}

    def _encoded(self, example: Labelled) -> Any:
        if isinstance(example.source, str):
            cls = text.mark(self.assets["text"], CLS)
            return [*([cls] if cls >= 0 else []), *self.assets["text"].encode(example.source)]
        found, features = example.source.shape[-1], self._features
        require(found == features, f"{example.where} has frames of {found} numbers: write {features} in each frame")
        return self.assets["frames"].apply(example.source)

    columns_use_seed = False

    def columns(self, data: Sequence[Labelled]) -> Columns:
        encoded = [self._encoded(example) for example in data]
        source = Ragged.of_ids(encoded) if "text" in self.assets else Ragged.of_frames(encoded)
        number = self.assets["labels"].number  # an example of `decode` has no label
        label = [number(example.label, example.where) if example.label else 0 for example in data]
        dense = {"label": np.array(label, np.int32)}
        return Columns({"source": source}, dense, np.arange(len(data), dtype=np.int32), (len(data),))

    def describe(self, columns: Any, plan: Any) -> list[str]:
        first, *others = super().describe(columns, plan)
        names = self.assets["labels"].names
        read = f"vocabulary {self.assets['text'].size:,}" if "text" in self.assets else f"{self._features} features"
        return [f"{first}, {read}, {len(names)} labels", *others]

    # ----------------------------------------------------------------------------------- model

    @property
    def model_name(self) -> str:
        model = self.experiment.model
        return f"{type(model.encoder).__name__} + {model.pooling}"

    @property
    def _features(self) -> int:
        return self.assets["frames"].features if "frames" in self.assets else 0

    @property
    def module(self) -> Classifier:
        e, vocabulary = self.experiment, self.assets.get("text")
        m, options = e.model, e.data.text.spelling
        spelled = vocabulary if options.on and isinstance(vocabulary, text.Vocabulary) else None
        return Classifier(
            m.encoder, len(self.assets["labels"].names), m.pooling, m.queries, m.attention_width, m.dropout, m.initial,
            m.word_dropout, vocabulary.size if vocabulary else 0, self._features, jnp.dtype(e.train.dtype),
            e.train.remat, Spelling(spelled.spelling(options.length), options) if spelled else None,
        )  # fmt: skip

    def init(self, key: Array) -> Any:
        if self._features:
            return self.module.init(key, jnp.zeros((1, 1, self._features)), jnp.ones(1, jnp.int32))["params"]
        return self.module.init(key, jnp.ones((1, 1), jnp.int32))["params"]

    def loss(self, columns: Any = None) -> Loss:
        module, smoothing = self.module, self.experiment.train.label_smoothing
        return lambda params, batch, key, step: evaluation_loss(module, params, batch, key, smoothing)

    def evaluation_loss(self) -> EvaluationLoss:
        return partial(evaluation_loss, self.module)

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        label = {"label": ((rows,), np.int32)}
        if not self._features:
            return abstract(source=((rows, *bucket), np.int32), **label)
        frames = ((rows, *bucket, self._features), np.float32)
        return abstract(source=frames, source_lengths=((rows,), np.int32), **label)

    def transfer_rows(self, other: Task) -> dict[str, Rows | None]:
        """Maps the rows of the embedding by word, and resets the output layer if the labels differ."""
        found: dict[str, Rows | None] = {}
        if "text" in self.assets:
            found |= word_rows(self.assets["text"], source_vocabulary(other.assets), {"embedding/table": 0})
        if other.assets.get("labels") != self.assets["labels"]:
            found |= {"output/kernel": None, "output/bias": None}
        return found

    # ----------------------------------------------------------------------------- predictions

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        """The predictor of labels; an ensemble takes the mean of the probabilities."""
        modules = [task.module for task in (self, *others)]  # type: ignore[attr-defined]
        names, rows = self.assets["labels"].names, self.experiment.evaluate.batch_size

        def apply(params: Any, batch: Any) -> tuple[Array, Array | None]:
            each = [_apply(*one, batch) for one in zip(modules, params if others else [params], strict=True)]
            probabilities = sum(jax.nn.softmax(found.logits) for found in each) / len(each)
            attention = each[0].attention
            return jnp.asarray(probabilities), None if attention is None else attention.mean(1)

        batched = Batched(apply, self.experiment.data.buckets, rows, mesh, self.longest)

        def predict(params: Any, examples: Sequence[Labelled]) -> list[Prediction]:
            columns = self.columns(examples)
            self._check_lengths(columns, examples)
            return [
                prediction(found, None if attention is None else attention[: int(length)])
                for (found, attention), (length,) in zip(batched(params, columns), columns.lengths)
            ]

        def prediction(probabilities: np.ndarray, attention: np.ndarray | None) -> Prediction:
            each = {name: float(value) for name, value in zip(names, probabilities)}
            best = names[int(np.argmax(probabilities))]
            return Prediction(best, each[best], each, attention)

        return predict

    def encoder_input(self, line: str) -> tuple[list[str], tuple[Any, ...]]:
        if "text" not in self.assets:
            return super().encoder_input(line)
        ids = only_row(self.columns([self.example_of(line, "the line")]))["source"]
        return self.assets["text"].pieces(ids[0]), (ids,)

    def metrics(self, examples: Sequence[Labelled], outputs: Sequence[Prediction]) -> dict[str, MetricResult]:
        found, correct = [output.label for output in outputs], [example.label for example in examples]
        return {name: scores.METRICS[name](found, correct) for name in self.experiment.evaluate.metrics}

    def show(self, example: Labelled, output: Prediction) -> str:
        source = example.source if isinstance(example.source, str) else f"{len(example.source)} frames"
        verdict = "✓" if output.label == example.label else f"({example.label})"
        return f"{source}  ->  {output} {output.probability:.2f}  {verdict}"

    def record(self, example: Labelled, output: Prediction) -> dict[str, Any]:
        source = example.source
        if not isinstance(source, str):
            source = "\t".join(" ".join(f"{value:.6g}" for value in frame) for frame in source)
        references = [example.label] if example.label else []
        answer = {"hypothesis": output.label, "references": references, "probability": round(output.probability, 6)}
        return {"source": source, **answer}

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Any]) -> list[Path]:
        """Draws the confusion matrix of dev, and a few of its texts with the attention to each word."""
        if not self.has("dev"):
            return []
        from s2sjax.tasks.classification import label_figures  # imports Matplotlib, which is slow

        dev, names = self.examples("dev"), self.assets["labels"].names
        outputs = self.predictor(mesh)(restore(), dev)
        table = scores.confusion([o.label for o in outputs], [example.label for example in dev], names)
        written = [folder / "confusion.png"]
        few = self.experiment.evaluate.figure if self.experiment.model.pooling == "attention" else 0
        shaded = [self._shaded(*pair) for pair in zip(dev[:few], outputs)] if "text" in self.assets else []
        if multihost.is_leader():
            label_figures.confusion_matrix(written[0], table, names, f"dev, {len(dev):,} {self.noun}s")
            if shaded:
                label_figures.shaded_texts(folder / "attention.png", shaded)
        return [*written, folder / "attention.png"] if shaded else written

    def _shaded(self, example: Labelled, output: Prediction) -> Any:
        """A text with its attention for a figure: words as they are written, or the pieces of other units."""
        from s2sjax.tasks.classification.label_figures import ShadedText

        assert output.attention is not None
        source, vocabulary = str(example.source), self.assets["text"]
        ids, words = vocabulary.encode(source), source.split()
        if vocabulary.unit != "words" or len(words) != len(ids):  # normalisation may split a word
            words = vocabulary.pieces(ids)
        begin, right = [CLS] if text.mark(vocabulary, CLS) >= 0 else [], output.label == example.label
        caption = f"{output.label} {output.probability:.2f}" + ("" if right else f", correct is {example.label}")
        return ShadedText([*begin, *words, "<eos>"], output.attention, caption, right)
