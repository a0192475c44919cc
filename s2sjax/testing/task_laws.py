"""Laws of tasks: what training, resuming and evaluation require of every task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax.config import Experiment, require
from s2sjax.data.batching.batch_plan import make_batch
from s2sjax.tasks.task import Task, task_of
from s2sjax.testing.laws import Report, check, check_equal, check_finite, law, verify
from s2sjax.training.optimizers import optimizer
from s2sjax.training.train_state import create, make_train_step

SHARDS = 4
"""parts of a batch that devices or micro-batches get"""
EXAMPLES = 8
"""examples to predict"""


def verify_task(experiment: Experiment, *, tolerance: float = 1e-5) -> Report:
    """Checks the laws of tasks for an experiment. Use a small model and little data.

    Raises LawError at the first law that is broken. Writes no files. Resuming and meshes are tested by training:
    `s2sjax train FILE`, interrupted, and with `--train.mesh.data 2`.

    tolerance: largest difference, relative to the loss, of sums that should be equal
    """
    given = f"verify_task got {experiment!r:.60}"
    require(isinstance(experiment, Experiment), f"{given}: give an experiment, such as tasks.Translation(...)")
    return verify(LAWS, PreparedTask(experiment, tolerance))


class PreparedTask:
    """A task with its training data and assets, as training has it before the first step."""

    def __init__(self, experiment: Experiment, tolerance: float = 1e-5):
        self.experiment, self.tolerance = experiment, tolerance
        task = task_of(experiment)
        self.data = task.read()
        self.task: Task = task.replace(task.resolve_defaults(self.data), task.learn_assets(self.data))
        self.columns = self.task.columns(self.data)
        self.plan = self.task.plan(self.columns, SHARDS)

    @property
    def splits(self) -> list[str]:
        return [split for split in ("train", "dev", "test") if self.task.has(split)]

    @cached_property
    def params(self) -> Any:
        return jax.jit(self.task.init)(jax.random.key(self.experiment.seed))

    def batch_of(self, rows: np.ndarray, step: int = 0) -> dict[str, np.ndarray]:
        """Rows of the columns in the shape of the batch at `step`; -1 for padding."""
        batch = self.columns.batch(rows, self.plan.buckets[self.plan.at(step)[0]])
        planned = make_batch(self.columns, self.plan, step)
        return batch | {name: planned[name] for name in planned.keys() - batch.keys()}  # the part of the batch

    @cached_property
    def gradient(self) -> Any:
        """gradient(params, batch) -> gradient of the sum of the training loss, and all sums; compiled."""
        loss, key = self.task.loss(self.columns), jax.random.key(0)

        def sums(params, batch):
            carry = self.task.carry(len(batch["example"]))
            found = loss(params, batch, key, 0) if carry is None else loss(params, batch, key, 0, carry)[0]
            return found["loss"][0], found

        return jax.jit(jax.grad(sums, has_aux=True))


@law
def data_is_repeatable(prepared: PreparedTask) -> None:
    """Every split has examples, and reading them again gives the same ones."""
    again = task_of(prepared.experiment)
    same = again.fingerprint(again.read()) == prepared.task.fingerprint(prepared.data)
    advice = "draw random numbers from a seed, and sort what has no order"
    check(same, f"the fingerprint of the training data changes when they are read again; {advice}")
    for split in prepared.splits:
        first, second = prepared.task.examples(split), again.replace(assets=prepared.task.assets).examples(split)
        check(len(first) > 0, f"`has` says that there are {split} examples, but examples({split!r}) is empty")
        check(same_values(first, second), f"examples({split!r}) changes when it is called again; {advice}")


def same_values(left: Any, right: Any) -> bool:
    """Whether two examples, or lists of examples, are equal, arrays included."""
    if isinstance(left, np.ndarray | jax.Array):
        return np.array_equal(left, right)
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same_values(left[name], right[name]) for name in left)
    if isinstance(left, Sequence) and not isinstance(left, str | bytes):
        return len(left) == len(right) and all(map(same_values, left, right))
    return same_values(vars(left), vars(right)) if hasattr(left, "__dict__") else bool(left == right)


@law
def batches_follow_the_plan(prepared: PreparedTask) -> None:
    """A batch has the shapes of `abstract_batch`, and its shards have its rows, bit for bit."""
    columns, plan = prepared.columns, prepared.plan
    for step in (0, plan.steps_per_epoch + 1):
        bucket, rows = plan.at(step)
        whole = make_batch(columns, plan, step)
        for name, expected in prepared.task.abstract_batch(plan.buckets[bucket], len(rows)).items():
            check(name in whole, f"`abstract_batch` has {name}, but the batch has only {', '.join(whole)}")
            seen, wanted = (f"{array.dtype}{list(array.shape)}" for array in (whole[name], expected))
            check(seen == wanted, f"column {name} of a batch is {seen}, but `abstract_batch` says {wanted}")
        for shards in ([0], [1, 2], [0, 3]):
            some = make_batch(columns, plan, step, shards, SHARDS)
            check(
                some.keys() == whole.keys(), f"a shard has the columns {', '.join(some)}, the batch {', '.join(whole)}"
            )
            for name, array in whole.items():
                planned = np.concatenate([np.split(array, SHARDS)[shard] for shard in shards])
                what = f"column {name} depends on which rows are loaded together"
                check_equal(some[name], planned, 0, what, "compute a row from its number and the epoch alone")


@law
def parameters_are_repeatable(prepared: PreparedTask) -> None:
    """The initial parameters are finite, and a function of the key alone."""
    seed, task = prepared.experiment.seed, prepared.task
    advice = "draw from the key of `init`"
    check_finite(prepared.params, "an initial parameter", advice)
    again = jax.jit(lambda key: task.init(key))(jax.random.key(seed))
    check_equal(again, prepared.params, 0, "the initial parameters differ for the same key", advice)


@law
def loss_is_finite(prepared: PreparedTask) -> None:
    """The loss of a batch is a finite sum with a weight, and so is its gradient."""
    gradient, sums = prepared.gradient(prepared.params, make_batch(prepared.columns, prepared.plan, 0))
    for name, pair in sums.items():
        good = len(pair) == 2 and all(jnp.shape(part) == () for part in pair)
        check(good, f"{name!r} of the loss is {jax.tree.map(jnp.shape, pair)} instead of (sum, weight), two scalars")
        check_finite(pair, f"{name!r} of the loss", "mask before log and exp, and divide by jnp.maximum(count, 1)")
    check(sums["loss"][1] > 0, "the weight of the loss is 0: it must be the number of examples or tokens of the batch")
    check_finite(gradient, "the gradient", "see `s2sjax train FILE --debug`, which names the layer of the first NaN")


@law
def padding_rows_are_invisible(prepared: PreparedTask) -> None:
    """Rows of padding add nothing to the loss, its weight and its gradient."""
    rows = prepared.plan.at(0)[1]
    nothing = prepared.batch_of(np.full(len(rows), -1))
    found = prepared.gradient(prepared.params, nothing)
    advice = "multiply the losses of rows by the mask of those that are not padding (ids 0, lengths 0, example -1)"
    zeros = jax.tree.map(np.zeros_like, found)
    what = "the loss of a batch of only padding, its weight, or its gradient is not 0"
    check_equal(found[1]["loss"], zeros[1]["loss"], 0, what, advice)
    check_equal(found[0], zeros[0], 0, what, advice)
    if loss := prepared.task.evaluation_loss():
        padded = np.concatenate([rows, np.full(len(rows), -1)])
        once, twice = (jax.jit(loss)(prepared.params, prepared.batch_of(each)) for each in (rows, padded))
        scale = max(1.0, *(abs(float(part)) for pair in once.values() for part in pair))
        what = "the evaluation loss changes with rows of padding"
        check_equal(twice, once, prepared.tolerance * scale, what, advice)


@law
def train_steps_are_repeatable(prepared: PreparedTask) -> None:
    """Two train steps change the parameters, the same way each time, to finite values."""
    task, columns, plan = prepared.task, prepared.columns, prepared.plan
    train, seed = task.experiment.train, task.experiment.seed

    def trained() -> Any:
        carry = task.carry(plan.rows[0])
        state = create(prepared.params, optimizer(train), train.averages, carry)
        step = jax.jit(make_train_step(task.loss(columns), optimizer(train), train, seed))
        for number in range(2):
            state, _ = step(state, make_batch(columns, plan, number))
        return state

    first, second = trained(), trained()
    advice = "draw from the key that `loss` gets, and keep nothing between calls"
    check_equal(second.params, first.params, 0, "the same two steps give different parameters", advice)
    check_finite(first.params, "a parameter after two steps", "lower train.learning_rate")
    moved = jax.tree.map(lambda new, old: np.any(new != old), first.params, prepared.params)
    check(any(jax.tree.leaves(moved)), "no parameter changes in two steps: check that the loss depends on `params`")


@law
def predictions_are_scored(prepared: PreparedTask) -> None:
    """Each example has an output, the metrics are finite and named, and a record is plain JSON."""
    task = prepared.task
    split = task.default_split or "train"
    examples = task.examples(split)[:EXAMPLES]
    outputs = task.predictor()(prepared.params, examples)
    advice = "return one output for each example, in their order"
    check(len(outputs) == len(examples), f"{len(outputs)} outputs are predicted for {len(examples)} examples: {advice}")
    results = task.metrics(examples, outputs)
    check(results, "`metrics` returns nothing: return at least one result, by name")
    for name, result in results.items():
        check(name == result.name, f"the metric {result.name!r} is returned as {name!r}: use its name")
        check(np.isfinite(result.value), f"the metric {name} is {result.value}: divide by max(count, 1)")
        good = len(result.terms) in (0, len(examples))
        check(good, f"{name} has {len(result.terms)} terms for {len(examples)} examples: give one for each, or none")
    first = next(iter(results.values()))
    seen = f"{first.name}.higher_is_better is {first.higher_is_better}"
    check(
        first.higher_is_better == task.higher_is_better,
        f"{seen}, but the task's is {task.higher_is_better}: make them agree",
    )
    for example, output in zip(examples, outputs):
        record = task.record(example, output)
        missing = [name for name in ("source", "hypothesis", "references") if name not in record]
        check(not missing, f"`record` has no {', '.join(missing)}: add it")
        try:
            json.dumps(record)
        except TypeError as error:
            check(False, f"`record` is not plain JSON: {error}")
        check(isinstance(task.show(example, output), str), "`show` does not return a string")


LAWS = (
    data_is_repeatable,
    batches_follow_the_plan,
    parameters_are_repeatable,
    loss_is_finite,
    padding_rows_are_invisible,
    train_steps_are_repeatable,
    predictions_are_scored,
)
"""in the order in which training calls the task"""
