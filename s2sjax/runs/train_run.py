"""The stages of training a run. `run.train` calls `resolve`, `open_folder`, `build` and `fit` in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from optax import GradientTransformation as Optimizer

from s2sjax import config
from s2sjax.config import adapters
from s2sjax.core.backend.device import compiler_options, use_compilation_cache
from s2sjax.core.traced_numbers import Disagree
from s2sjax.data.batching import batch_plan
from s2sjax.data.batching.columns import AnyColumns
from s2sjax.errors import UserError
from s2sjax.layers import ADAPTER
from s2sjax.runs import folder, initial_settings, stored_code
from s2sjax.runs.dev_evaluation import DevEvaluation
from s2sjax.tasks.task import Assets, Task, shapes_of, task_of
from s2sjax.training import fine_tuning, jax_settings, loggers, loop, multihost, profiling
from s2sjax.training import mesh as meshes
from s2sjax.training.checkpoints import transfer
from s2sjax.training.checkpoints.fingerprints import named_leaves
from s2sjax.training.checkpoints.manager import Checkpoints
from s2sjax.training.heartbeat import working
from s2sjax.training.optimizers import describe_change, optimizer
from s2sjax.training.run_log import Log
from s2sjax.training.train_state import TrainState, TrainStep, create, make_train_step


class Source(NamedTuple):
    """The run that provides the initial parameters."""

    folder: Path
    task: Task

    def checkpoints(self) -> Checkpoints:
        return folder.checkpoints(self.folder, self.task, read_only=True)


class Inputs(NamedTuple):
    """The checked settings and the data of a run, before its folder is opened."""

    given: config.Experiment
    """experiment as given, with absolute paths"""
    experiment: config.Experiment
    """experiment with the settings that are chosen by data size"""
    mesh: jax.sharding.Mesh
    examples: dict[str, Any]
    """training, dev and test examples, by split"""
    code: stored_code.Origin
    """where the code of the experiment comes from"""
    source: Source | None
    """run that provides the initial parameters"""
    schedule_steps: int | None
    """schedule length of the run in the folder, if there is one"""


class Training(NamedTuple):
    """The parts of the training loop."""

    inputs: Inputs
    """inputs without the examples, so that their memory is freed"""
    task: Task
    columns: AnyColumns
    plan: batch_plan.Plan
    template: TrainState
    """shapes and shardings of the state"""
    init: Callable[[], TrainState]
    train_step: TrainStep
    dev: Sequence[Any]
    """dev examples, if they are evaluated during training"""
    log: Log


def resolve(
    experiment: config.Experiment, path: Path, file: str | Path | None, init: str | Path | None, init_assets: bool,
    read: Callable[[Task], dict[str, Any]] | None = None, profile: profiling.Steps | None = None,
) -> Inputs:  # fmt: skip
    """Completes and checks the settings, and reads the data. read: reads the examples, by default `read_examples`.

    profile: the first and the last step to trace, which are checked.
    """
    jax_settings.check()
    profiling.check(profile, experiment.train.steps)
    loggers.check(experiment.train.loggers)
    use_compilation_cache()
    given = adapters.freeze_around_adapters(config.resolve_paths(experiment, Path.cwd()))
    config.require_data(given)
    task = task_of(given)
    optimizer(given.train)  # raises for a wrong name or argument before the data is read
    initial_settings.check_other(given, path)
    source = _source(path, init, init_assets, given.init)
    if adapters.freezes_all_others(given) and source is None and not folder.has_checkpoint(path):
        raise UserError(
            "adapter_rank trains only low-rank adapters, and there is no run whose parameters they adapt: set init of "
            "the experiment, or --init RUN"
        )
    recorded = folder.read_config(path)
    mesh = meshes.make_mesh(given.train.mesh)
    task.check_mesh(mesh.shape)
    examples = (read or read_examples)(task)
    resolved = task.replace(folder.with_recorded(given, recorded)).resolve_defaults(examples["train"])
    profiling.check(profile, resolved.train.steps)
    if resolved.train.evaluate_every and "dev" not in examples:
        raise UserError(f"there are no dev examples to evaluate: {task.dev_remedy}, or set train.evaluate_every 0")
    code = stored_code.origin_of(given, file)
    return Inputs(given, resolved, mesh, examples, code, source, folder.schedule_steps(recorded))


def read_examples(task: Task) -> dict[str, Any]:
    """The training, dev and test examples of a task, by split."""
    with multihost.leader_first("data"), working("reading the data"):  # the leader may have to download it
        examples = {"train": task.read()}
        return examples | {split: task.examples(split) for split in ("dev", "test") if task.has(split)}


def open_folder(
    inputs: Inputs, path: Path, *, init_assets: bool, accept_code: bool, learned: Assets | None = None
) -> Task:
    """Starts or continues the run in a folder, and checks its examples and predictor. Returns its task.

    learned: assets that were learned from the same data with the same settings, for another member of a sweep.
    """
    given, source = inputs.given, inputs.source
    assets = source.task.assets if source and (init_assets or given.init) else None
    with (
        multihost.leader_first("run folder"),
        working("learning the vocabularies"),
        initial_settings.naming_init(given),
    ):
        taken = initial_settings.offered(given) if source and given.init else None
        task = folder.start_task(
            inputs.experiment, path, inputs.examples["train"], inputs.code, accept_code=accept_code, learned=learned,
            init=str(source.folder) if source else None, assets=assets, taken=taken, check=check_trained,
        )  # fmt: skip
    task.check_predictor()  # refuse impossible predictions now, not after hours of training
    for split, examples in inputs.examples.items():
        task.check_examples(split, examples)
    return task


def check_trained(task: Task) -> None:
    """Raises if train.frozen or train.layer_decay does not fit the parameters of a task."""
    train = task.experiment.train
    if train.frozen or train.layer_decay != 1:
        jax.eval_shape(make_init_fn(task), jax.random.key(0))


def open_log(path: Path, experiment: Any, sweep: Log | None = None, began: float | None = None) -> Log:
    """The log of a run. sweep: that of the sweep that it is a member of. began: when the run began."""
    train, settings = experiment.train, folder.flat(config.to_json(experiment))
    return Log(path, train.steps, train.log_every, train.loggers, settings, sweep, began)


def build(inputs: Inputs, task: Task, path: Path, began: float | None = None) -> Training:
    """Builds the columns, the batch plan, the step and the initial state, and prints a description of the run."""
    e, mesh, examples = task.experiment, inputs.mesh, inputs.examples
    log = open_log(path, e, began=began)
    with working("converting the data"):
        columns = task.columns(examples["train"])
    plan = task.plan(columns, meshes.data_parallel_size(mesh) * e.train.grad_accum_steps)
    plan.order_by_seed = folder.read_config(path)[folder.ORDER] is None
    tx, rows = optimizer(e.train), plan.rows[0]
    init_fn = make_init_fn(task, rows, tx)
    template = meshes.abstract_state(init_fn, *placement(task, mesh))
    init = partial(initial_state, task, mesh, rows, tx, inputs.source, log)
    train_step = make_step(task, columns, {name: (value,) for name, value in config.numbers(e).items()})
    dev = examples["dev"] if e.train.evaluate_every else []
    log.print("\n".join(describe(inputs, task, columns, plan, template, mesh)))
    return Training(inputs._replace(examples={}), task, columns, plan, template, init, train_step, dev, log)


def fit(
    training: Training, path: Path, init: str | Path | None, profile: profiling.Steps | None = None
) -> loop.FitResult:
    """Trains from the newest checkpoint, or from the initial state, to the last step."""
    inputs, task, columns, plan, *_, log = training
    e, mesh, dev = task.experiment, inputs.mesh, training.dev
    checkpoints, step = open_checkpoints(path, task, inputs.code)
    for line in describe_change(inputs.schedule_steps, inputs.given.train, e.train, step):
        log.print(line)
    if init and not inputs.source:
        log.print(f"--init {init} is not used: this run continues from its own checkpoint of step {step}")

    def keep_code(step: int) -> None:
        """Stores the code. Called after the checkpoint is restored, so that code that does not fit it is not stored."""
        if changed := stored_code.keep(path, inputs.code, step):
            log.print(f"from step {step} on, the code is different: {', '.join(changed)}")

    def stream(step: int) -> Any:
        keep_code(step)
        return batch_plan.stream(
            columns, plan, step, stop=e.train.steps, prefetch=e.data.prefetch,
            shards=meshes.row_shards(mesh, jax.process_index()), shard_count=meshes.data_parallel_size(mesh),
        )  # fmt: skip

    result = loop.fit(
        training.train_step,
        stream,
        template=training.template,
        init=training.init,
        train=e.train,
        checkpoints=checkpoints,
        evaluate=DevEvaluation(task, dev, task.predictor(mesh), log, mesh=mesh) if dev else None,
        log=log,
        mesh=mesh,
        compiler_options=compiler_options(),
        shapes=[batch_shapes(columns, plan, bucket) for bucket in plan.first_uses(step, e.train.steps)],
        numbers={name: config.argument(name, value) for name, value in config.numbers(e).items()},
        profile=profile and profiling.Profile(profile, path, log),
    )
    keep_code(int(result.state.step))  # if no step was left, the stream was not read
    return result


# -------------------------------------------------------------------------------------- train step


def make_step(task: Task, columns: AnyColumns, values: Mapping[str, tuple[Any, ...]]) -> TrainStep:
    """train_step(state, batch, numbers), where the numbers of the experiment (`config.numbers`) are arguments.

    So another seed or learning rate finds its program in the compilation cache, and the members of a sweep share one.
    values: the values of each number, one for each member. Raises Disagree if the members need different programs.
    """

    def step(numbers: Mapping[str, Any], state: TrainState, batch: Any) -> Any:
        own = task.replace(config.with_numbers(task.experiment, numbers))
        e = own.experiment
        return make_train_step(own.loss(columns), optimizer(e.train), e.train, e.seed)(state, batch)

    def train_step(state: TrainState, batch: Any, numbers: Mapping[str, Any]) -> Any:
        traced = config.traced(numbers, values)
        try:
            return step(traced, state, batch)
        except (TypeError, ValueError, AttributeError, LookupError):
            # The code of a model or an optimizer may accept Python numbers only, as jax.lax does. A mistake in it is
            # raised again.
            fixed = {name: each for name, each in values.items() if name != "seed"}
            together = tuple(zip(*fixed.values()))
            if len(set(together)) > 1:
                raise Disagree(together) from None
            return step(traced | {name: each[0] for name, each in fixed.items()}, state, batch)

    return train_step


# ------------------------------------------------------------------------------------ initial state


def make_init_fn(
    task: Task, rows: int = 0, tx: Optimizer | None = None, merge: Callable[..., Any] | None = None
) -> Callable[..., TrainState]:
    """init(key, *others), a pure function: the state of a task before its first step.

    rows: rows of a batch, for a state with a carry; 0 without one. tx: the optimizer, if it is already built.
    merge: merge(params, *others), a function that replaces some of the initial parameters.
    """
    train = task.experiment.train
    tx = tx or optimizer(train)

    def init(key: jax.Array, *others: Any) -> TrainState:
        params = merge(task.init(key), *others) if merge else task.init(key)
        return create(params, tx, train.averages, task.carry(rows) if rows else None)

    return init


def initial_state(
    task: Task,
    mesh: jax.sharding.Mesh,
    rows: int = 0,
    tx: Optimizer | None = None,
    source: Source | None = None,
    log: Log | None = None,
) -> TrainState:
    """The state before the first step. Each device computes only its own shards.

    source: a run whose parameters are taken where it has them in common with this one; described in the log.
    """
    place = placement(task, mesh)
    if source is None:
        return meshes.init_sharded(make_init_fn(task, rows, tx), *place)
    params = meshes.abstract_state(task.init, *place)
    theirs = jax.eval_shape(source.task.init, jax.random.key(task.experiment.seed))
    scales = [adapters.adapter_scales(each.experiment.model) for each in (task, source.task)]
    # Adapters of another shape or scale are merged, and ours, if there are any, are new.
    same = _adapters(theirs) == _adapters(params) and scales[0] == scales[1]
    merges = bool(_adapters(theirs)) and not same
    there = jax.eval_shape(source.task.merged, theirs) if merges else theirs
    found = transfer.match(params, there, task.transfer_rows(source.task))
    transfer.require_some(found, str(source.folder))
    template = meshes.with_shardings(theirs, mesh) if merges else transfer.template(found, theirs, params)
    restored, step = source.checkpoints().restore_params(template)
    restored = source.task.merged(restored) if merges else restored
    if log:
        log.print("\n".join(found.describe(config.relative_path(source.folder), step)))
        mine, other = (stored_code.origin_of(each.experiment).code().files for each in (task, source.task))
        if changed := stored_code.differing(mine, other):
            log.print(f"  the code of {source.folder} differs: {', '.join(changed)}")
    init = make_init_fn(task, rows, tx, partial(transfer.merge, found))
    return meshes.init_sharded(init, *place, restored)


def _adapters(params: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the low-rank adapters, by path."""
    return {path: leaf.shape for path, leaf in named_leaves(params) if path.endswith(ADAPTER)}


