"""The folder of a run: everything that is needed to continue it, to decode with it and to evaluate it.

config.json         the experiment, fingerprints of its data and assets, and the run it was initialised from, if any
code/               the experiment file, and the files it imports: see code.py
assets/             what was learned from the data before training: vocabularies, statistics
data/               training, dev and test examples that were given in memory (config.InMemory)
checkpoints/        see training/checkpoints.py
metrics.jsonl, samples.txt, nonfinite.jsonl, tensorboard/      see training/progress.py
evaluations/        one folder an evaluation: see evaluations.py
curves.png, attention.png                                      drawn after training
report.html         what s2sjax report writes
lock                which process is training in it, while one is: see lock.py
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from s2sjax import __version__, code, config, lock
from s2sjax.core import tables
from s2sjax.errors import UserError
from s2sjax.experiment_file import spaces_of
from s2sjax.files import replace_file
from s2sjax.tasks.task import Assets, Task, task_of
from s2sjax.training import hosts

CONFIG, ASSETS, DATA = "config.json", "assets", "data"
# Fields that may change between two starts of one run: how long it takes and how it is watched, not what it is.
FREE = ("train.steps", "train.log_every", "train.evaluate_every", "train.save_every", "train.keep", "train.patience",
        "train.max_skipped", "train.mesh", "train.remat", "train.schedule_steps", "data.prefetch", "evaluate.lines",
        "evaluate.samples", "evaluate.rows", "evaluate.test")  # fmt: skip


def open_task(folder: Path, trust: bool = False) -> Task:
    """The task of a run that was started before, with its assets. trust: its code, whoever wrote it."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} is not a run folder (it has no {CONFIG}): train first, or name another folder")
    if trust:
        code.trust(code.read(folder).files)
    page = _read(folder)
    return _with_assets(folder, page, task_of(_experiment(folder, page)).load_data(folder / DATA))


def start_task(
    experiment: config.Experiment,
    folder: Path,
    data: Any,
    file: str | Path | None = None,
    init: str | None = None,
    assets: Assets | None = None,
    accept_code: bool = False,
) -> Task:
    """The task of a new run in `folder`, or of the run that is there, if it is the same experiment on the same data.

    Its experiment has the length of the schedule that the run began with, unless it names another.
    file: the experiment file, of which the run keeps a copy. init: the run whose parameters it starts from.
    assets: those of that run, to be used instead of learning new ones. accept_code: a run may continue with other code.
    """
    started = (folder / CONFIG).is_file()
    page = _read(folder) if started else {}
    experiment = _with_schedule_steps(experiment, schedule_steps(folder))
    task = task_of(experiment)
    fingerprint = task.fingerprint(data)
    if started:
        _check_same(folder, page["experiment"], experiment)
        if page["data"] != fingerprint:
            raise UserError(f"the training data has changed since {folder} was started: give another --out")
        task = _with_assets(folder, page, task)
        if assets is not None and _fingerprints(task.assets) != _fingerprints(task.adopt_assets(data, assets)):
            raise UserError(f"{folder} was started with other assets than those of {init}: give another --out")
        if not accept_code:
            code.check_same(folder, experiment, file)
    else:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file, not a folder: give another --out")
        # A start that was killed before it wrote config.json may have left some of these.
        left = {code.FOLDER, ASSETS, DATA, f".{CONFIG}.partial", lock.NAME}
        if folder.is_dir() and {path.name for path in folder.iterdir()} - left:
            raise UserError(f"{folder} contains something that is not a run: give another --out")
        task = task.replace(assets=task.learn_assets(data) if assets is None else task.adopt_assets(data, assets))
        for name, asset in task.assets.items():
            asset.save(folder / ASSETS, name)
        code.keep(folder, experiment, file)
    if not hosts.is_leader():
        return task
    task.save_data(folder / DATA)
    # Last: a folder with a config.json has everything that it names.
    new_page = {
        "s2sjax": __version__,
        "data": fingerprint,
        "assets": _fingerprints(task.assets),
        "experiment": config.to_json(experiment),
    }
    if init or page.get("init"):
        new_page["init"] = init or page["init"]
    replace_file(folder / CONFIG, json.dumps(new_page, indent=2) + "\n")
    return task


def schedule_steps(folder: Path) -> int | None:
    """The length of the schedule of the run in a folder; None if there is no run."""
    if not (folder / CONFIG).is_file():
        return None
    page = flat(_read(folder)["experiment"])
    return page.get("train.schedule_steps") or page.get("train.steps")


