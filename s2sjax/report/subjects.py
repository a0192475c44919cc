"""The runs of a report, with an existing evaluation of each. A report does not evaluate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.runs import evaluations, folder, run
from s2sjax.runs.evaluations import Evaluation
from s2sjax.runs.run import Run


class Subject(NamedTuple):
    """A run in a report."""

    label: str
    """unique name in the report"""
    run: Run
    evaluation: Evaluation | None
    missing: str
    """reason why there is no evaluation, or empty"""


def open_all(paths: Sequence[str | Path], split: str | None) -> list[Subject]:
    """Opens runs, or evaluations RUN/evaluations/NAME. split: by default the one that most runs have evaluated."""
    folders = [config.as_path(path) for path in paths]
    stored = [evaluations.read(path) if (path / evaluations.RESULTS).is_file() else None for path in folders]
    splits = {one.split for one in stored if one} | ({split} if split else set())
    if len(splits) > 1:
        raise UserError(f"a report shows one split, but {' and '.join(sorted(splits))} were given: choose one split")
    split = next(iter(splits), None)
    load = cache(run.load)  # two evaluations of one run share its parameters and programs
    opened = [load(one.run if one else path) for path, one in zip(folders, stored)]
    split = split or _common(opened) or opened[0].task.default_split
    return [
        Subject(label, each, *((one, "") if one else newest(each, split)))
        for label, each, one in zip(labels(folders), opened, stored)
    ]


def _common(opened: Sequence[Run]) -> str | None:
    """The split on which most runs have an evaluation; of several, test before dev before train."""
    counts = Counter(split for each in opened for split in {one.split for one in each.evaluations()})
    return max(reversed(evaluations.SPLITS), key=lambda split: counts[split]) if counts else None


def newest(opened: Run, split: str | None) -> tuple[Evaluation | None, str]:
    """(the newest evaluation of a split, "") or (None, the reason why there is none and the remedy)."""
    if split is None:
        return None, "there are neither test nor dev examples"
    found = [one for one in opened.evaluations() if one.split == split]
    if found:
        return found[-1], ""
    if not opened.task.has(split):
        return None, f"there are no {split} examples"
    if not folder.has_checkpoint(opened.folder):
        return None, "there is no checkpoint yet"
    return None, f"it has not been evaluated on {split}: run s2sjax evaluate {opened.folder} --split {split}"


def labels(paths: Sequence[str | Path]) -> list[str]:
    """The shortest suffixes of the paths that are unique: ["a/runs/x", "b/runs/x"] -> ["a/runs/x", "b/runs/x"]."""
    parts = [[part for part in config.as_path(path).absolute().parts if part != evaluations.FOLDER] for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        found = ["/".join(each[-length:]) for each in parts]
        if len(set(found)) == len(found):
            return found
    return [f"{each[-1]} ({number})" for number, each in enumerate(parts, start=1)]