def placement(task: Task, mesh: jax.sharding.Mesh) -> tuple[jax.sharding.Mesh, meshes.Rules, jax.Array]:
    """The mesh, the sharding rules, and the key of the initial parameters."""
    return mesh, task.rules if mesh.shape["tensor"] > 1 else (), jax.random.key(task.experiment.seed)


def _source(path: Path, init: str | Path | None, init_assets: bool, field: str = "") -> Source | None:
    """The run that provides the initial parameters; None without one, and for a run that has checkpoints already.

    init: the run that the option --init names. field: that of the field `init`.
    """
    if init and field and config.as_path(init).absolute() != config.as_path(field):
        raise UserError(f"the experiment has init {field}, and --init is {init}: leave out one of them")
    named, init = "init" if field else "--init", init or field
    if init_assets and not init:
        raise UserError("--init-assets takes the vocabularies of another run: name that run with --init RUN")
    if folder.has_checkpoint(path):
        return None
    recorded = config.as_path(init).absolute() if init else folder.read_config(path).get("init")
    if recorded is None:
        return None
    there = config.as_path(recorded)
    if there == path.absolute():
        raise UserError(f"{named} {init} is the folder of this run: name another run, or give another --out")
    source = Source(there, folder.open_task(there))
    if not source.checkpoints().steps():
        raise UserError(f"there is no checkpoint in {there}: train it first, or name another run with {named}")
    return source


