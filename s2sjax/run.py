"""An experiment and its folder: train it, evaluate it, open it again. Everything the commands share.

run, result = train(experiment, "runs/mine")
run = load("runs/mine")
evaluate(run, "test")
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from s2sjax import config, folder
from s2sjax.core.device import compiler_options
from s2sjax.data import batches
from s2sjax.data.columns import AnyColumns
from s2sjax.errors import UserError
from s2sjax.evaluate import metrics
from s2sjax.experiment_file import load_experiment
from s2sjax.tasks.task import Predictor, Task, shapes_of, task_of
from s2sjax.train import hosts, schedules, transfer
from s2sjax.train import mesh as meshes
from s2sjax.train.checkpoints import Checkpoints
from s2sjax.train.loop import Result, Scores, fit
from s2sjax.train.progress import Log
from s2sjax.train.schedules import optimizer
from s2sjax.train.state import TrainState, create, evaluation_params, make_train_step

__all__ = ["Run", "evaluate", "load", "load_experiment", "train"]


class Run(NamedTuple):
    folder: Path
    task: Task

    @property
    def experiment(self) -> Any:
        return self.task.experiment

    def adjusted(self, **fields: Any) -> Run:
        """The same run with other settings for predictions: `run.adjusted(search=config.Search(beam=8))`."""
        return self._replace(task=self.task.replace(config.replace(self.experiment, **fields)))

    def rules(self, mesh: jax.sharding.Mesh) -> meshes.Rules:
        """How the model's parameters are split over the tensor axis of a mesh, if it has one."""
        return self.task.rules if mesh.shape["tensor"] > 1 else ()

    def mesh(self) -> jax.sharding.Mesh:
        """All devices, as in training if their number fits, else each with a copy of the model."""
        wanted = self.experiment.train.mesh
        split = wanted.fsdp * wanted.tensor
        fits = jax.device_count() % split == 0 and wanted.data in (-1, jax.device_count() // split)
        return meshes.make_mesh(wanted if fits else config.Mesh())

    def checkpoints(self, read_only: bool = False) -> Checkpoints:
        best = "max" if self.task.higher_is_better else "min"
        return Checkpoints(self.folder / "checkpoints", self.experiment.train.keep, best, read_only)  # type: ignore[arg-type]

    def params(self, average: int = 0, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, int]:
        """(the parameters of the best checkpoint, its step); refused if they do not fit this model.

        With `average`, the mean of that many newest checkpoints, and the step of the newest. With a mesh they are
        sharded over it as in training.
        """
        template = jax.eval_shape(self.task.init, jax.random.key(0))
        if mesh:
            template = meshes.with_shardings(template, mesh, self.rules(mesh))
        checkpoints = self.checkpoints(read_only=True)
        return checkpoints.restore_average(average, template) if average else checkpoints.restore_params(template)

    def check_ensemble(self, others: Sequence[Run]) -> None:
        """Refuses runs whose outputs this run does not understand."""
        if others and not self.task.generates_text:
            raise UserError(f"{self.folder} does not generate text, so it cannot be part of an ensemble: drop --also")
        for other in others:
            for name, asset in self.task.assets.items():
                if name not in other.task.assets or other.task.assets[name].fingerprint != asset.fingerprint:
                    raise UserError(
                        f"the {name} vocabulary of {other.folder} is not that of {self.folder}: "
                        "an ensemble requires runs with the same vocabularies"
                    )


def load(path: str | Path) -> Run:
    """A run that was trained before."""
    return Run(Path(path), folder.open_task(Path(path)))


# ------------------------------------------------------------------------------------ training


def train(
    experiment: config.Experiment,
    path: str | Path,
    file: str | Path | None = None,
    init: str | Path | None = None,
    init_assets: bool = False,
) -> tuple[Run, Result]:
    """Trains, from the newest checkpoint if there is one; the returned state lets a notebook continue from it.

    file: the experiment file, of which the run folder keeps a copy. init: a run whose parameters a new run starts from;
    with `init_assets` it also takes the vocabularies, instead of learning new ones.
    """
    experiment = config.resolve_paths(experiment, Path.cwd())
    e, task = experiment, task_of(experiment)
    optimizer(e.train)  # a wrong name or argument is refused before the data is read
    other = _initial_run(Path(path), init, init_assets)
    schedule_before = folder.schedule_steps(Path(path))
    mesh = meshes.make_mesh(e.train.mesh)
    task.check_mesh(mesh.shape)
    with hosts.leader_first("data"):  # which it may have to fetch
        data = task.read()
    if e.train.evaluate_every and not task.has("dev"):
        raise UserError("there are no dev examples to evaluate: give some, or set train.evaluate_every 0")
    dev = task.examples("dev") if e.train.evaluate_every else []
    with hosts.leader_first("run folder"):
        source, assets = (None, None) if other is None else (str(other.folder), other.task.assets)
        task = folder.start_task(e, Path(path), data, file, source, assets if init_assets else None)
    e = task.experiment
    run = Run(Path(path), task)
    task.check_predictor()  # predictions that cannot be made are refused now, not after hours of training
    log = Log(run.folder, e.train.steps, e.train.log_every)

    columns = task.columns(data)
    multiple = meshes.data_parallel_size(mesh) * e.train.micro_batches
    plan = task.plan(columns, multiple)
    stream = partial(
        batches.stream, columns, plan, stop=e.train.steps, prefetch=e.data.prefetch,
        process_index=jax.process_index(), process_count=jax.process_count(),
    )  # fmt: skip

    template = abstract_state(run, mesh)
    log.print("\n".join(_describe(run, template, columns, plan, mesh)))
    checkpoints = run.checkpoints()
    step = max(checkpoints.steps(), default=0)
    for line in schedules.describe_change(schedule_before, experiment.train, e.train, step):
        log.print(line)
    if init and other is None:
        log.print(f"--init {init} is not used again: this run has its own checkpoint of step {step}")
    start = partial(initial_state, run, mesh) if other is None else partial(transferred_state, run, mesh, other, log)
    result = fit(
        template,
        start,
        make_train_step(task.loss(columns), optimizer(e.train), e.train, e.seed),
        stream,
        e.train,
        checkpoints,
        DevEvaluation(task, dev, task.predictor(mesh), log) if dev else None,
        log,
        mesh=mesh,
        compiler_options=compiler_options(),
        shapes=[_shapes(columns, plan, bucket) for bucket in plan.used_buckets],
    )
    folder.keep_code(e, run.folder, file)
    return run, result


def abstract_state(run: Run, mesh: jax.sharding.Mesh) -> TrainState:
    """The shapes and shardings of the initial state."""
    return meshes.abstract_state(beginning(run.task), mesh, run.rules(mesh), jax.random.key(run.experiment.seed))


def initial_state(run: Run, mesh: jax.sharding.Mesh) -> TrainState:
    """The state before the first step, each device computing only what it will hold."""
    return meshes.init_sharded(beginning(run.task), mesh, run.rules(mesh), jax.random.key(run.experiment.seed))


def transferred_state(run: Run, mesh: jax.sharding.Mesh, other: Run, log: Log) -> TrainState:
    """The state before the first step, with the parameters that another run has in common with this one."""
    task, key = run.task, jax.random.key(run.experiment.seed)
    state = abstract_state(run, mesh)
    theirs = jax.eval_shape(other.task.init, key)
    found = transfer.match(state.params, theirs, task.transfer_rows(other.task))
    transfer.require_some(found, str(other.folder))
    params, step = other.checkpoints(read_only=True).restore_params(transfer.template(found, theirs, state.params))
    log.print("\n".join(found.describe(str(other.folder), step)))

    def init(key: jax.Array, others: Any) -> TrainState:
        train = run.experiment.train
        return create(transfer.merge(found, task.init(key), others), optimizer(train), ema=train.ema > 0)

    return jax.jit(init, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, state))(key, params)


