"""The interface between a task and the runner: the base class of every task.

A task has the settings of its experiments (a subclass of `config.Experiment`) and a subclass of `Task`.
The runner calls, in this order:

    task.read()                      the training data, in any form
    task.learn_assets(data)          vocabularies and statistics that are learned from the data before training
    task.columns(data)               the data as named columns (data/batching/columns.py)
    task.plan(columns, multiple)     the rows of the batch of each step
    task.init(key)                   the initial parameters
    task.loss(columns)               loss(params, batch, key, step) -> {"loss": (sum, weight), ...}
    task.carry(rows)                 the initial state that batches pass on (rare): the loss then takes and returns it
    task.evaluation_loss()           the loss of dev examples without dropout: loss(params, batch) (optional)
    task.predictor(mesh)             predict(params, examples) -> one output for each example
    task.metrics(examples, outputs)  the scores of those outputs

Training, checkpoints, resuming, meshes, evaluation and the commands use a task only through this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from s2sjax import models
from s2sjax.config import Experiment, ModelSettings, replace, require, settings
from s2sjax.config.adapters import adapter_scales
from s2sjax.data import text
from s2sjax.data.assets import load_json
from s2sjax.data.batching.batch_plan import Plan
from s2sjax.data.batching.columns import AnyColumns, Batch, Bucket
from s2sjax.data.corpora import memory_reader
from s2sjax.data.data_notes import Sides, overlaps
from s2sjax.data.examples import Example
from s2sjax.errors import UserError
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult
from s2sjax.evaluate.prediction import attention_heads
from s2sjax.evaluate.prediction.attention_heads import AttentionHeads, Kind
from s2sjax.evaluate.prediction.heldout_loss import EvaluationLoss
from s2sjax.layers import merge_adapters
from s2sjax.training.checkpoints.transfer import Rows
from s2sjax.training.mesh import Rules
from s2sjax.training.train_state import Loss

Params = Any
Predictor = Callable[[Params, Sequence[Any]], list[Any]]
"""predict(params, examples) -> one output for each example; str(output) is its line"""


class Asset(Protocol):
    """Something learned from the data before training and stored in the run folder."""

    @property
    def fingerprint(self) -> str: ...
    def save(self, folder: Path, name: str) -> None: ...


@settings
class SearchExperiment(Experiment):
    """An experiment whose outputs are decoded by a search, and some of them drawn after training."""

    _: KW_ONLY
    search: Any = None
    """decoding settings"""

    decode_fields: ClassVar = ("search",)
    evaluate_fields: ClassVar = ("search", "evaluate")
    init_fields: ClassVar[tuple[str, ...]] = ("model", "search")
    free_fields: ClassVar[tuple[str, ...]] = (
        "data.corpus.folder", "search", "evaluate.dev_examples", "evaluate.samples", "evaluate.batch_size",
        "evaluate.drawn",
    )  # fmt: skip


Assets = Mapping[str, Any]
NO_ASSETS: Assets = MappingProxyType({})


class Task(ABC):
    """An experiment together with its assets, once they are learned. See the module and docs/extending.md."""

    generates_text: ClassVar[bool] = False
    """whether the task has a `translator`, which `s2sjax decode` and `s2sjax score` then use"""
    has_ensembles: ClassVar[bool] = False
    """whether `predictor` accepts `others`; a task that generates text does"""
    has_perplexity: ClassVar[bool] = False
    """whether exp of the mean `evaluation_loss` is a perplexity"""
    noun: ClassVar[str] = "example"
    """noun for an example in messages: "on 500 words" """
    settings_fields: ClassVar[tuple[str, ...]] = ()
    """dotted names of the fields that `settings_text` describes"""
    json_assets: ClassVar[Mapping[str, type]] = MappingProxyType({})
    """types of the assets that `data.assets.save_json` writes; all others are vocabularies"""

    def __init__(self, experiment: Any, assets: Assets = NO_ASSETS):
        self.experiment, self.assets = experiment, assets

    def replace(self, experiment: Experiment | None = None, assets: Assets | None = None) -> Task:
        """The same task with another experiment or other assets."""
        return type(self)(experiment or self.experiment, self.assets if assets is None else assets)

    # ------------------------------------------------------------------------------------ data

    def has(self, split: str) -> bool:
        """Whether there are examples of a split, train, dev or test: as data.corpus says, or the field data.SPLIT."""
        data = self.experiment.data
        corpus = getattr(data, "corpus", None)
        return bool(getattr(data, split)) if corpus is None else corpus.has(split)

    @property
    def default_split(self) -> str | None:
        """The split to evaluate and draw by default: test, or dev if there is no test or evaluate.test is False."""
        splits = ("test", "dev") if getattr(self.experiment.evaluate, "test", True) else ("dev",)
        return next(filter(self.has, splits), None)

    def read(self) -> Any:
        """The training data, by default its examples."""
        return self.examples("train")

    @abstractmethod
    def examples(self, split: str) -> list[Any]:
        """The examples of a split, to predict and to score; never an empty list."""

    @property
    def dev_remedy(self) -> str:
        """Advice on how to get dev examples, for an error."""
        data = self.experiment.data
        for where, owner in (("data.corpus", getattr(data, "corpus", None)), ("data", data)):
            if hasattr(owner, "dev_percent"):
                return f"give some, or hold out a part of the training data with {where}.dev_percent"
        return "give some"

    def example_of(self, line: str, where: str) -> Any:
        """Converts a line of standard input of `s2sjax decode` to an example. `where` names the line in errors."""
        raise UserError(f"{type(self.experiment).__name__} cannot read its input from lines: use s2sjax evaluate")

    @property
    def file_kinds(self) -> str:
        """The kinds of files whose paths `example_of` reads, such as "JPEG or PNG"; empty if it reads no paths."""
        return ""

    def example_from(self, content: bytes, where: str) -> Any:
        """Converts the content of a file of `file_kinds` to an example, for `s2sjax serve`."""
        raise UserError(f"{type(self.experiment).__name__} does not read files: send lines")

    def blank_example(self) -> Any:
        """An example with which `s2sjax serve` compiles before the first request; None: compile at that request."""
        return None

    @abstractmethod
    def fingerprint(self, data: Any) -> str:
        """SHA-256 of the training data. A run refuses to continue on other data."""

    def resolve_defaults(self, data: Any) -> Any:
        """Replaces settings that are left open (0) by numbers that suit the size of the training data."""
        train = self.experiment.train
        if train.steps:
            return self.experiment
        return replace(self.experiment, train=train.resolve_defaults(self.epoch(data)))

    def epoch(self, data: Any) -> int:
        """An estimate of the updates per epoch, before the columns are made."""
        data_settings = self.experiment.data
        return -(-self.row_count(data) * sum(data_settings.buckets[0]) // data_settings.batch_tokens)

    def row_count(self, data: Any) -> int:
        """The number of rows that the columns of the training data will have."""
        return len(data)

    def remarks(self, data: Any) -> list[str]:
        """Warnings about the training data, printed before training."""
        return []

    def sides(self, split: str, examples: Any) -> Iterable[Sides | Example] | None:
        """The source and the targets of each example of a split; for train, `examples` is the result of `read`.

        They serve to count the examples that two splits share. None: examples cannot be compared.
        """
        return None

    def overlaps(self, data: Any, held_out: Mapping[str, Sequence[Any]]) -> list[str]:
        """Lines on how many examples of dev and test are also in train or in each other, printed before training."""
        train = self.sides("train", data)
        others = {split: sides for split, each in held_out.items() if (sides := self.sides(split, each)) is not None}
        return [] if train is None else overlaps(train, others, self.noun)

    def check_examples(self, split: str, examples: Sequence[Any]) -> None:  # noqa: B027
        """Raises before training if examples cannot be scored; for train, `examples` is the result of `read`."""

    def save_data(self, folder: Path) -> None:
        """Writes data that exists only in memory to the run folder, so that the run can be evaluated later."""
        memory_reader.save(self.experiment.data, folder)

    def load_data(self, folder: Path) -> Task:
        """Returns the task with the data that `save_data` has written."""
        before = self.experiment.data
        data = memory_reader.load(before, folder)
        return self if data is before else self.replace(replace(self.experiment, data=data))

    def learn_assets(self, data: Any) -> Assets:
        """Learns the assets from the training data: each an `Asset`, by name."""
        return {}

    def adopt_assets(self, data: Any, assets: Assets) -> Assets:
        """Adapts the assets of another run (`--init-assets`, or the field `init`). Raises if they do not fit.

        By default it takes those of a run that has assets of the same names and types.
        """
        needed = self.learn_assets(data)
        if any(type(assets.get(name)) is not type(mine) for name, mine in needed.items()):
            raise UserError(
                f"{type(self.experiment).__name__} has no assets to take from another run: leave out --init-assets"
            )
        return {name: assets[name] for name in needed}

    def load_assets(self, folder: Path, names: Sequence[str]) -> Assets:
        """Reads the assets that `Asset.save` has written, by name."""
        kinds = self.json_assets
        return {n: load_json(kinds[n], folder, n) if n in kinds else text.load(folder, n) for n in names}

    def assumed_assets(self, sizes: tuple[int, int]) -> Assets:
        """Assets with vocabularies of these sizes and no words, for `s2sjax plan`."""
        raise UserError(
            f"--source-size and --target-size do not apply to {type(self.experiment).__name__}: leave them out"
        )

    @abstractmethod
    def columns(self, data: Any) -> AnyColumns: ...

    @property
    def columns_use_seed(self) -> bool:
        """Whether `columns` depend on the seed. If not, the members of a sweep share them."""
        return True

    def dev_columns(self, examples: Sequence[Any]) -> AnyColumns:
        """Dev examples as columns, one row each, for `evaluation_loss`; by default as for training."""
        return self.columns(examples)

    def plan(self, columns: AnyColumns, multiple: int) -> Plan:
        """Plans batches whose rows are a multiple of `multiple`, to divide among devices and micro-batches."""
        data = self.experiment.data
        return Plan(columns.lengths, data.buckets, data.batch_tokens, self.experiment.order_seed, multiple)

    def describe(self, columns: AnyColumns, plan: Plan) -> list[str]:
        """Lines that describe the data, printed before training."""
        lines = [f"{len(columns.lengths):,} training {self.noun}s, {plan.steps_per_epoch:,} steps an epoch"]
        if plan.left_out:
            longest = self.experiment.data.buckets[-1]
            lines.append(
                f"{plan.left_out:,} {self.noun}s are longer than the last of data.buckets, {longest}: left out"
            )
        return lines

    # ----------------------------------------------------------------------------------- model

    @property
    def model_name(self) -> str:
        return type(self.experiment.model).__name__

    @abstractmethod
    def init(self, key: jax.Array) -> Params: ...

    @abstractmethod
    def loss(self, columns: AnyColumns | None = None) -> Loss:
        """The training loss, a pure function; `columns` serve to count in advance, None if only shapes matter."""

    def carry(self, rows: int) -> Any:
        """The initial carry, every leaf [rows, ...]; None for tasks whose batches are independent.

        With a carry, the loss is loss(params, batch, key, step, carry) -> sums, carry; without the last argument, for
        `s2sjax plan`, it returns the sums alone. All batches then have the same number of rows.
        """
        return None

    def evaluation_loss(self) -> EvaluationLoss | None:
        """The dev loss: a pure loss(params, batch) -> {"loss": (sum, weight), ...} without dropout and smoothing.

        Each evaluation during training logs the mean of each name as dev_NAME. None: nothing is logged.
        """
        return None

    @abstractmethod
    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the arrays that the loss reads."""

    def transfer_rows(self, other: Task) -> Mapping[str, Rows | None]:
        """Maps rows of parameters between the vocabularies of two runs, by path (training/checkpoints/transfer.py)."""
        return {}

    def merged(self, params: Params) -> Params:
        """The parameters to predict with, in which low-rank adapters, if there are any, are merged."""
        scales = adapter_scales(self.experiment.model)
        return merge_adapters(params, scales[0]) if scales else params

    @property
    def rules(self) -> Rules:
        """The parameters that a tensor-parallel mesh splits (training/mesh.py); none by default."""
        return ()

    def check_mesh(self, mesh: Mapping[str, int]) -> None:
        """Raises if the task cannot use a mesh with these axis sizes."""
        require(
            mesh["tensor"] == 1 or mesh.get("context", 1) == 1 or self.splits_products_and_time,
            f"train.mesh splits a {self.model_name} by tensor and context, for which XLA computes wrong products: set "
            "one of train.mesh.tensor and train.mesh.context to 1",
        )

    @property
    def splits_products_and_time(self) -> bool:
        """Whether the tests of this model hold on a mesh with the axes tensor and context."""
        return False

    @property
    def heads(self) -> tuple[int, ...]:
        """Numbers that the tensor axis of a mesh should divide."""
        return ()

    def output_bytes(self, bucket: Bucket) -> int:
        """Bytes of a row's logits and their gradient, which no tensor axis splits, for `s2sjax plan`."""
        return 0

    # ----------------------------------------------------------------------------- predictions

    def once(self, make: Callable[..., Any], *arguments: Hashable) -> Any:
        """make(*arguments), called once: training, evaluation and figures share what it compiles."""
        made, key = self.__dict__.setdefault("_made", {}), (make.__name__, *arguments)
        if key not in made:
            made[key] = make(*arguments)
        return made[key]

    def check_predictor(self) -> None:  # noqa: B027
        """Raises before training if predictions cannot be made."""

    @abstractmethod
    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        """A predictor that compiles once for each shape. With `others`, an ensemble: params are then a list."""

    def lower_predictor(self, mesh: jax.sharding.Mesh, params: Params) -> dict[str, Any]:
        """The lowered programs that predict the longest bucket, by name, for `s2sjax plan --compile`.

        params: shapes and shardings of the parameters. Without programs, the plan covers training alone.
        """
        return {}

    def check_ensemble(self, other: Task) -> None:
        """Raises if another run of this task cannot join an ensemble with it; the runner compares the assets."""
        assert type(self) is type(other), "the runner compares the tasks first"

    @abstractmethod
    def metrics(self, examples: Sequence[Any], outputs: Sequence[Any]) -> dict[str, MetricResult]:
        """Scores of the outputs; the first one selects the best checkpoint."""

    @property
    @abstractmethod
    def higher_is_better(self) -> bool:
        """Whether a higher value of the first metric is better."""

    def groups(self, examples: Sequence[Any]) -> dict[str, list[int]]:
        """Groups of examples to score separately as well, by name: the corpora of a mixture."""
        return {}

    def dev_sample(self, examples: Sequence[Any], count: int) -> list[Any]:
        """The dev examples to predict at each evaluation during training."""
        return spread(examples, count)

    def self_attention(self, params: Params, line: str, of: Kind) -> AttentionHeads:
        """The self-attention of a line in the encoder or the decoder, by layer and head."""
        raise UserError(f"{type(self.experiment).__name__} has no self-attention to show: choose another run")

    def show(self, example: Any, output: Any) -> str:
        """A line that shows an example and its output."""
        return f"{example}  ->  {output}"

    def record(self, example: Any, output: Any) -> dict[str, Any]:
        """An example and its output as plain JSON for outputs.jsonl: at least source, hypothesis and references."""
        return {"source": str(example), "hypothesis": str(output), "references": []}

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Params]) -> list[Path]:
        """Draws figures after training and returns the files. restore() gives the parameters of the best checkpoint."""
        return []

    def settings_text(self) -> str:
        """A short description of how predictions are made: "beam 4"."""
        return ""