# ---------------------------------------------------------------------------------- parts of `fit`


def open_checkpoints(path: Path, task: Task, code: stored_code.Origin, least: int = 1) -> tuple[Checkpoints, int]:
    """Opens the checkpoints of a run for training. Returns them and the newest step, 0 without one.

    If the code has changed, the scores and checkpoints up to this step no longer count. least: minimum number of
    checkpoints to keep.
    """
    checkpoints = folder.checkpoints(path, task, least=least)
    step = max(checkpoints.steps(), default=0)
    if step and stored_code.change(path, code):
        if step >= task.experiment.train.steps:
            raise UserError(f"{path} has no step left to train with the new code: raise train.steps")
        checkpoints.since = step
    return checkpoints, step


def batch_shapes(columns: AnyColumns, plan: batch_plan.Plan, bucket: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of the batches of a bucket, taken from a batch of padding."""
    rows = plan.rows[bucket]
    empty = columns.batch(np.full(rows, -1), plan.buckets[bucket])
    return shapes_of(empty | ({} if plan.part is None else {"part": np.zeros(rows, np.int32)}))


# ------------------------------------------------------------------------------------------- log


def describe(
    inputs: Inputs, task: Task, columns: AnyColumns, plan: batch_plan.Plan, template: TrainState, mesh: meshes.Mesh
) -> list[str]:
    """Lines on the model, the devices, the data, the batches and the settings that were chosen by data size."""
    count = lambda params: sum(leaf.size for leaf in jax.tree.leaves(params))
    weights, frozen = f"{count(template.params):,} weights", task.experiment.train.frozen
    if frozen:
        weights += f", {count(fine_tuning.split(template.params, frozen)[0]):,} of them trained"
    devices = f"{mesh.size} {jax.devices()[0].device_kind} device{'s' if mesh.size > 1 else ''}"
    lines = [f"{task.experiment.name}: {task.model_name} with {weights}, on {devices}"]
    lines += task.describe(columns, plan)
    if plan.idle > 0.1:
        multiple = meshes.data_parallel_size(mesh) * task.experiment.train.grad_accum_steps
        lines.append(
            f"{plan.idle:.0%} of the rows are padding, because the rows of a batch are not divisible by {multiple} "
            "(devices x micro-batches): raise data.batch_tokens"
        )
    given, found = (folder.flat(config.to_json(each)) for each in (inputs.given, task.experiment))
    chosen = [name for name in found if found[name] != given[name] and name != "train.schedule_steps"]
    if chosen:
        lines.append("for data of this size: " + ", ".join(f"{name} {found[name]}" for name in chosen))
    examples = inputs.examples
    held_out = {split: examples[split] for split in examples if split != "train"}
    return [*lines, *task.remarks(examples["train"]), *task.overlaps(examples["train"], held_out)]
