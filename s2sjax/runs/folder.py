"""The run folder, which holds all that is needed to continue, decode with, and evaluate a run.

config.json         the experiment, fingerprints of its data and assets, and the run it was initialized from, if any
code/               the experiment file and the files it imports: see stored_code.py
assets/             vocabularies and statistics, learned from the data before training
pretrained/         what an export to the original format needs, if the model was imported: see pretrained.py
data/               training, dev and test examples given in memory (config.InMemory)
checkpoints/        see training/checkpoints/manager.py
metrics.jsonl, samples.txt, nonfinite.jsonl                    see training/run_log.py
tensorboard/, wandb/, loggers/                                 see training/loggers.py
time.json           what the wall clock was spent on: see training/goodput.py
profile/            traces of steps: see training/profiling.py
evaluations/        one folder per evaluation: see evaluations.py
curves.png, attention.png                                      drawn after training
report.html         written by s2sjax report
lock                names the process that is training here: see lock.py
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from s2sjax import config
from s2sjax.core import tables
from s2sjax.errors import UserError
from s2sjax.files import as_path, copy_folder, replace_file
from s2sjax.runs import lock, stored_code
from s2sjax.tasks.task import Assets, Task, task_of
from s2sjax.training import multihost
from s2sjax.training.checkpoints.manager import Checkpoints
from s2sjax.version import __version__

CONFIG, ASSETS, DATA = "config.json", "assets", "data"
ORDER = "batch_order"
"""entry of config.json; without it, the order of the buckets depends on the seed (`Plan.order_by_seed`)"""
TAKEN = "init_settings"
"""entry of config.json: the settings that the experiment has taken from the run of its field `init`"""
PRETRAINED = "pretrained"
"""folder of a run that was imported, or whose parameters come from one: see pretrained.py"""
SWEEP = "sweep.json"
"""file of a folder whose folders are the runs of a sweep: see sweep_results.py"""
# Fields that may change when a run is continued: they affect its length, speed and logging, not its results.
FREE = ("train.steps", "train.log_every", "train.loggers", "train.evaluate_every", "train.save_every",
        "train.max_to_keep", "train.patience", "train.max_skipped", "train.mesh", "train.remat",
        "train.schedule_steps", "data.prefetch", "evaluate.dev_examples", "evaluate.samples", "evaluate.batch_size",
        "evaluate.test")  # fmt: skip


def open_task(folder: Path, trust: bool = False) -> Task:
    """Opens the task of an existing run, with its assets. trust: trust the code of the run."""
    check_run(folder, "train first, or name another folder")
    if trust:
        stored_code.trust(stored_code.read(folder).files)
    page = read_config(folder)
    return _with_assets(folder, page, task_of(_experiment(folder, page)).load_data(folder / DATA))


def read_experiment(folder: Path) -> config.Experiment:
    """The experiment of a run."""
    check_run(folder)
    return _experiment(folder, read_config(folder))


def taken_from(folder: Path) -> Path | None:
    """The run from which the run in a folder has taken settings; None if there is none."""
    page = read_config(folder)
    return as_path(page["experiment"].get("init", "")) if page and page[TAKEN] is not None else None


def taken_settings(folder: Path, init: Path) -> dict[str, Any] | None:
    """The settings that the run in a folder has taken from the run `init`, by dotted name; None if they are in `init`.

    Those of a run with code of its own are read from `init` if it still exists: the code that is stored with them
    includes the experiment file, which may have changed.
    """
    page = read_config(folder)
    stored, found = stored_code.read(folder), {}
    if stored.needed and (init / CONFIG).is_file():
        return None
    with tables.within(stored_code.execute(folder, stored) if stored.needed else stored_code.NOTHING):
        for name, value in page[TAKEN].items():
            with contextlib.suppress(UserError):  # code of the other run that this one does not use is not stored
                found[name] = config.from_json(value)
    return found


def check_run(folder: Path, remedy: str = "name another folder") -> None:
    """Raises if there is no run in a folder."""
    if (folder / CONFIG).is_file():
        return
    if (folder / SWEEP).is_file():
        raise UserError(f"{folder} is a sweep: name one of its runs, {folder}/NAME")
    raise UserError(f"{folder} is not a run folder (it has no {CONFIG}): {remedy}")


def start_task(
    experiment: config.Experiment,
    folder: Path,
    data: Any,
    code: stored_code.Origin = stored_code.NO_CODE,
    *,
    init: str | None = None,
    assets: Assets | None = None,
    accept_code: bool = False,
    learned: Assets | None = None,
    taken: dict[str, Any] | None = None,
    check: Callable[[Task], None] = lambda task: None,
) -> Task:
    """Starts a run in `folder`, or continues the one there if it has the same experiment and data. Returns its task.

    The schedule keeps the length with which the run began unless the experiment sets another. code: the code
    of the experiment, which is copied into the run. init: the run that provides the initial parameters. assets: assets
    of that run, used instead of learning new ones. accept_code: continue even if the code has changed. learned: assets
    that another run has learned from the same data with the same settings. taken: the settings that a new run has taken
    from `init`. check: raises if a new run cannot be trained, before anything is written.
    """
    page, train = read_config(folder), cast(Any, experiment.train)
    steps = train.schedule_steps or schedule_steps(page) or train.steps
    task = task_of(config.replace(experiment, train=config.replace(train, schedule_steps=steps)))  # type: ignore[type-var]
    fingerprint = task.fingerprint(data)
    if page:
        _check_same(folder, page, task.experiment, next(iter(code.spaces), stored_code.NOTHING))
        if page["data"] != fingerprint:
            raise UserError(f"the training data has changed since {folder} was started: give another --out")
        task = _with_assets(folder, page, task)
        if assets is not None and _fingerprints(task.assets) != _fingerprints(task.adopt_assets(data, assets)):
            raise UserError(f"{folder} was not started with the assets of {init}: give another --out")
        if not accept_code and (changed := stored_code.change(folder, code)):
            remedy = "give another --out, or add --accept-code (accept_code=True) to continue with the new code"
            raise UserError(f"{folder} was trained with different code: {changed}: {remedy}")
    else:
        _check_unused(folder)
        learned = task.learn_assets(data) if learned is None and assets is None else learned
        task = task.replace(assets=learned if assets is None else task.adopt_assets(data, assets))
        check(task)
        for name, asset in task.assets.items():
            asset.save(folder / ASSETS, name)
        stored_code.keep(folder, code)
        if init and multihost.is_leader() and (as_path(init) / PRETRAINED).is_dir():
            copy_folder(as_path(init) / PRETRAINED, folder / PRETRAINED)
    if multihost.is_leader():
        task.save_data(folder / DATA)
        kept = {"init": init or page.get("init"), ORDER: page[ORDER] if page else "by epoch"}
        kept[TAKEN] = page[TAKEN] if page else taken and {name: config.to_json(each) for name, each in taken.items()}
        _write(folder, task, fingerprint, kept)  # last: a folder with a config.json is complete
    return task


def schedule_steps(page: dict) -> int | None:
    """The schedule length in the config.json of a run; None if there is no run."""
    recorded = flat(page.get("experiment"))
    return recorded.get("train.schedule_steps") or recorded.get("train.steps")


def with_recorded(experiment: Any, page: dict) -> Any:
    """The experiment, with settings left at 0 (chosen by data size) taken from the config.json of its run, if any."""
    if not page:
        return experiment
    recorded, train, plain = flat(page["experiment"]), experiment.train, config.Train()
    if train.steps == 0:
        names = [name for name in config.SIZED_BY_DATA if getattr(train, name) == getattr(plain, name)]
        found = {name: recorded[f"train.{name}"] for name in names if f"train.{name}" in recorded}
        experiment = config.replace(experiment, train=config.replace(train, **found))
    open_sizes = [name for name in experiment.sized_by_data if not getattr(experiment.model, name, 1)]
    sizes = {name: recorded.get(f"model.{name}", 0) for name in open_sizes}
    return config.replace(experiment, model=config.replace(experiment.model, **sizes)) if sizes else experiment


def checkpoints(folder: Path, task: Task, read_only: bool = False, least: int = 1) -> Checkpoints:
    """Opens the checkpoints of a run. Those of replaced code are not used. least: minimum number of them to keep."""
    return Checkpoints(
        folder / "checkpoints",
        max(task.experiment.train.max_to_keep, least),
        "max" if task.higher_is_better else "min",
        read_only=read_only,
        verify=partial(lock.verify, folder),
        since=stored_code.first_step(folder),
    )


def has_checkpoint(folder: Path) -> bool:
    return any(path.name.isdecimal() for path in (folder / "checkpoints").glob("*"))


def _fingerprints(assets: Assets) -> dict[str, str]:
    return {name: asset.fingerprint for name, asset in assets.items()}


def flat(page: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens nested dictionaries: {"train": {"steps": 5}} -> {"train.steps": 5}."""
    if not isinstance(page, dict):
        return {prefix: page}
    parts = [flat(value, f"{prefix}.{name}" if prefix else name) for name, value in page.items()]
    return {name: value for part in parts for name, value in part.items()}