class EncoderTask(Task):
    """A task whose model is `experiment.model.encoder` with output layers."""

    @property
    def rules(self) -> Rules:
        return models.encoder_rules(self.experiment.model.encoder)

    @property
    def heads(self) -> tuple[int, ...]:
        heads = self.experiment.model.encoder.heads
        return (heads,) if heads else ()

    def encoder_input(self, line: str) -> tuple[list[str], tuple[Any, ...]]:
        """The pieces of a line that the encoder reads, and the inputs of the module's `self_attention_heads`."""
        raise UserError(f"{type(self.experiment).__name__} does not read text: its self-attention cannot be shown")

    def self_attention(self, params: Params, line: str, of: Kind) -> AttentionHeads:
        require(of == "encoder", f"{type(self.experiment).__name__} has no decoder: set of to encoder")
        pieces, inputs = self.encoder_input(line)
        heads = jax.jit(partial(self.module.apply, method="self_attention_heads"))  # type: ignore[attr-defined]
        return attention_heads.of_one_row(of, pieces, heads({"params": params}, *inputs))

    @property
    def longest(self) -> int:
        """The most positions to read: 16 times the last bucket, or fewer if the model cannot address them."""
        most, places = 16 * self.experiment.data.buckets[-1][0], self.experiment.model.encoder.max_positions
        return min(most, places or most)