def with_recorded(experiment: config.Experiment, folder: Path) -> Any:
    """The experiment with the numbers of the run in a folder, if there is one, where it leaves them open (0)."""
    if not (folder / CONFIG).is_file():
        return experiment
    page = flat(_read(folder)["experiment"])
    train: Any = experiment.train
    if train.steps == 0:
        plain: Any = config.Train()
        names = [name for name in config.SIZED_BY_DATA if getattr(train, name) == getattr(plain, name)]
        found = {name: page[f"train.{name}"] for name in names if f"train.{name}" in page}
        experiment = config.replace(experiment, train=config.replace(train, **found))  # type: ignore[type-var]
    sizes = {
        name: page.get(f"model.{name}", 0)
        for name in experiment.sized_by_data
        if not getattr(experiment.model, name, 1)
    }
    return config.replace(experiment, model=config.replace(experiment.model, **sizes)) if sizes else experiment  # type: ignore[type-var]


def describe_choice(experiment: config.Experiment, chosen: config.Experiment) -> list[str]:
    """The numbers that an experiment leaves open, as they were chosen for the size of its data."""
    given, found = (flat(config.to_json(each)) for each in (experiment, chosen))
    names = [name for name in found if found[name] != given[name] and name != "train.schedule_steps"]
    return ["for data of this size: " + ", ".join(f"{name} {found[name]}" for name in names)] if names else []


def recorded_init(folder: Path) -> str | None:
    """The run that the run in a folder was initialised from."""
    return _read(folder)["init"] if (folder / CONFIG).is_file() else None


def has_checkpoint(folder: Path) -> bool:
    return any(path.name.isdecimal() for path in (folder / "checkpoints").glob("*"))


def _with_schedule_steps(experiment: config.Experiment, recorded: int | None) -> Any:
    train = experiment.train
    steps = train.schedule_steps or recorded or train.steps
    return config.replace(experiment, train=config.replace(train, schedule_steps=steps))  # type: ignore[type-var]


def _fingerprints(assets: Assets) -> dict[str, str]:
    return {name: asset.fingerprint for name, asset in assets.items()}


def flat(page: Any, prefix: str = "") -> dict[str, Any]:
    """{"train": {"steps": 5}} -> {"train.steps": 5}"""
    if not isinstance(page, dict):
        return {prefix: page}
    parts = [flat(value, f"{prefix}.{name}" if prefix else name) for name, value in page.items()]
    return {name: value for part in parts for name, value in part.items()}


def _experiment(folder: Path, page: dict) -> config.Experiment:
    """The experiment of config.json. What s2sjax does not know by itself, the code of the run defines."""
    stored = code.read(folder)
    needed = code.is_needed(folder, stored, page["experiment"])
    if not needed:
        try:
            return _parsed(folder, page, code.NOTHING)
        except UserError:
            if needed is False or not stored.files:
                raise
    return _parsed(folder, page, code.execute(folder, stored))


def _parsed(folder: Path, page: dict, space: tables.Space) -> config.Experiment:
    try:
        with tables.within(space):
            experiment = config.from_json(page["experiment"])
    except (UserError, TypeError) as error:
        raise _unreadable(folder, error) from None
    if not isinstance(experiment, config.Experiment):
        raise _unreadable(folder, "it holds no experiment")
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


def _read(folder: Path) -> dict:
    try:
        page = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        found = {name: page[name] for name in ("data", "assets", "experiment")}
        dict(found["assets"])
        found["init"] = page.get("init")
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(folder, error) from None
    except KeyError as error:
        raise _unreadable(folder, f"it has no {error}") from None
    return found


def _unreadable(folder: Path, reason: object) -> UserError:
    return UserError(
        f"{folder / CONFIG} cannot be read ({reason}): copy it again from where the run was made, "
        "or name another folder"
    )


def _check_same(folder: Path, page: dict, experiment: config.Experiment) -> None:
    space = next(iter(spaces_of(experiment)), code.NOTHING)
    with contextlib.suppress(UserError, TypeError), tables.within(space):
        # fields that did not exist then have their defaults
        page = config.to_json(config.without_folders(config.from_json(page)))
    old, new = flat(page), flat(config.to_json(config.without_folders(experiment)))
    for name in sorted(old.keys() | new.keys()):
        free = any(name == field or name.startswith(field + ".") for field in (*FREE, *experiment.free_fields))
        if old.get(name) != new.get(name) and not free:
            raise UserError(
                f"{folder} contains another experiment: its {name} is {old.get(name)!r}, not {new.get(name)!r}: "
                "give another --out"
            )
