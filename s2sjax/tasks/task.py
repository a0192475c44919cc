"""What a kind of problem brings to the runner: the base class of every task.

A task is one file: the settings of its experiments (a subclass of `config.Experiment`) and a subclass of `Task`.
The runner calls, in this order:

    task.read()                      training data, as the task likes it
    task.learn_assets(data)          what is learned from the data before training: vocabularies, statistics
    task.columns(data)               the data as named columns (data/columns.py)
    task.plan(columns, multiple)     which rows make the batch of each step
    task.init(key)                   the parameters before the first step
    task.loss(columns)               loss(params, batch, key, step) -> {"loss": (sum, weight), ...}
    task.carry(rows)                 what a batch leaves to the next one (rare): the loss then takes and returns it
    task.evaluation_loss()           the same of held-out examples: loss(params, batch), without dropout (optional)
    task.predictor(mesh)             predict(params, examples) -> one output an example
    task.metrics(examples, outputs)  the scores of those outputs

Training, checkpoints, resuming, meshes, evaluation and the commands know nothing else of a task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax.config import Experiment, replace
from s2sjax.data import Example, memory, text
from s2sjax.data.batches import Plan
from s2sjax.data.columns import AnyColumns, Bucket
from s2sjax.data.remarks import Sides, overlaps
from s2sjax.errors import UserError
from s2sjax.evaluate.dev_loss import EvaluationLoss
from s2sjax.evaluate.metrics import Result
from s2sjax.training.mesh import Rules
from s2sjax.training.state import Loss
from s2sjax.training.transfer import Rows

Params = Any
Predictor = Callable[[Params, Sequence[Any]], list[Any]]
"""predict(params, examples) -> one output for each example; str(output) is its line"""


class Asset(Protocol):
    """What is learned from the data before training, and kept in the run folder."""

    @property
    def fingerprint(self) -> str: ...
    def save(self, folder: Path, name: str) -> None: ...


Assets = Mapping[str, Any]
NO_ASSETS: Assets = MappingProxyType({})


class Task(ABC):
    """One experiment of a kind, with its assets once there are any. See above, and docs/extending.md."""

    generates_text: ClassVar[bool] = False
    """whether it has a `translator`, which `s2sjax decode` and `s2sjax score` then use"""
    has_ensembles: ClassVar[bool] = False
    """whether `predictor` takes `others`; a task that generates text does"""
    has_perplexity: ClassVar[bool] = False
    """whether exp of the mean `evaluation_loss` is a perplexity"""
    noun: ClassVar[str] = "example"
    """what one example is called in a sentence: "on 500 words" """
    settings_fields: ClassVar[tuple[str, ...]] = ()
    """dotted names of the fields that `settings_text` tells"""

    def __init__(self, experiment: Any, assets: Assets = NO_ASSETS):
        self.experiment, self.assets = experiment, assets

    def replace(self, experiment: Experiment | None = None, assets: Assets | None = None) -> Task:
        """The same task with another experiment or other assets."""
        return type(self)(experiment or self.experiment, self.assets if assets is None else assets)

    # ------------------------------------------------------------------------------------ data

    @abstractmethod
    def has(self, split: str) -> bool:
        """Whether there are examples of a split: train, dev or test."""

    @property
    def default_split(self) -> str | None:
        """The split that is evaluated and drawn if none is named: test, unless evaluate.test is False, or else dev."""
        splits = ("test", "dev") if getattr(self.experiment.evaluate, "test", True) else ("dev",)
        return next(filter(self.has, splits), None)

    @abstractmethod
    def read(self) -> Any:
        """The training data."""

    @abstractmethod
    def examples(self, split: str) -> list[Any]:
        """The examples of a split, to predict and to score; never an empty list."""

    @property
    def dev_remedy(self) -> str:
        """How to get dev examples, if there are none."""
        data = self.experiment.data
        for where, owner in (("data.corpus", getattr(data, "corpus", None)), ("data", data)):
            if hasattr(owner, "dev_percent"):
                return f"give some, or hold out a part of the training data with {where}.dev_percent"
        return "give some"

    def example_of(self, line: str, where: str) -> Any:
        """The example that a line of standard input stands for, for `s2sjax decode`. `where` is for errors."""
        raise UserError(f"{type(self.experiment).__name__} cannot read its input from lines: use s2sjax evaluate")

    @property
    def file_kinds(self) -> str:
        """Which files its examples are, if `example_of` reads the path of a file: "JPEG or PNG"; else empty."""
        return ""

    def example_from(self, content: bytes, where: str) -> Any:
        """The example that the content of a file of `file_kinds` stands for, for `s2sjax serve`."""
        raise UserError(f"{type(self.experiment).__name__} does not read files: send lines")

    def blank_example(self) -> Any:
        """Some example for `s2sjax serve`, which compiles with it before the first request; None: it compiles later."""
        return None

    @abstractmethod
    def fingerprint(self, data: Any) -> str:
        """SHA-256 of the training data: a run refuses to continue on other data."""

    def resolve_defaults(self, data: Any) -> Any:
        """The experiment, with numbers that suit the size of its training data where it leaves them open."""
        train = self.experiment.train
        if train.steps:
            return self.experiment
        return replace(self.experiment, train=train.resolve_defaults(self.epoch(data)))

    def epoch(self, data: Any) -> int:
        """About how many updates an epoch takes, as far as is known before there are columns."""
        batch = self.experiment.data
        return -(-self.row_count(data) * sum(batch.buckets[0]) // batch.tokens)

    def row_count(self, data: Any) -> int:
        """How many rows the columns of the training data will have."""
        return len(data)

    def remarks(self, data: Any) -> list[str]:
        """What is odd about the training data but no error, printed before training."""
        return []

    def sides(self, split: str, examples: Any) -> Iterable[Sides | Example] | None:
        """What is read and predicted in the examples of a split; of train, in what `read` returned.

        Examples that two splits share are counted before training. None: they cannot be compared.
        """
        return None

    def overlaps(self, data: Any, held_out: Mapping[str, Sequence[Any]]) -> list[str]:
        """How many examples of dev and test are also in train, or in each other; printed before training."""
        train = self.sides("train", data)
        others = {split: sides for split, each in held_out.items() if (sides := self.sides(split, each)) is not None}
        return [] if train is None else overlaps(train, others, self.noun)

    def check_examples(self, split: str, examples: Sequence[Any]) -> None:  # noqa: B027
        """Refuses, before training, examples that could not be scored after it; of train, what `read` returned."""

    def save_data(self, folder: Path) -> None:
        """Writes to the run folder what exists only in memory, so that the run can be evaluated later."""
        memory.save(getattr(self.experiment.data, "corpus", None), folder)

    def load_data(self, folder: Path) -> Task:
        """The task with what `save_data` has written."""
        data = self.experiment.data
        before = getattr(data, "corpus", None)
        corpus = memory.load(before, folder)
        return self if corpus is before else self.replace(replace(self.experiment, data=replace(data, corpus=corpus)))

    def learn_assets(self, data: Any) -> Assets:
        """Each is an `Asset`, by name."""
        return {}

    def adopt_assets(self, data: Any, assets: Assets) -> Assets:
        """The assets of another run, for this one; refused if they do not fit (`s2sjax train --init-assets`)."""
        raise UserError(
            f"{type(self.experiment).__name__} has no assets to take from another run: leave out --init-assets"
        )

    def load_assets(self, folder: Path, names: Sequence[str]) -> Assets:
        """What `Asset.save` has written, by name."""
        return {}

    def assumed_assets(self, sizes: tuple[int, int]) -> Assets:
        """Assets known by the sizes of their vocabularies alone, for `s2sjax plan`."""
        raise UserError(
            f"--source-size and --target-size do not apply to {type(self.experiment).__name__}: leave them out"
        )

    @abstractmethod
    def columns(self, data: Any) -> AnyColumns: ...

    def dev_columns(self, examples: Sequence[Any]) -> AnyColumns:
        """Dev examples as columns, one row each, for `evaluation_loss`. By default those of training data."""
        return self.columns(examples)

    def plan(self, columns: AnyColumns, multiple: int) -> Plan:
        """`multiple`: rows of a batch are a multiple of it, so that they divide among devices and micro-batches."""
        data = self.experiment.data
        return Plan(columns.lengths, data.buckets, data.tokens, self.experiment.seed, multiple)

    def describe(self, columns: AnyColumns, plan: Plan) -> list[str]:
        """Lines on the data, printed before training."""
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
        """Pure; `columns` are what it may count in advance. Without them only its shapes and its work count."""

    def carry(self, rows: int) -> Any:
        """What the first batch finds of those before it, every leaf [rows, ...]; None for tasks whose batches are
        independent. With a carry, the loss is loss(params, batch, key, step, carry) -> sums, carry; without the last
        argument, for `s2sjax plan`, it returns the sums alone. Every batch has the same number of rows then.
        """
        return None

    def evaluation_loss(self) -> EvaluationLoss | None:
        """loss(params, batch) -> {"loss": (sum, weight), ...} of dev examples, pure, without dropout and smoothing.

        Each evaluation during training logs the mean of each name, as dev_NAME. None: nothing is logged.
        """
        return None

    @abstractmethod
    def abstract_batch(self, bucket: Bucket, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The arrays of a batch that the loss reads, without any data."""

    def transfer_rows(self, other: Task) -> Mapping[str, Rows | None]:
        """How parameters that belong to words of two vocabularies are mapped (training/transfer.py), by their paths."""
        return {}

    @property
    def rules(self) -> Rules:
        """Which parameters a tensor-parallel mesh splits (training/mesh.py); none are split by default."""
        return ()

    def check_mesh(self, mesh: Mapping[str, int]) -> None:  # noqa: B027
        """Refuses a mesh that cannot work."""

    @property
    def heads(self) -> tuple[int, ...]:
        """Numbers that the tensor axis of a mesh should divide."""
        return ()

    def output_bytes(self, bucket: Bucket) -> int:
        """Bytes of a row's logits and their gradient, which no tensor axis splits; for `s2sjax plan`."""
        return 0

    # ----------------------------------------------------------------------------- predictions

    def check_predictor(self) -> None:  # noqa: B027
        """Refuses, before training, predictions that could not be made after it."""

    @abstractmethod
    def predictor(self, mesh: jax.sharding.Mesh | None = None, others: Sequence[Task] = ()) -> Predictor:
        """Compiled once a shape and kept between calls. With `others`, an ensemble: params are a list then."""

    def lower_predictor(self, mesh: jax.sharding.Mesh, params: Params) -> dict[str, Any]:
        """The programs that predict the longest bucket, by name, for parameters of these shapes and shardings, ready to
        be compiled: for `s2sjax plan --compile`, which is about training alone where there are none.
        """
        return {}

    def check_ensemble(self, other: Task) -> None:
        """Refuses another run of this task that cannot predict together with it; the runner compares the assets."""
        assert type(self) is type(other), "the runner compares the tasks first"

    @abstractmethod
    def metrics(self, examples: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Result]:
        """The scores of the outputs; the first decides which checkpoint is best."""

    @property
    @abstractmethod
    def higher_is_better(self) -> bool:
        """Of the first metric."""

    def groups(self, examples: Sequence[Any]) -> dict[str, list[int]]:
        """Examples that are scored on their own besides, by name: the corpora of a mixture."""
        return {}

    def dev_sample(self, examples: Sequence[Any], count: int) -> list[Any]:
        """The dev examples that each evaluation during training predicts."""
        return spread(examples, count)

    def show(self, example: Any, output: Any) -> str:
        """A predicted example as one line, to look at."""
        return f"{example}  ->  {output}"

    def record(self, example: Any, output: Any) -> dict[str, Any]:
        """A predicted example as plain JSON, for outputs.jsonl: at least source, hypothesis and references."""
        return {"source": str(example), "hypothesis": str(output), "references": []}

    def figures(self, folder: Path, mesh: jax.sharding.Mesh, restore: Callable[[], Params]) -> list[Path]:
        """Prints and draws what the experiment wants to see after training; the files that were written.

        restore() gives the parameters of the best checkpoint.
        """
        return []

    def settings_text(self) -> str:
        """How predictions are made, in a few words: "beam 4"."""
        return ""


