"""Writes the report of one or several runs, or of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.files import replace_file
from s2sjax.report import page, sweep_contents
from s2sjax.report.contents import Limits, contents, size
from s2sjax.report.subjects import open_all
from s2sjax.report.sweep_contents import NAME
from s2sjax.runs import evaluations
from s2sjax.runs.comparison import DIFFERENT, FEWEST_RESAMPLES
from s2sjax.runs.sweeps import sweep_results


def write(
    paths: Sequence[str | Path],
    out: str | Path | None = None,
    split: str | None = None,
    limits: Limits | None = None,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Writes a report of the runs or evaluations, or of the sweep, at `paths`. Returns the file.

    out: the file, by default report.html in the folder of the first run, or of the sweep.
    """
    limits = limits or Limits()
    if not paths:
        raise UserError("there is nothing to report: name a run")
    if limits.resamples < FEWEST_RESAMPLES:
        raise UserError(f"{limits.resamples} resamples are too few: give at least {FEWEST_RESAMPLES}")
    if sweep := sweep_results.sweep_among(paths):
        found = sweep_results.summarize(sweep, split)
        file = check_out(out) if out else found.sweep.folder / NAME
        values = sweep_contents.contents(found, file.parent)
        return _write(file, values["name"], values, page.SWEEP, say)
    subjects = open_all(paths, split)
    for subject in subjects:
        if subject.missing:
            say(f"{subject.label} has no scores: {subject.missing}")
    if differ := evaluations.differences([subject.evaluation for subject in subjects if subject.evaluation]):
        say(f"{DIFFERENT}: {differ}")
    file = check_out(out) if out else subjects[0].run.folder / NAME
    title = ", ".join(subject.label for subject in subjects)
    return _write(file, title, contents(subjects, limits), page.REPORT, say)


def _write(file: Path, title: str, values: Any, scripts: tuple[str, ...], say: Callable[[str], None]) -> Path:
    content = page.render(f"{title}: s2sjax report", values, scripts).encode()
    replace_file(file, content)
    say(f"wrote {file} ({size(len(content))})")
    return file


def check_out(out: str | Path) -> Path:
    """The path of the report. Raises if it is not an HTML file."""
    path = config.as_path(out)
    if path.suffix not in (".html", ".htm"):
        raise UserError(f"--out {path} is not an HTML file: name one that ends in .html")
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: name a file")
    return path
