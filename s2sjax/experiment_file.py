"""Python files that define an experiment, and whatever they add to s2sjax: models, cells, scores, corpora, tasks.

A file is imported as the module `s2sjax_file_STEM`, so that a class it defines can be found again by its name. It may
import files beside it. A run keeps copies of all of them (folder.py), which are imported when the run is opened and
needs them.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from s2sjax import config
from s2sjax.errors import UserError

PREFIX = "s2sjax_file_"


class Loaded(NamedTuple):
    """A file that was imported, and the files beside it that it imported or loaded."""

    path: Path
    loads: list[Path]


_loaded: dict[str, Loaded] = {}
_open: list[Loaded] = []
"""files that are being imported, the innermost last"""


def load_experiment(file: str | Path) -> config.Experiment:
    """The `experiment` that a Python file defines. Its relative paths are relative to the file."""
    experiment = getattr(load_file(file), "experiment", None)
    if not isinstance(experiment, config.Experiment):
        raise UserError(
            f"{file} defines no `experiment`: it must build one of that name, such as an s2sjax.tasks.Translation"
        )
    return config.resolve_paths(experiment, Path(file).absolute().parent)


def load_file(file: str | Path) -> ModuleType:
    """Imports a file, again if it was imported before. A mistake in it is named with its line."""
    path = config.local_path(file)
    if not path.is_file():
        raise UserError(f"there is no experiment file {file}: name a Python file such as experiments/g2p.py")
    name = PREFIX + path.stem
    spec: Any = importlib.util.spec_from_loader(name, None, origin=str(path))
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    former, entry = sys.modules.get(name), Loaded(path.absolute(), [])
    if _open:
        _open[-1].loads.append(entry.path)
    sys.modules[name] = module  # before it runs: dataclasses look up their module there
    sys.path.insert(0, str(entry.path.parent))
    _open.append(entry)
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
        entry.loads.extend(_siblings(entry.path))
    except Exception as error:
        sys.modules.pop(name)
        if former is not None:
            sys.modules[name] = former
        if isinstance(error, UserError):
            raise UserError(f"{_place(path, error)}: {error}") from error
        reason = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        raise UserError(f"{_place(path, error)}: {type(error).__name__}: {reason}: correct it") from error
    finally:
        _open.pop()
        sys.path.remove(str(entry.path.parent))
    _loaded[name] = entry
    return module


def _siblings(path: Path) -> list[Path]:
    """The files beside an experiment file that are imported as modules."""
    files = {getattr(module, "__file__", None) for name, module in sys.modules.items() if not name.startswith(PREFIX)}
    return sorted(Path(file) for file in files if file and Path(file).parent == path.parent and file.endswith(".py"))


def files_of(experiment: config.Experiment, file: str | Path | None = None) -> list[Path]:
    """The files that an experiment needs to be opened again: its own, those of its classes, and those they load."""
    wanted = [Path(file).absolute()] if file else []
    wanted += [_loaded[name].path for name in sorted(modules_of(config.to_json(experiment))) if name in _loaded]
    loads = {entry.path: entry.loads for entry in _loaded.values()}
    found: list[Path] = []
    while wanted:
        path = wanted.pop(0)
        if path not in found:
            found.append(path)
            wanted += loads.get(path, [])
    return found


def modules_of(page: Any) -> set[str]:
    """The modules that the kinds of a configuration come from."""
    if isinstance(page, dict):
        own = {page["kind"].partition(":")[0]} if ":" in page.get("kind", "") else set()
        return own.union(*map(modules_of, page.values()))
    return set().union(*map(modules_of, page)) if isinstance(page, list) else set()


def _place(path: Path, error: Exception) -> str:
    """Where in a file an error arose: "experiments/g2p.py, line 12"."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)