def task_of(experiment: Experiment) -> Task:
    """The task of an experiment. Refuses settings and tasks of a user's own that miss a part."""
    kind = type(experiment).__name__
    parts = {"": ("name", "data", "model", "train", "evaluate", "seed"), "data": ("buckets", "tokens", "prefetch"),
             "evaluate": ("lines", "samples")}  # fmt: skip
    for owner, names in parts.items():
        for name in names:
            if not hasattr(getattr(experiment, owner) if owner else experiment, name):
                field = f"{owner}.{name}" if owner else name
                raise UserError(f"{kind} has no {field}: every experiment has it, see docs/extending.md")
    try:
        return experiment.task()
    except TypeError as error:
        if "abstract" not in str(error):
            raise
        raise UserError(f"{kind}.task(): {error}: define it, see docs/extending.md") from None


def abstract(**shapes: tuple[tuple[int, ...], Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """abstract(source=((8, 16), np.int32)) -> {"source": ShapeDtypeStruct((8, 16), int32)}"""
    return {name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for name, (shape, dtype) in shapes.items()}


def shapes_of(batch: Mapping[str, np.ndarray]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch.items()}


def word_rows(vocabulary: text.AnyVocabulary, others: Assets, *paths: str, name: str = "") -> dict[str, Rows | None]:
    """`Task.transfer_rows` of parameters whose rows are words, by the vocabulary of the text that another run reads.

    name: the path that the parameter has there, if it is another one.
    """
    theirs = source_vocabulary(others)
    if theirs is not None and not name and vocabulary.fingerprint == theirs.fingerprint:
        return {}
    index = None if theirs is None else text.rows_in(vocabulary, theirs)
    return dict.fromkeys(paths, None if index is None else Rows(0, index, name))


def vocabulary_rows(
    mine: text.AnyVocabulary, theirs: Any, shapes: Mapping[str, tuple[int, ...]], larger: Mapping[str, tuple[int, ...]]
) -> dict[str, Rows | None]:
    """`Task.transfer_rows` of the parameters that grow with a vocabulary: those of a word belong to it.

    shapes: of all parameters; larger: the same if the vocabulary had one word more.
    """
    if isinstance(theirs, text.AnyVocabulary) and mine.fingerprint == theirs.fingerprint:
        return {}
    index = text.rows_in(mine, theirs) if isinstance(theirs, text.AnyVocabulary) else None
    found: dict[str, Rows | None] = {}
    for path, shape in shapes.items():
        axes = [axis for axis, size in enumerate(shape) if size != larger[path][axis]]
        if axes:
            found[path] = Rows(axes[0], index) if index is not None and shape[axes[0]] == mine.size else None
    return found


def source_vocabulary(assets: Assets) -> text.AnyVocabulary | None:
    """Of the text that a run reads, whatever its task."""
    found = [assets.get(name) for name in ("text", "source")]
    return next((one for one in found if isinstance(one, text.AnyVocabulary)), None)


def spread(examples: Sequence[Any], count: int) -> list[Any]:
    """`count` of the examples, at equal distances: a file may be sorted, and its first lines are then not typical."""
    count = min(count, len(examples))
    return [examples[i * len(examples) // count] for i in range(count)]