def _initial_run(path: Path, init: str | Path | None, init_assets: bool) -> Run | None:
    """The run to start from. A run with checkpoints of its own does not need it."""
    if init_assets and not init:
        raise UserError("--init-assets takes the vocabularies of a run: name it with --init RUN")
    if folder.has_checkpoint(path):
        return None
    source = Path(init).absolute() if init else folder.recorded_init(path)
    if source is None:
        return None
    if Path(source) == path.absolute():
        raise UserError(f"--init {init} is the folder of this run: name another run, or give another --out")
    other = load(source)
    if not other.checkpoints(read_only=True).steps():
        raise UserError(f"there is no checkpoint in {source}: train it first, or name another run with --init")
    return other


def beginning(task: Task):
    """init(key), pure: the state of a task before its first step."""
    train = task.experiment.train
    return lambda key: create(task.init(key), optimizer(train), ema=train.ema > 0)


def _shapes(columns: AnyColumns, plan: batches.Plan, bucket: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a bucket's batches: those of a batch of padding."""
    rows = plan.rows[bucket]
    empty = columns.batch(np.full(rows, -1), plan.buckets[bucket])
    return shapes_of(empty | ({} if plan.part is None else {"part": np.zeros(rows, np.int32)}))


def _describe(
    run: Run, state: TrainState, columns: AnyColumns, plan: batches.Plan, mesh: jax.sharding.Mesh
) -> list[str]:
    e = run.experiment
    weights = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    devices = f"{mesh.size} {jax.devices()[0].device_kind} device{'s' if mesh.size > 1 else ''}"
    lines = [f"{e.name}: {run.task.model_name} with {weights:,} weights, on {devices}"]
    lines += run.task.describe(columns, plan)
    if plan.idle > 0.1:
        multiple = meshes.data_parallel_size(mesh) * e.train.micro_batches
        lines.append(
            f"{plan.idle:.0%} of the rows are padding, because the rows of a batch do not divide among {multiple} "
            "parts (devices x micro-batches): raise data.tokens"
        )
    return lines


class DevEvaluation:
    """Predicts the dev examples with the current parameters, scores them and shows a few."""

    def __init__(self, task: Task, dev: Sequence[Any], predict: Predictor, log: Log):
        self.task, self.predict, self.log = task, predict, log
        self.dev = task.dev_sample(dev, task.experiment.evaluate.lines)

    def __call__(self, state: TrainState, step: int) -> Scores:
        outputs = self.predict(evaluation_params(state), self.dev)
        results, groups = _score(self.task, self.dev, outputs)
        some = zip(self.dev[: self.task.experiment.evaluate.samples], outputs)
        self.log.samples(step, [f"  {self.task.show(example, output)}" for example, output in some])
        first, *others = results.values()
        details = {other.name: other.value for other in others}
        details |= {f"{first.name} {label}": part[first.name].value for label, part in groups.items()}
        return Scores(first.name, first.value, first.higher_is_better, details)


# ---------------------------------------------------------------------------------- evaluation

Results = dict[str, metrics.Result]


def _score(task: Task, examples: Sequence[Any], outputs: Sequence[Any]) -> tuple[Results, dict[str, Results]]:
    """The results of all examples, and those of each group of them."""
    groups = {
        label: task.metrics([examples[n] for n in rows], [outputs[n] for n in rows])
        for label, rows in task.groups(examples).items()
    }
    return task.metrics(examples, outputs), groups


def evaluate(run: Run, split: str | None = None, others: Sequence[Run] = (), average: int = 0) -> Results:
    """Predicts a whole split with the best checkpoint, prints the scores and writes results.json.

    With `others`, an ensemble. With `average`, each run uses the mean of that many newest checkpoints.
    """
    task = run.task
    split = split or default_split(task)
    if split is None:
        raise UserError("there are neither test nor dev examples: name another --split")
    examples = task.examples(split)
    run.check_ensemble(others)
    mesh = run.mesh()
    params, step = run.params(average, mesh)
    predict = task.predictor(mesh, [other.task for other in others])
    together = [params, *(other.params(average, mesh)[0] for other in others)] if others else params
    results, groups = _score(task, examples, predict(together, examples))
    which = f"mean of {average} checkpoints to step {step}" if average else f"checkpoint of step {step}"
    with_others = f"with {len(others)} more" if others else ""
    print(", ".join(filter(None, (split, which, task.settings_text(), with_others))) + ":")
    print(metrics.summary(results, task.noun), flush=True)
    for label, part in groups.items():
        print(f"{label}:\n{metrics.summary(part, task.noun)}", flush=True)
    extra: dict[str, Any] = {name: getattr(run.experiment, name) for name in run.experiment.evaluate_fields}
    if groups:
        extra["corpora"] = {label: {name: r.value for name, r in part.items()} for label, part in groups.items()}
    if hosts.is_leader():
        metrics.write_results(run.folder / "results.json", results, split=split, step=step, **extra)
    return results


def default_split(task: Task) -> str | None:
    """The split that is evaluated if none is named: test, or dev if there is no test."""
    return next((split for split in ("test", "dev") if task.has(split)), None)


def show(run: Run) -> list[Path]:
    """Prints and draws what the experiment wants to see after training; the files that were written."""
    mesh = run.mesh()
    return run.task.figures(run.folder, mesh, lambda: run.params(mesh=mesh)[0])
