"""The command `s2sjax data`, and the offer of `s2sjax train` to get what is missing."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from s2sjax.cli import launch
from s2sjax.datasets import folder as folders
from s2sjax.datasets import store, table
from s2sjax.datasets.table import DataSet, File
from s2sjax.errors import UserError, nearest, one_line
from s2sjax.files import readable_size, relative_path

LARGE = 500_000_000
"""number of bytes above which `get all` leaves a data set out"""


def data(options: argparse.Namespace, fields: list[str]) -> None:
    """Lists, gets or checks data sets."""
    actions = {"list": _list, "get": _get, "check": _check}
    if options.action not in actions:
        near = nearest(options.action, actions)
        raise UserError(f"s2sjax data has no action {options.action!r}: did you mean {near!r}?")
    folder = Path(os.path.abspath(os.path.expanduser(options.folder))) if options.folder else folders.data_folder()
    actions[options.action](options, folder)


def _list(options: argparse.Namespace, folder: Path) -> None:
    if options.names:
        raise UserError(f"list shows all data sets: leave out {options.names[0]}")
    print(f"data sets, and what {relative_path(folder)}/ has of them")
    for data_set in table.all_sets(folder).values():
        count = sum((folder / data_set.name / file.path).is_file() for file in data_set.files)
        here = "complete" if count == len(data_set.files) else f"{count} of {len(data_set.files)} files"
        size = readable_size(data_set.size) if data_set.size else "-"
        print(f"{data_set.name:20}{size:>8}  {here:16}{data_set.about}; licence: {data_set.licence}")
        if data_set.note:
            print(f"{'':46}cannot be fetched: {data_set.note}")


def _get(options: argparse.Namespace, folder: Path) -> None:
    if not options.names:
        raise UserError("name the data sets to get, or all: s2sjax data list names them")
    chosen = _chosen(options.names, folder)
    offline = True if options.offline else None
    if len(chosen) > 1 and not (offline or store.is_offline()):
        sizes = [table.size_of(store.check(each, folder).missing) for each in chosen]
        print(f"{len(chosen)} data sets, {readable_size(sum(sizes))} to download", flush=True)
    failed = []
    for data_set in chosen:
        try:
            _get_one(data_set, folder, offline)
        except UserError as error:
            if len(chosen) == 1:
                raise
            failed.append(data_set.name)
            print(f"error: {one_line(error)}", file=sys.stderr)
    if failed:
        names = ", ".join(failed)
        raise UserError(f"{len(failed)} of {len(chosen)} data sets are not complete ({names}): see the errors above")


def _chosen(names: Sequence[str], folder: Path) -> list[DataSet]:
    """The data sets of some names. `all` leaves out those that are very large or cannot be fetched."""
    if "all" not in names:
        return [table.find(name, folder) for name in dict.fromkeys(names)]
    chosen = []
    for data_set in table.all_sets(folder).values():
        if data_set.name in names or (data_set.size <= LARGE and not data_set.note):
            chosen.append(data_set)
        else:
            why = "it cannot be fetched" if data_set.note else f"{readable_size(data_set.size)}; name it to get it"
            print(f"without {data_set.name} ({why})")
    return chosen


def _get_one(data_set: DataSet, folder: Path, offline: bool | None = None) -> None:
    home = folder / data_set.name
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        print(line, flush=True)

    with _interruptible():
        store.get(data_set, folder, offline=offline, say=say)
    if not said:
        print(f"{relative_path(home)} is complete")


def _check(options: argparse.Namespace, folder: Path) -> None:
    sets = [table.find(name, folder) for name in options.names] or [
        each for each in table.all_sets(folder).values() if (folder / each.name).is_dir()
    ]
    if not sets:
        raise UserError(f"{relative_path(folder)} has no data sets: s2sjax data get NAME")
    wrong = 0
    for data_set in sets:
        state = store.check(data_set, folder)
        parts = [f"{len(state.right)} right"]
        for what, files in (("differ", state.differs), ("missing", state.missing), ("not comparable", state.unknown)):
            if files:
                parts.append(f"{len(files)} {what}: {_names(files)}")
        print(f"{data_set.name:20}{'; '.join(parts)}", flush=True)
        wrong += not state.is_complete
    if wrong:
        sys.stdout.flush()
        sys.exit(1)


def _names(files: Sequence[File]) -> str:
    return ", ".join(file.path for file in files)


# ------------------------------------------------------------------------------ offer of train


def offer(missing: Mapping[str, str]) -> None:
    """Asks whether to get the data sets that an experiment lacks. Raises without a terminal, or for another answer.

    missing: the errors by the names of the data sets.
    """
    for name, error in missing.items():
        data_set = table.find(name)
        home = folders.data_folder()
        is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        if not is_terminal or launch.WATCHED in os.environ or store.is_offline() or data_set.note:
            raise UserError(error)
        print(error.partition(": run ")[0])
        count = table.size_of(store.check(data_set, home).missing)
        size = f"{readable_size(count)}, " if count else ""
        try:
            answer = input(f"get it now ({size}licence: {data_set.licence})? [y/N] ").strip().lower()
        except EOFError:  # Ctrl-D
            answer = ""
            print()
        if answer not in ("y", "yes"):
            raise UserError(error)
        _get_one(data_set, home)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Lets Ctrl-C raise KeyboardInterrupt, so that the progress bar is removed and the cursor is shown again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    restore = partial(signal.signal, signal.SIGINT, before)
    if callable(before):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        restore()