def _experiment(folder: Path, page: dict) -> config.Experiment:
    """Reads the experiment from config.json, executing the code of the run only if that is needed."""
    stored = stored_code.read(folder)
    needed = stored_code.is_needed(folder, stored, page["experiment"])
    if not needed:
        try:
            return _parsed(folder, page, stored_code.NOTHING)
        except UserError:
            if needed is False or not stored.files:
                raise
    return _parsed(folder, page, stored_code.execute(folder, stored))


def _parsed(folder: Path, page: dict, space: tables.Space) -> config.Experiment:
    try:
        with tables.within(space):
            experiment = config.from_json(page["experiment"])
    except (UserError, TypeError) as error:
        raise _unreadable(folder, error) from None
    if not isinstance(experiment, config.Experiment):
        raise _unreadable(folder, "it contains no experiment")
    return experiment


def _with_assets(folder: Path, page: dict, task: Task) -> Task:
    task = task.replace(assets=task.load_assets(folder / ASSETS, list(page["assets"])))
    for name, fingerprint in page["assets"].items():
        if name not in task.assets or task.assets[name].fingerprint != fingerprint:
            raise UserError(
                f"{name} in {folder / ASSETS} is not the one that this run was trained with: "
                "copy it again from where the run was made"
            )
    return task


def read_config(folder: Path) -> dict:
    """The data fingerprint, assets, experiment, init and batch order of the run in a folder; {} if there is no run."""
    if not (folder / CONFIG).is_file():
        return {}
    try:
        page = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if isinstance(page, dict) and "model_type" in page:
            raise UserError(
                f"{folder} is a model of transformers: first s2sjax import {folder} runs/{folder.resolve().name}"
            )
        found = {name: page[name] for name in ("data", "assets", "experiment")}
        dict(found["assets"])
        found |= {"init": page.get("init"), ORDER: page.get(ORDER), TAKEN: page.get(TAKEN)}
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(folder, error) from None
    except KeyError as error:
        raise _unreadable(folder, f"it has no {error}") from None
    return found


