"""Frames to labels by an attention decoder: Listen, Attend and Spell (Chan et al. 2016).

The corpora, random changes and error rates are those of recognition by CTC (recognition.py), so that both can be
compared. Here the decoder writes one label after the other, and each depends on those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.config import at_least, require, settings
from s2sjax.core import augment
from s2sjax.data import assets, text
from s2sjax.data.columns import Bucket, Columns, Ragged
from s2sjax.data.signals import Signal, Signals, check_labels, fingerprint
from s2sjax.evaluate.decoding import Output
from s2sjax.evaluate.metrics import Result
from s2sjax.models.listener import Listener
from s2sjax.tasks.generation import GenerationTask, check_network, examples_keys
from s2sjax.tasks.recognition import LabelEvaluate, LabelledSignals, Transcript, error_rates
from s2sjax.tasks.task import Assets, Predictor, Task, abstract
from s2sjax.training import hosts

# ------------------------------------------------------------------------------------- settings


@settings
class SpellerModel:
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


class TranscriptionTask(GenerationTask):
    """Signals through an encoder-decoder. Assets: the statistics of the `features`, and the labels as `target`."""

    experiment: Transcription
    noun = "sequence"

    # ------------------------------------------------------------------------------------ data

    @property
    def corpus(self) -> Signals:
        return self.experiment.data.corpus

    def has(self, split: str) -> bool:
        return self.corpus.has(split)

    def read(self) -> list[Signal]:
        return self.examples("train")

    def examples(self, split: str) -> list[Signal]:
        found = self.corpus.examples(split)
        require(len(found) > 0, f"data.corpus has no {split} examples: give some, or name another split")
        for signal in found:
            check_labels(signal.labels, self.corpus.alphabet, signal.name)
        return found

    def example_of(self, line: str, where: str) -> Signal:
        signal, most = self.corpus.example_of(line, where), self.longest
        require(
            most is None or len(signal.frames) <= most,
            f"{where} has {len(signal.frames)} frames, the model reads at most {most}: shorten it",
        )
        return signal

    @property
    def longest(self) -> int | None:
        model = self.experiment.model
        places = config.encoder_and_decoder(model.network)[0].max_positions
        return None if places is None else places * model.reduction

    def fingerprint(self, data: Sequence[Signal]) -> str:
        return fingerprint(data)

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

    def columns(self, data: Sequence[Signal], labels: Sequence[Sequence[str]] | None = None) -> Columns:
        """`labels`: instead of those of the data."""
        features, count = self.assets["features"], len(data)
        ids = [self.target.encode(" ".join(each)) for each in (labels or [signal.labels for signal in data])]
        frames = Ragged.of_frames([features.apply(signal.frames) for signal in data])
        columns = {"frames": frames, "target": Ragged.of_ids(ids)}
        return Columns(columns, {}, np.arange(count, dtype=np.int32), (count,))

    # ----------------------------------------------------------------------------------- model

    def frontend(self, dtype: Any) -> Listener:
        m = self.experiment.model
        width = config.encoder_and_decoder(m.network)[0].embedding
        return Listener(self.corpus.features, width, m.stack, m.channels, m.normalize, m.dropout, dtype)

    def source_of(self, batch: Mapping[str, Any]) -> tuple:
        return batch["frames"], batch["frames_lengths"]

    def source_example(self) -> tuple:
        return jnp.zeros((1, 1, self.corpus.features)), jnp.ones(1, jnp.int32)

    def augmented(self, batch: dict[str, Array], step: Array) -> dict[str, Array]:
        ranges = self.experiment.data.augment.ranges
        if not any(ranges):
            return batch
        keys = examples_keys(self.experiment.seed, step, batch["example"])
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

    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        generator = self.generator(mesh, others)

        def predict(params: Any, examples: Sequence[Signal]) -> list[Transcript]:
            found = generator.decode(params, self.columns(examples, [()] * len(examples)))
            return [self._transcript(best[0]) for best in found]

        return predict

    @staticmethod
    def _transcript(output: Output) -> Transcript:
        return Transcript(tuple(output.text.split()), output.score)

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

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Any]) -> list[Path]:
        """Draws some examples that training has not seen: frames, and the time that each label looks at."""
        e, split = self.experiment, next((split for split in ("test", "dev") if self.has(split)), None)
        generator = self.generator(mesh)
        if not e.evaluate.drawn or split is None:
            return []
        if not generator.attends:
            print("this model has no attention: attention.png is not drawn")
            return []
        examples, params = self.examples(split)[: e.evaluate.drawn], restore()
        outputs = self.predictor(mesh)(params, examples)
        weights = generator.attention(params, self.columns(examples, [output.labels for output in outputs]))
        path = folder / "attention.png"
        if hosts.is_leader():
            from s2sjax.evaluate import time_figure  # imports Matplotlib, which is slow

            drawn = []
            for example, output, alpha in zip(examples, outputs, weights):
                labels, places = [*output.labels, "<eos>"], -(-len(example.frames) // e.model.reduction)
                alpha, title = alpha[: len(labels), :places], self.show(example, output)
                shown = example.frames, labels, alpha, e.model.reduction, title, self.corpus.seconds
                drawn.append(time_figure.FrameAttention(*shown))
            time_figure.draw(path, drawn)
        return [path]