def only_row(columns: AnyColumns) -> Batch:
    """The batch of columns with one row, without padding."""
    return columns.batch(np.array([0]), tuple(columns.lengths[0].tolist()))


def check_positions(encoder: ModelSettings, longest: int) -> None:
    """Raises if an encoder cannot address the longest bucket."""
    places = encoder.max_positions
    require(
        places is None or places >= longest,
        f"model.encoder.max_length {places} is shorter than the last of data.buckets, {longest}: raise it",
    )


def task_of(experiment: Experiment) -> Task:
    """The task of an experiment. Raises if a user's experiment or task lacks a required part."""
    kind = type(experiment).__name__
    parts = {"data": ("buckets", "batch_tokens", "prefetch"), "model": (), "evaluate": ("dev_examples", "samples")}
    for owner, names in parts.items():
        part = getattr(experiment, owner)
        missing = [owner] if part is None else [f"{owner}.{name}" for name in names if not hasattr(part, name)]
        if missing:
            raise UserError(f"{kind} has no {missing[0]}, which every experiment needs: see docs/extending.md")
    try:
        return experiment.task()
    except TypeError as error:
        if "abstract" not in str(error):
            raise
        raise UserError(f"{kind}.task(): {error}: define it, see docs/extending.md") from None


def abstract(**shapes: tuple[tuple[int, ...], Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes as structs: abstract(source=((8, 16), np.int32)) -> {"source": ShapeDtypeStruct((8, 16), int32)}."""
    return {name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for name, (shape, dtype) in shapes.items()}


def shapes_of(batch: Mapping[str, np.ndarray]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch.items()}


def apply_model(module: nn.Module, params: Params, *inputs: Any, key: jax.Array | None = None) -> Any:
    """module(*inputs) with these parameters; in training, with the `key` of dropout."""
    if key is None:
        return module.apply({"params": params}, *inputs)
    return module.apply({"params": params}, *inputs, train=True, rngs={"dropout": key})


def spread(examples: Sequence[Any], count: int) -> list[Any]:
    """Selects `count` evenly spaced examples, because the first lines of a sorted file are not typical."""
    count = min(count, len(examples))
    return [examples[i * len(examples) // count] for i in range(count)]