def _write(folder: Path, task: Task, fingerprint: str, kept: dict[str, Any]) -> None:
    page = {
        "s2sjax": __version__,
        "data": fingerprint,
        "assets": _fingerprints(task.assets),
        "experiment": config.to_json(task.experiment),
    }
    page |= {name: value for name, value in kept.items() if value is not None}
    replace_file(folder / CONFIG, json.dumps(page, indent=2) + "\n")


def _unreadable(folder: Path, reason: object) -> UserError:
    return UserError(
        f"{folder / CONFIG} cannot be read ({reason}): copy it again from where the run was made, "
        "or name another folder"
    )


def _check_unused(folder: Path) -> None:
    """Raises if a folder contains anything but what a run may leave that was killed before it wrote config.json."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder: give another --out")
    left = {stored_code.FOLDER, ASSETS, DATA, PRETRAINED, f".{CONFIG}.partial", lock.NAME}
    if folder.is_dir() and {path.name for path in folder.iterdir()} - left:
        raise UserError(f"{folder} contains something that is not a run: give another --out")


def _check_same(folder: Path, page: dict, experiment: config.Experiment, space: tables.Space) -> None:
    """Raises if the run in a folder has another experiment. space: that of the code of the experiment."""
    stored = page["experiment"]
    with contextlib.suppress(UserError, TypeError), tables.within(space):
        # fields added since then have their defaults
        stored = config.to_json(config.without_folders(config.from_json(stored)))
    old, new = flat(stored), flat(config.to_json(config.without_folders(experiment)))
    for name in sorted(old.keys() | new.keys()):
        free = any(name == field or name.startswith(field + ".") for field in (*FREE, *experiment.free_fields))
        if old.get(name) != new.get(name) and not free:
            raise UserError(
                f"{folder} contains another experiment: its {name} is {old.get(name)!r}, not {new.get(name)!r}: "
                "give another --out"
            )
