"""Writes the report of one or several runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.files import replace_file
from s2sjax.report import page
from s2sjax.report.contents import Limits, contents, size
from s2sjax.report.subjects import open_all
from s2sjax.runs import evaluations
from s2sjax.runs.comparison import DIFFERENT, FEWEST_RESAMPLES

NAME = "report.html"


def write(
    paths: Sequence[str | Path],
    out: str | Path | None = None,
    split: str | None = None,
    limits: Limits | None = None,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Writes a report of the runs or evaluations at `paths` to `out`, by default RUN/report.html of the first run."""
    limits = limits or Limits()
    if not paths:
        raise UserError("there is nothing to report: name a run")
    if limits.resamples < FEWEST_RESAMPLES:
        raise UserError(f"{limits.resamples} resamples are too few: give at least {FEWEST_RESAMPLES}")
    subjects = open_all(paths, split)
    for subject in subjects:
        if subject.missing:
            say(f"{subject.label} has no scores: {subject.missing}")
    if differ := evaluations.differences([subject.evaluation for subject in subjects if subject.evaluation]):
        say(f"{DIFFERENT}: {differ}")
    file = check_out(out) if out else subjects[0].run.folder / NAME
    values = contents(subjects, limits)
    title = ", ".join(subject.label for subject in subjects)
    replace_file(file, page.render(f"{title}: s2sjax report", values, page.REPORT))
    say(f"wrote {file} ({size(file.stat().st_size)})")
    return file


def check_out(out: str | Path) -> Path:
    """The path of the report. Raises if it is not an HTML file."""
    path = config.local_path(out)
    if path.suffix not in (".html", ".htm"):
        raise UserError(f"--out {path} is not an HTML file: name one that ends in .html")
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: name a file")
    return path
