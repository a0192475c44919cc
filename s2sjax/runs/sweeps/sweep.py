"""Sweeps: many trainings of one experiment with other settings, as few programs as their shapes allow.

    swept = sweep(experiment, {"seed": range(3), "train.learning_rate": [1e-3, 2e-3]}, "runs/rates")
    swept.table             mean and deviation over the seeds: a list of dicts
    swept.runs              the runs, by name

Every member is an ordinary run in its own folder, runs/rates/seed=0,train.learning_rate=0.001. Members whose settings
differ in numbers that are no shapes are trained together (training/population.py), as many as fit in memory.
"""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.files import replace_file
from s2sjax.runs import evaluations, folder, initial_settings, lock, train_run
from s2sjax.runs.experiment_file import folder_and_members
from s2sjax.runs.folder import SWEEP
from s2sjax.runs.run import Run
from s2sjax.runs.sweeps import cohorts, sweep_grid, sweep_results
from s2sjax.runs.sweeps.cohorts import Member
from s2sjax.runs.sweeps.sweep_grid import Settings
from s2sjax.tasks.task import Task
from s2sjax.training import jax_settings, multihost
from s2sjax.training.heartbeat import say
from s2sjax.training.run_log import Log
from s2sjax.version import __version__


class Options(NamedTuple):
    """How the members of a sweep are chosen and trained. See `sweep`."""

    pairs: bool = False
    random: int = 0
    same_data: bool = False
    halving: int = 0
    part: tuple[int, int] = (1, 1)
    at_once: int = 0
    accept_code: bool = False
    init: str | Path | None = None
    init_assets: bool = False


ALL = Options()
"""all combinations, trained here"""


