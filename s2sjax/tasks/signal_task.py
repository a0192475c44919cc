"""The base of tasks from signals to labels: recognition by CTC and transcription by a decoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jax import Array

from s2sjax.config import require
from s2sjax.core.signals import frame_augmentation
from s2sjax.data.batching.columns import Bucket, Columns, Ragged
from s2sjax.data.data_notes import Sides
from s2sjax.data.signals.signal_examples import Signal, Signals, check_labels, fingerprint
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult, mean_result
from s2sjax.evaluate.metrics.edit_distance import distance
from s2sjax.evaluate.prediction.batched_apply import DOUBLINGS
from s2sjax.tasks.task import Assets, Task, abstract


class Transcript(NamedTuple):
    labels: tuple[str, ...]
    score: float
    """log-probability of the alignment (greedy), or score of the search"""

    def __str__(self) -> str:
        return " ".join(self.labels)


class SignalTask(Task):
    """A task that reads signals and writes labels."""

    noun = "sequence"
    higher_is_better = False
    label_column: ClassVar[str] = "labels"
    """name of the column of labels"""

    @property
    def corpus(self) -> Signals:
        return self.experiment.data.corpus

    @property
    @abstractmethod
    def reader(self) -> Any:
        """The settings of the encoder."""

    def examples(self, split: str) -> list[Signal]:
        found = self.corpus.examples(split)
        require(len(found) > 0, f"data.corpus has no {split} examples: give some, or name another split")
        for signal in found:
            check_labels(signal.labels, self.corpus.alphabet, signal.name)
        return found

    def example_of(self, line: str, where: str) -> Signal:
        return self._checked(self.corpus.example_of(line, where), where)

    @property
    def file_kinds(self) -> str:
        return self.corpus.file_kinds

    def example_from(self, content: bytes, where: str) -> Signal:
        return self._checked(self.corpus.example_from(content, where, self._served), where)

    def blank_example(self) -> Signal:
        self.corpus.compile_features(self._served)
        return Signal(np.zeros((1, self.corpus.features), np.float32), (), "")

    @property
    def _served(self) -> int:
        """The most frames that a server accepts: see `batched_apply.few_shapes`."""
        return max(T for T, _ in self.experiment.data.buckets) << DOUBLINGS

    def _checked(self, signal: Signal, where: str) -> Signal:
        most = self.longest
        require(
            most is None or len(signal.frames) <= most,
            f"{where} has {len(signal.frames)} frames, the model reads at most {most}: shorten it",
        )
        return signal

    @property
    def longest(self) -> int | None:
        """The most frames that the encoder can address; None: any number."""
        places = self.reader.max_positions
        return None if places is None else places * self.experiment.model.reduction

    def sides(self, split: str, examples: Sequence[Signal]) -> Iterable[Sides]:
        return (Sides(signal.frames.tobytes(), (" ".join(signal.labels),)) for signal in examples)

    def fingerprint(self, data: Sequence[Signal]) -> str:
        return fingerprint(data)

    def adopt_assets(self, data: Sequence[Signal], assets: Assets) -> Assets:
        """Takes the statistics of the features of a run with the same labels. An n-gram model is that of this data."""
        found = self.learn_assets(data)
        require(
            all(type(assets.get(name)) is type(mine) for name, mine in found.items()),
            f"the other run has no features and labels of {type(self.experiment).__name__}: leave out --init-assets",
        )
        counts = [each["features"].features for each in (assets, found)]
        labels = [_names(each[self.label_column]) for each in (assets, found)]
        for what, (theirs, mine) in (("number of features", counts), ("alphabet", labels)):
            require(
                theirs == mine,
                f"the other run has the {what} {theirs!s:.100}, and data.corpus {mine!s:.100}: leave out --init-assets",
            )
        return {**found, "features": assets["features"]}

    def frame_columns(self, data: Sequence[Signal], labels: Mapping[str, Ragged]) -> Columns:
        """The normalised frames of each example, and the column of its labels if any."""
        features = self.assets["features"]
        frames = Ragged.of_frames([features.apply(signal.frames) for signal in data])
        return Columns({"frames": frames, **labels}, {}, np.arange(len(data), dtype=np.int32), (len(data),))

    def augmented(self, batch: dict[str, Array], step: Array) -> dict[str, Array]:
        """Changes the frames of a training batch at random.

        The changes depend on (seed, step, example), not on the key of the loss, which differs by micro-batch.
        """
        ranges = self.experiment.data.augment.ranges
        if not any(ranges):
            return batch
        keys = frame_augmentation.example_keys(self.experiment.order_seed, step, batch["example"])
        change = jax.vmap(partial(frame_augmentation.augment, ranges))
        frames, lengths = change(keys, batch["frames"], batch["frames_lengths"])
        return batch | {"frames": frames, "frames_lengths": lengths}

    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        T, L = bucket
        labels = {self.label_column: ((rows, L), np.int32)}
        return abstract(
            frames=((rows, T, self.corpus.features), np.float32), frames_lengths=((rows,), np.int32),
            example=((rows,), np.int32), **labels,
        )  # fmt: skip

    def metrics(self, examples: Sequence[Signal], outputs: Sequence[Transcript]) -> dict[str, MetricResult]:
        """Label and sequence error rate, in percent."""
        pairs = [(distance(o.labels, e.labels), len(e.labels)) for e, o in zip(examples, outputs)]
        terms = {
            "ler": [(100.0 * errors, float(length)) for errors, length in pairs],
            "ser": [(100.0 * (errors > 0), 1.0) for errors, _ in pairs],
        }
        chosen = self.experiment.evaluate.metrics
        return {name: mean_result(name, name.upper(), terms[name], higher_is_better=False) for name in chosen}

    def record(self, example: Signal, output: Transcript) -> dict[str, Any]:
        right = " ".join(example.labels)
        return {"source": example.name, "hypothesis": str(output), "references": [right], "score": output.score}

    def show(self, example: Signal, output: Transcript) -> str:
        right = "✓" if output.labels == example.labels else f"({' '.join(example.labels)})"
        return f"{example.name}  ->  {output}  {right}"


def _names(labels: Any) -> tuple[str, ...]:
    """The labels of an alphabet, or of a vocabulary."""
    return tuple(labels.alphabet if hasattr(labels, "alphabet") else labels.all_pieces)
