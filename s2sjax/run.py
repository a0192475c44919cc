"""An experiment and its folder: train it, evaluate it, open it again. Everything the commands share.

run, result = train(experiment, "runs/mine")
run = load("runs/mine")
run.decode(["a line", "another"])
run.evaluate("test")
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import jax
import numpy as np

from s2sjax import code, config, evaluations, folder, lock
from s2sjax.core.device import compiler_options, use_compilation_cache
from s2sjax.data import batches
from s2sjax.data.columns import AnyColumns
from s2sjax.dev_evaluation import DevEvaluation
from s2sjax.errors import UserError
from s2sjax.evaluate.decoding import Output, Translator
from s2sjax.evaluate.notes import Notes
from s2sjax.evaluations import Evaluation, evaluate
from s2sjax.experiment_file import load_experiment
from s2sjax.parameters import shapes_only
from s2sjax.tasks.task import Predictor, Task, shapes_of, task_of
from s2sjax.training import hosts, settings, transfer
from s2sjax.training import mesh as meshes
from s2sjax.training.checkpoints import Checkpoints
from s2sjax.training.heartbeat import working
from s2sjax.training.loop import Result, fit
from s2sjax.training.progress import METRICS, Log
from s2sjax.training.state import TrainState, create, make_train_step

if TYPE_CHECKING:  # Matplotlib is slow to import
    from s2sjax.evaluate.figures import AttentionMap
    from s2sjax.evaluate.style import Drawing

__all__ = ["Run", "evaluate", "load", "load_experiment", "train"]


class Score(NamedTuple):
    """Of a target, given its source."""

    log_prob: float
    tokens: int
    """<eos> included"""


class Run:
    """A trained experiment. Parameters are restored once, and compiled programs are reused from call to call."""

    def __init__(self, folder: str | Path, task: Task):
        self.folder, self.task = Path(folder), task
        self.trained = task.experiment
        """as it was trained; `experiment` may have other settings for predictions"""
        self._params: dict[Any, tuple[Any, int]] = {}
        self._with_search: dict[Any, Run] = {}

    def __repr__(self) -> str:
        return f"<Run {self.folder}: {self.experiment.name}, {self.task.model_name}>"

    @property
    def experiment(self) -> Any:
        return self.task.experiment

    def adjusted(self, **fields: Any) -> Run:
        """The same run with other settings for predictions: `run.adjusted(search=config.Search(beam=8))`."""
        other = Run(self.folder, self.task.replace(config.replace(self.experiment, **fields)))
        other.trained, other._params = self.trained, self._params
        return other

    # ---------------------------------------------------------------------------- predictions

    @overload
    def decode(self, lines: str, **search: Any) -> Any: ...
    @overload
    def decode(self, lines: Sequence[Any], **search: Any) -> list[Any]: ...
    def decode(self, lines: str | Sequence[Any], **search: Any) -> Any:
        """The best output of each line, as a string: run.decode(["a line"], beam=8). One string gives one output.

        `search` are fields of config.Search. A task that does not translate text returns its own outputs, and takes its
        examples as well as lines.
        """
        if self.task.generates_text:
            found = [best[0].text for best in self.nbest([lines] if isinstance(lines, str) else lines, **search)]
        else:
            run = self._searching(search)
            named = enumerate([lines] if isinstance(lines, str) else _listed(lines), start=1)
            examples = [self.task.example_of(x, f"line {n}") if isinstance(x, str) else x for n, x in named]
            found = run.predictor(run._restored(), examples) if examples else []
        return found[0] if isinstance(lines, str) else found

    def nbest(self, lines: Sequence[str], nbest: int | None = None, **search: Any) -> list[list[Output]]:
        """The `nbest` best outputs of each line, best first, with text, score, log_prob and ids."""
        run = self._searching(search if nbest is None else {**search, "nbest": nbest})
        notes = Notes()
        found = run._translator.decode(run._restored(), _strings(lines), notes=notes)
        _warn(notes)
        return found

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """The log-probability of each (source, target) pair."""
        pairs, notes = _pairs(pairs), Notes()
        found = self._translator.score(self._restored(), pairs, notes=notes)
        _warn(notes)
        return [Score(*each) for each in found]

    def attention(self, line: str, **search: Any) -> AttentionMap:
        """The attention of the best output of a line: source and target pieces, weights [T, S]. A notebook draws it."""
        from s2sjax.evaluate.figures import AttentionMap

        run = self._searching(search)
        run._translator.require_attention("an attention map")
        params = run._restored()
        (outputs,) = run._translator.decode(params, _strings([line]))
        return AttentionMap(*run._translator.attention(params, [line], outputs)[0], title=line)

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[set[tuple[int, int]]]:
        """The (source word, target word) links of each (source, target) pair: where each target word attends most."""
        from s2sjax.align.attention import attention_links

        return attention_links(self._translator, self._restored(), _pairs(pairs))

    def tree(self, line: str, **search: Any) -> Drawing:
        """A drawing of the beam search of a line."""
        from s2sjax.evaluate.figures import search_tree
        from s2sjax.evaluate.style import Drawing

        run = self._searching(search)
        tree, found = run._translator.tree(run._restored(), *_strings([line]))
        return Drawing(partial(search_tree, tree=tree, found=found, pieces=run.task.assets["target"].pieces))

    def curves(self) -> Drawing:
        """A drawing of the training loss and the scores against the step."""
        from s2sjax.evaluate.figures import learning_curves
        from s2sjax.evaluate.style import Drawing

        return Drawing(partial(learning_curves, runs={self.folder.name: self.folder / METRICS}))

    def evaluate(
        self, split: str | None = None, also: Sequence[Any] = (), average: int = 0, **search: Any
    ) -> Evaluation:
        """Predicts a split, scores it, and writes RUN/evaluations/NAME. See evaluations.py.

        also: further runs, or their folders, for an ensemble.
        """
        listed = [also] if isinstance(also, str | Path | Run) else also
        others = [other if isinstance(other, Run) else load(other) for other in listed]
        return evaluate(self._searching(search), split, others, average)

    def evaluations(self) -> list[Evaluation]:
        """All evaluations of this run, the newest last."""
        return evaluations.read_all(self.folder)

    def _searching(self, fields: dict[str, Any]) -> Run:
        """The same run with other search settings; the same object for the same settings."""
        if not fields:
            return self
        if "search" not in self.experiment.decode_fields:
            raise UserError(f"{self.folder} has no search settings: leave out {', '.join(fields)}")
        search = config.replace(self.experiment.search, **fields)
        if search == self.experiment.search:
            return self
        if search not in self._with_search:
            self._with_search[search] = self.adjusted(search=search)
        return self._with_search[search]

    @cached_property
    def _translator(self) -> Translator:
        if not self.task.generates_text:
            raise UserError(f"{self.folder} does not translate text: use run.decode or run.evaluate")
        return self.task.translator(self.mesh())  # type: ignore[attr-defined]

    @cached_property
    def predictor(self) -> Predictor:
        return self.task.predictor(self.mesh())

    def _restored(self) -> Any:
        return self.params(mesh=self.mesh())[0]

    # ------------------------------------------------------------------------------ the state

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
        verify = partial(lock.verify, self.folder)
        keep, since = self.experiment.train.keep, code.first_step(self.folder)
        return Checkpoints(self.folder / "checkpoints", keep, best, read_only, verify, since)  # type: ignore[arg-type]

    def params(self, average: int = 0, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, int]:
        """(the parameters of the best checkpoint, its step); refused if they do not fit this model.

        With `average`, the mean of that many newest checkpoints, and the step of the newest. With a mesh they are
        sharded over it as in training. They are kept: the next call returns the same.
        """
        if not isinstance(average, int) or average < 0:
            raise UserError(f"average is {average!r}: it must be a whole number, 0 for the best checkpoint")
        if (average, mesh) not in self._params:
            self._params[average, mesh] = self._restore(average, mesh)
        return self._params[average, mesh]

    def _restore(self, average: int, mesh: jax.sharding.Mesh | None) -> tuple[Any, int]:
        settings.check()
        with shapes_only():
            # A key made outside would be computed, by a program that is compiled first.
            template = jax.eval_shape(lambda: self.task.init(jax.random.key(0)))
        if mesh:
            template = meshes.with_shardings(template, mesh, self.rules(mesh))
        checkpoints = self.checkpoints(read_only=True)
        return checkpoints.restore_average(average, template) if average else checkpoints.restore_params(template)

    def check_ensemble(self, others: Sequence[Run]) -> None:
        """Refuses runs whose outputs this run does not understand."""
        if others and not (self.task.generates_text or self.task.has_ensembles):
            raise UserError(f"{self.folder} does not translate text, so it cannot be part of an ensemble: drop --also")
        for other in others:
            if config.kind_of(type(other.task)) != config.kind_of(type(self.task)):
                mine, theirs = (type(run.task.experiment).__name__ for run in (self, other))
                raise UserError(
                    f"{self.folder} is {mine} and {other.folder} is {theirs}: an ensemble requires runs of one task"
                )
            self.task.check_ensemble(other.task)
            for name, asset in self.task.assets.items():
                if name not in other.task.assets or other.task.assets[name].fingerprint != asset.fingerprint:
                    raise UserError(
                        f"the {name} vocabulary of {other.folder} is not that of {self.folder}: "
                        "an ensemble requires runs with the same vocabularies"
                    )


def load(path: str | Path, trust: bool = False) -> Run:
    """A run that was trained before.

    trust: executes the code of a run that this user has not trained (see code.py), now and from now on.
    """
    use_compilation_cache()
    return Run(path := config.local_path(path), folder.open_task(path, trust))


# ------------------------------------------------------------------------------------ training


@lock.exclusive
def train(
    experiment: config.Experiment,
    path: str | Path,
    file: str | Path | None = None,
    init: str | Path | None = None,
    init_assets: bool = False,
    accept_code: bool = False,
) -> tuple[Run, Result]:
    """Trains, from the newest checkpoint if there is one; the returned state lets a notebook continue from it.

    One process, or pod, at a time trains in a folder. A Ctrl-C saves, then raises KeyboardInterrupt.
    file: the experiment file, of which the run folder keeps a copy. init: a run whose parameters a new run starts from;
    with `init_assets` it also takes the vocabularies, instead of learning new ones. accept_code: continue a run with
    other code than it was trained with, which is refused otherwise.
    """
    from s2sjax.training.schedules import describe_change, optimizer  # imports Optax, which is slow

    settings.check()
    use_compilation_cache()
    experiment = config.resolve_paths(experiment, Path.cwd())
    e, task = experiment, task_of(experiment)
    optimizer(e.train)  # a wrong name or argument is refused before the data is read
    other = _initial_run(Path(path), init, init_assets)
    schedule_before = folder.schedule_steps(Path(path))
    mesh = meshes.make_mesh(e.train.mesh)
    task.check_mesh(mesh.shape)
    with hosts.leader_first("data"), working("reading the data"):  # which it may have to fetch
        data = task.read()
        held_out = {split: task.examples(split) for split in ("dev", "test") if task.has(split)}
    e = task.replace(folder.with_recorded(e, Path(path))).resolve_defaults(data)
    if e.train.evaluate_every and "dev" not in held_out:
        raise UserError(f"there are no dev examples to evaluate: {task.dev_remedy}, or set train.evaluate_every 0")
    dev = held_out["dev"] if e.train.evaluate_every else []
    with hosts.leader_first("run folder"), working("learning the vocabularies"):
        source, assets = (None, None) if other is None else (str(other.folder), other.task.assets)
        task = folder.start_task(e, Path(path), data, file, source, assets if init_assets else None, accept_code)
    e = task.experiment
    run = Run(Path(path), task)
    task.check_predictor()  # predictions that cannot be made are refused now, not after hours of training
    for split, examples in {"train": data, **held_out}.items():
        task.check_examples(split, examples)
    log = Log(run.folder, e.train.steps, e.train.log_every)

    with working("converting the data"):
        columns = task.columns(data)
    multiple = meshes.data_parallel_size(mesh) * e.train.micro_batches
    plan = task.plan(columns, multiple)
    read = partial(
        batches.stream, columns, plan, stop=e.train.steps, prefetch=e.data.prefetch,
        shards=meshes.row_shards(mesh, jax.process_index()), shard_count=meshes.data_parallel_size(mesh),
    )  # fmt: skip

    def keep_code(step: int) -> None:
        """Called when the checkpoint has been restored: code that does not fit it is not stored."""
        if changed := code.keep(run.folder, e, file, step):
            log.print(f"from step {step} on the code is another: {', '.join(changed)}")

    def stream(step: int) -> Any:
        keep_code(step)
        return read(step)

    rows = plan.rows[0]
    template = abstract_state(run, mesh, rows)
    remarks = [*folder.describe_choice(experiment, e), *task.remarks(data), *task.overlaps(data, held_out)]
    del held_out
    log.print("\n".join([*_describe(run, template, columns, plan, mesh), *remarks]))
    checkpoints, step = _open_checkpoints(run, file)
    for line in describe_change(schedule_before, experiment.train, e.train, step):
        log.print(line)
    if init and other is None:
        log.print(f"--init {init} is not used: this run continues from its own checkpoint of step {step}")
    start = partial(initial_state, run, mesh, rows)
    if other is not None:
        start = partial(transferred_state, run, mesh, other, log, rows)
    result = fit(
        template,
        start,
        make_train_step(task.loss(columns), optimizer(e.train), e.train, e.seed),
        stream,
        e.train,
        checkpoints,
        DevEvaluation(task, dev, task.predictor(mesh), log, mesh) if dev else None,
        log,
        mesh=mesh,
        compiler_options=compiler_options(),
        shapes=[_shapes(columns, plan, bucket) for bucket in plan.first_uses(step, e.train.steps)],
    )
    keep_code(int(result.state.step))  # of a run that had no step left
    return run, result


def _open_checkpoints(run: Run, file: str | Path | None) -> tuple[Checkpoints, int]:
    """The checkpoints of a run that is to be trained, and the newest step; 0 without one.

    If other code was accepted, the scores and checkpoints until this step count no more.
    """
    checkpoints = run.checkpoints()
    step = max(checkpoints.steps(), default=0)
    if step and code.change(run.folder, run.experiment, file):
        if step >= run.experiment.train.steps:
            raise UserError(f"{run.folder} has no step left to train with the new code: raise train.steps")
        checkpoints.since = step
    return checkpoints, step


def abstract_state(run: Run, mesh: jax.sharding.Mesh, rows: int = 0) -> TrainState:
    """The shapes and shardings of the initial state. rows: of a batch, for a task with a carry."""
    init, key = beginning(run.task, rows), jax.random.key(run.experiment.seed)
    return meshes.abstract_state(init, mesh, run.rules(mesh), key)


def initial_state(run: Run, mesh: jax.sharding.Mesh, rows: int = 0) -> TrainState:
    """The state before the first step, each device computing only what it will hold."""
    init, key = beginning(run.task, rows), jax.random.key(run.experiment.seed)
    return meshes.init_sharded(init, mesh, run.rules(mesh), key)


def transferred_state(run: Run, mesh: jax.sharding.Mesh, other: Run, log: Log, rows: int = 0) -> TrainState:
    """The state before the first step, with the parameters that another run has in common with this one."""
    task, key = run.task, jax.random.key(run.experiment.seed)
    state = abstract_state(run, mesh, rows)
    theirs = jax.eval_shape(other.task.init, key)
    found = transfer.match(state.params, theirs, task.transfer_rows(other.task))
    transfer.require_some(found, str(other.folder))
    params, step = other.checkpoints(read_only=True).restore_params(transfer.template(found, theirs, state.params))
    log.print("\n".join(found.describe(str(other.folder), step)))

    def init(key: jax.Array, others: Any) -> TrainState:
        return _created(task, transfer.merge(found, task.init(key), others), rows)

    return jax.jit(init, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, state))(key, params)


def _initial_run(path: Path, init: str | Path | None, init_assets: bool) -> Run | None:
    """The run to start from. A run with checkpoints of its own does not need it."""
    if init_assets and not init:
        raise UserError("--init-assets takes the vocabularies of a run: name it with --init RUN")
    if folder.has_checkpoint(path):
        return None
    source = config.local_path(init).absolute() if init else folder.recorded_init(path)
    if source is None:
        return None
    if Path(source) == path.absolute():
        raise UserError(f"--init {init} is the folder of this run: name another run, or give another --out")
    other = load(source)
    if not other.checkpoints(read_only=True).steps():
        raise UserError(f"there is no checkpoint in {source}: train it first, or name another run with --init")
    return other


def beginning(task: Task, rows: int = 0):
    """init(key), pure: the state of a task before its first step. rows: of a batch; 0 for a state without a carry."""
    return lambda key: _created(task, task.init(key), rows)


def _created(task: Task, params: Any, rows: int) -> TrainState:
    from s2sjax.training.schedules import optimizer

    train = task.experiment.train
    return create(params, optimizer(train), train.averages, task.carry(rows) if rows else None)


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


# ---------------------------------------------------------------------------------- after training


def show(run: Run) -> list[Path]:
    """Prints and draws what the experiment wants to see after training; the files that were written."""
    mesh = run.mesh()
    written = run.task.figures(run.folder, mesh, lambda: run.params(mesh=mesh)[0])
    if (run.folder / METRICS).is_file() and hosts.is_leader():
        written.append(run.curves().save(run.folder / "curves.png"))
    return written


def _strings(lines: Sequence[str]) -> list[str]:
    """The lines, refused if one is not a string."""
    found = _listed(lines)
    for number, line in enumerate(found, start=1):
        if not isinstance(line, str):
            raise UserError(f"line {number} is {line!r:.60}: give strings")
    return found


def _pairs(items: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs, refused if one is not a pair of strings."""
    pairs = _listed(items)
    for number, pair in enumerate(pairs, start=1):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise UserError(f"pair {number} is {pair!r:.60}: give (source, target) pairs of strings")
    return pairs


def _listed(items: Any) -> list[Any]:
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise UserError(f"{items!r:.60} is not a list: give a list")
    return list(items)


def _warn(notes: Notes) -> None:
    for line in notes.report():
        warnings.warn(line, stacklevel=3)