class Swept(NamedTuple):
    """A finished sweep, or the part of it that is trained here."""

    folder: Path
    runs: dict[str, Run]
    """the members that are trained here, by name"""

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each combination of settings, best first: see sweep_results.py."""
        return sweep_results.table(self.folder)


def sweep(
    experiment: config.Experiment | Mapping[str, config.Experiment],
    grid: Mapping[str, Any],
    path: str | Path,
    options: Options = ALL,
    files: Mapping[str, str | Path] | None = None,
) -> Swept | None:
    """Trains an experiment with all combinations of the values in `grid`, and evaluates each. Skips what is finished.

    Returns None if a SIGTERM has interrupted it. Ctrl-C saves, then raises KeyboardInterrupt.

    experiment: several, by name, are compared with each other. grid: values by dotted name; see sweep_grid.members.
    files: the experiment files, by name of the experiment, which are copied into the runs.
    """
    _check(options)
    path = config.as_path(path)
    several = isinstance(experiment, Mapping)
    bases = dict(experiment) if isinstance(experiment, Mapping) else {"": experiment}
    for name in bases.keys() - (files or {}).keys():  # a file has what it takes when it is loaded
        bases[name] = _taken(bases[name], path)
    grid = {**({"experiment": list(bases)} if several else {}), **grid}
    chosen = sweep_grid.members(grid, options.pairs, options.random)
    for name in chosen:
        config.as_path(path / name)  # raises for a name that object storage does not take
    experiments = {name: _experiment(bases, name, settings, options, chosen, path) for name, settings in chosen.items()}
    _record(path, chosen)
    own = own_part(experiments, options.part)
    say(_opening(path, grid, chosen, own))
    with contextlib.ExitStack() as locks:
        trainer = _Trainer(path, options, locks)
        for name, each in own.items():
            file = (files or {}).get(chosen[name].get("experiment", ""))
            trainer.add(name, each, file)
        if not trainer.train():
            return None
    if any(evaluations.read_all(path / name) for name in chosen):
        summary = sweep_results.summarize(path)
        say("\n".join([summary.table().to("text", terminal=sys.stdout.isatty()), *summary.remarks()]))
    return Swept(path, {each.name: each.run for each in trainer.members})


def own_part(members: Mapping[str, Any], part: tuple[int, int]) -> dict[str, Any]:
    """The members of the I-th of N parts, (I, N): every N-th of them."""
    number, count = part
    return dict(list(members.items())[number - 1 :: count])


def _check(options: Options) -> None:
    jax_settings.check()
    if jax_settings.debugged():
        raise UserError("a sweep is compiled as one program: turn off JAX's debugging modes, or train one run")
    if multihost.is_multiprocess():
        raise UserError("a sweep trains on the devices of one process: start it on each host with --part 1/N ... N/N")
    number, count = options.part
    if not 1 <= number <= count:
        raise UserError(f"--part is {number}/{count}: it must be from 1/{count} to {count}/{count}")
    if options.halving and count > 1:
        raise UserError("--halving compares all members with each other: leave out --part")
    if options.halving == 1:
        raise UserError("--halving is 1, which keeps all members: it must be at least 2, or 0 for none")


def _experiment(
    bases: Mapping[str, Any], name: str, settings: Settings, options: Options, chosen: Mapping[str, Settings],
    path: Path,
) -> Any:  # fmt: skip
    """The experiment of a member."""
    own = {key: value for key, value in settings.items() if key not in ("experiment", "init")}
    base = bases[settings.get("experiment", "")]
    if options.same_data:
        seeds = [each["seed"] for each in chosen.values() if "seed" in each]
        own["data_seed"] = seeds[0] if seeds else base.seed
    try:
        if "init" in settings:
            if base.init:
                raise UserError("the experiment has an init, and the sweep gives others: leave out one of them")
            base = _taken(sweep_grid.apply(base, {"init": settings["init"]}), path)
        return sweep_grid.apply(base, own)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def _taken(experiment: Any, path: Path) -> Any:
    """The experiment with the settings of its `init`, or those that members of the sweep have taken before."""
    return initial_settings.take(config.resolve_paths(experiment, Path.cwd()), *folder_and_members(path))


def _record(path: Path, chosen: Mapping[str, Settings]) -> None:
    """Writes sweep.json, with the members of earlier sweeps in the same folder. Other processes may do the same."""
    others = [each for each in path.iterdir() if not each.name.startswith(".")] if path.exists() else []
    if others and not (path / SWEEP).is_file():
        raise UserError(f"{path} contains something that is not a sweep: give another --name")
    page = sweep_results.read_page(path) if (path / SWEEP).is_file() else {"members": {}}
    known = {name: {key: _plain(value) for key, value in settings.items()} for name, settings in chosen.items()}
    _write(path, page | {"s2sjax": __version__, "members": page["members"] | known})


def _write(path: Path, page: Mapping[str, Any]) -> None:
    """Writes sweep.json, unless it has this content."""
    text = json.dumps(page, indent=2) + "\n"
    if not (path / SWEEP).is_file() or (path / SWEEP).read_text(encoding="utf-8") != text:
        replace_file(path / SWEEP, text, uuid.uuid4().hex)


def _drop(path: Path, dropped: Mapping[str, int]) -> None:
    """Adds to sweep.json the members that are dropped, and the step after which they are."""
    page = sweep_results.read_page(path)
    _write(path, page | {"dropped": page.get("dropped", {}) | dict(dropped)})


def _plain(value: Any) -> Any:
    """A value in sweep.json: a number or a string; settings by their name."""
    if isinstance(value, sweep_grid.Named):
        return value.name
    return value if isinstance(value, str | int | float | bool | None) else sweep_grid.text(value)


def _unique(values: Sequence[Any]) -> list[Any]:
    return [value for n, value in enumerate(values) if value not in values[:n]]


def _opening(path: Path, grid: Mapping[str, Any], chosen: Mapping[str, Settings], own: Mapping[str, Any]) -> str:
    """The first line: how many runs of which settings, and where."""
    values = {name: len(_unique([settings[name] for settings in chosen.values()])) for name in grid}
    of = " x ".join(f"{count} {name}" for name, count in values.items())
    part = "" if len(own) == len(chosen) else f", {len(own)} of them here"
    return f"{len(chosen)} runs ({of}) in {path}{part}"


# ---------------------------------------------------------------------------------------- training


class _Trainer:
    """Opens the members, trains them in groups that share a program, and evaluates them."""

    def __init__(self, path: Path, options: Options, locks: contextlib.ExitStack):
        self.path, self.options, self.locks = path, options, locks
        self.members: list[Member] = []
        self._examples: list[tuple[Any, dict[str, Any]]] = []
        self._made: dict[Any, Any] = {}
        """what members share: columns, plans, programs of initial states and evaluations"""

    def add(self, name: str, experiment: Any, file: str | Path | None) -> None:
        """Starts or continues the run of a member. The members share the examples, and what is learned from them."""
        path = self.path / name
        self.locks.enter_context(lock.held(path))
        try:
            init, init_assets, accept = self.options.init, self.options.init_assets, self.options.accept_code
            inputs = train_run.resolve(experiment, path, file, init, init_assets, read=self._read)
            key = ("assets", cohorts.structure(inputs.experiment))
            learned = None if init_assets else self._made.get(key)
            task = train_run.open_folder(
                inputs, path, init_assets=init_assets, accept_code=accept, learned=learned
            )  # fmt: skip
            if folder.read_config(path)[folder.ORDER] is None:
                raise UserError("an earlier version began this run: continue it alone, with s2sjax train")
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        self._made.setdefault(key, task.assets)
        self.members.append(Member(name, path, inputs, task))

    def _read(self, task: Task) -> dict[str, Any]:
        """The examples of a task, read once for all members with the same data."""
        for data, examples in self._examples:
            if data == task.experiment.data:
                return examples
        self._examples.append((task.experiment.data, train_run.read_examples(task)))
        return self._examples[-1][1]

    def train(self) -> bool:
        """Trains and evaluates all members. Returns False if a SIGTERM has interrupted it."""
        chosen = self._halve() if self.options.halving else self.members
        return chosen is not None and self._train(chosen)

    def _train(self, members: Sequence[Member], until: int | None = None) -> bool:
        """Trains members, to their last step or to `until`, and evaluates those that end."""
        left = [member for member in members if not member.over and (until is None or member.step < until)]
        over = [] if len(left) == len(members) else [f"{len(members) - len(left)} are done"]
        groups = list(cohorts.split(members, left, self._made))
        programs = f"{len(groups)} programs" if len(groups) > 1 else "one program"
        say(", ".join([f"{programs} for {len(left)} runs" if left else "nothing to train", *over]))
        formed = [self._form(group, left, f"program {n} of {len(groups)}") for n, group in enumerate(groups, start=1)]
        for cohort in (cohort for some in formed for cohort in some):
            count = len(cohort.members)
            say(f"training {cohort.leader.name}" if count == 1 else f"training {count} runs at once")
            if "interrupted" in cohort.fit(self._log(cohort.members), until):
                return False
            self._evaluate(cohort.members)
        self._evaluate(members)  # those that an earlier start has trained and not evaluated
        return True

    def _form(self, group: list[Member], left: Sequence[Member], title: str) -> list[cohorts.Cohort]:
        """The cohorts of a group. Prints what the program of the group needs, before anything is trained."""
        say("\n".join([title, *cohorts.Cohort(group, self._made).describe()]))
        formed = cohorts.in_parts(group, left, self._made, self.options.at_once, self._log(group))
        places = formed[0].places
        if len(group) > 1:
            say("one run after the other" if places == 1 else f"{min(places, len(group))} of {len(group)} runs at once")
        return formed

    def _halve(self) -> list[Member] | None:
        """Trains all members to their first evaluation, the best 1/K of them to the second, and so on.

        Returns the last of them, None if a SIGTERM has interrupted it. On a new start, earlier evaluations are read.
        """
        alive, every = list(self.members), {member.experiment.train.evaluate_every for member in self.members}
        if len(every) > 1 or 0 in every:
            raise UserError("--halving compares the members at each evaluation: set one train.evaluate_every, not 0")
        (step,) = every
        for until in range(step, max(member.experiment.train.steps for member in alive), step):
            keep = -(-len(alive) // self.options.halving)
            if keep == len(alive):
                break
            if not self._train(alive, until):
                return None
            ranked = sorted(alive, key=lambda member: member.rank(until))
            dropped, alive = ranked[keep:], [member for member in alive if member in ranked[:keep]]
            say(f"step {until}: {len(alive)} of {len(ranked)} runs go on: {' '.join(each.name for each in alive)}")
            _drop(self.path, {each.name: until for each in dropped})
        return alive

    def _log(self, group: Sequence[Member]) -> Log:
        trains = [member.experiment.train for member in group]
        return Log(None, max(train.steps for train in trains), trains[0].log_every)

    def _evaluate(self, members: Sequence[Member]) -> None:
        """Evaluates the members that have ended, as `s2sjax train` does."""
        for member in members:
            if member.over and not member.diverged and member.task.default_split and not member.is_evaluated:
                say(f"{member.name}: {evaluations.evaluate(member.run)}")
