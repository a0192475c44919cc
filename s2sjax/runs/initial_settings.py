"""The field `init` of an experiment: the run from which it takes settings, vocabularies and parameters.

    experiment = Translation("medical", init="runs/news", data=Data(TextFiles(...)), train=Train(2000))

The experiment takes those of the fields `init_fields` of its class that have their default values. A field that has
another value keeps it, and then names and shapes decide which parameters are taken, as with `s2sjax train --init`.
Settings are taken when an experiment file is loaded, before fields are set on the command line. The run stores what it
has taken in its config.json, and continues without the other run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.runs import folder, stored_code
from s2sjax.runs.sweeps import sweep_grid
from s2sjax.tasks.task import Assets, Task


def take(experiment: Any, *runs: Path, trust: bool = False) -> Any:
    """The experiment with the settings of its `init`, if it has one. The path of `init` must be absolute.

    runs: the folder of the run, or several that may have it: what one of them has taken when it was started is taken
    again. trust: trust the code of `init`.
    """
    if not experiment.init:
        return experiment
    there = config.as_path(experiment.init)
    for path in runs:
        check_other(experiment, path)
    stored = (folder.taken_settings(path, there) for path in _started_from(there, runs))
    values = next((found for found in stored if found is not None), None)
    if values is None:
        values = offered(experiment, trust)
    with _naming(f"with the settings of init {config.relative_path(there)}: "):
        return sweep_grid.apply(
            experiment, {name: value for name, value in values.items() if _is_default(experiment, name)}
        )


def _started_from(init: Path, runs: Iterable[Path]) -> list[Path]:
    """The runs that have taken settings from the run in the folder `init`.

    If that is gone, its folder may have been moved with theirs: then those that have taken them from the folder with
    the most similar path, from its end, if there is one.
    """
    origins = {path: origin for path in runs if (origin := folder.taken_from(path))}
    similar = {path: _common_end(origin, init) for path, origin in origins.items()}
    if init in origins.values():
        return [path for path, origin in origins.items() if origin == init]
    best = max(similar.values(), default=0)
    nearest = [path for path in origins if similar[path] == best]
    is_known = best > 0 and len({origins[path] for path in nearest}) == 1
    return nearest if is_known and not (init / folder.CONFIG).is_file() else []


def _common_end(one: Path, other: Path) -> int:
    """The number of equal parts at the end of two paths."""
    pairs = zip(reversed(one.parts), reversed(other.parts))
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def offered(experiment: Any, trust: bool = False) -> dict[str, Any]:
    """The settings of `init` that an experiment takes if it has none of its own, by dotted name.

    A run of another task offers its `offered_fields` to experiments that have all of them, such as the encoder of BERT
    to a classifier, and else none: parameters are taken by name and shape, and vocabularies if they fit.
    """
    there = config.as_path(experiment.init)
    with _naming("init: "):
        if trust:
            stored_code.trust(stored_code.read(there).files)
        other: Any = folder.read_experiment(there)
    kinds = [{config.kind_of(kind) for kind in type(each).__mro__} for each in (experiment, other)]
    if config.kind_of(type(other)) not in kinds[0] and config.kind_of(type(experiment)) not in kinds[1]:
        names = type(other).offered_fields
        names = names if all(_has(experiment, name) for name in names) else ()
    else:
        names = type(experiment).init_fields
    return {name: operator.attrgetter(name)(other) for name in names if _has(other, name)}


def check_other(experiment: Any, path: Path) -> None:
    """Raises if `init` is the folder of the run itself."""
    if experiment.init and config.as_path(experiment.init) == path.absolute():
        raise UserError(
            f"init {path} is the folder of this run: name another run, or give another name to the experiment, or --out"
        )


def assets_of(task: Task, data: Any) -> Assets:
    """The assets of a new run: those of `init`, or else learned from the data."""
    if not task.experiment.init:
        return task.learn_assets(data)
    with naming_init(task.experiment):
        return task.adopt_assets(data, folder.open_task(config.as_path(task.experiment.init)).assets)


@contextlib.contextmanager
def naming_init(experiment: Any) -> Iterator[None]:
    """Errors about assets name the field `init`, if it is set, and not the option `--init-assets`."""
    try:
        yield
    except UserError as error:
        if not experiment.init:
            raise
        raise UserError(str(error).replace("--init-assets", "init")) from None


@contextlib.contextmanager
def _naming(prefix: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{prefix}{error}") from None


def _has(settings: Any, name: str) -> bool:
    try:
        operator.attrgetter(name)(settings)
    except AttributeError:
        return False
    return True


def _is_default(experiment: Any, name: str) -> bool:
    """Whether a field has the default value of its class. name: dotted, such as data.source."""
    if not _has(experiment, name):
        return False
    parent, _, last = name.rpartition(".")
    owner = operator.attrgetter(parent)(experiment) if parent else experiment
    (field,) = (each for each in dataclasses.fields(owner) if each.name == last)
    factory = field.default_factory
    return getattr(owner, last) == (field.default if factory is dataclasses.MISSING else factory())
