"""Experiment files: Python files that define an experiment, and may add models, cells, scores, corpora and tasks.

Each time a file is loaded, its code gets a new space: the file is imported as `s2sjax_file_STEM@N`, and a file or
package next to it as `NAME@N`, where N is the number of the space. So the code of two runs is kept apart, and a class
can be found by its name. A space reads each file once: the code that a run stores (stored_code.py) is what was
executed.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from s2sjax import config
from s2sjax.config.serialize import PREFIX, without_current_directory
from s2sjax.core import tables
from s2sjax.errors import UserError

_numbers = itertools.count(1)
_newest: dict[Path, Space] = {}
"""newest space of each loaded file"""


class Space(tables.Space, importlib.abc.Loader):
    """The code of one experiment file: its modules, and the bytes of their files by name, as in RUN/code.

    copies: the files stored in a run, if the space is that of a run. Otherwise files are read from their folders.
    """

    def __init__(self, folder: Path, copies: Mapping[str, bytes] | None = None):
        super().__init__()
        self.folders, self.copied = [folder], copies is not None
        self.files: dict[str, bytes] = dict(copies or {})
        self._paths = {name: folder / name for name in self.files}
        self.loaded: list[str] = []
        """names of the files passed to `load`; the other files were imported by them"""
        self.after_reading: Callable[[], None] = lambda: None
        """called after a file is read for the first time"""
        self._suffix = f"@{next(_numbers)}"
        self._builtins = {**vars(builtins), "__import__": self._import}
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)
        _FINDER.spaces[self._suffix] = self
        tables.SPACES.append(self)

    @property
    def path(self) -> Path:
        """The file that was loaded first."""
        return self.folders[0].joinpath(*self.loaded[:1])

    # ------------------------------------------------------------------------------------- files

    def load(self, path: Path) -> ModuleType:
        """Imports an experiment file, unless it is already imported."""
        name, where = f"{PREFIX}{path.stem}{self._suffix}", _absolute(path)
        if self.copied:
            path = where = self._paths.get(path.name, path)
        if path.name not in self.files and (self.copied or not path.is_file()):
            raise UserError(f"there is no experiment file {path}: name a Python file such as experiments/g2p.py")
        if (other := self._paths.get(path.name, where)) != where:
            raise _one_name(where, other)
        if name in sys.modules:
            return sys.modules[name]
        if where.parent not in self.folders:
            self.folders.append(where.parent)
        self.loaded.append(path.name)
        spec: Any = importlib.util.spec_from_loader(name, None, origin=str(path))
        module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look up their module
        try:
            self._execute(module, path.name, path)
        except Exception as error:
            self.loaded.remove(path.name)
            del sys.modules[name]
            if isinstance(error, UserError):
                raise UserError(f"{_place(path, error)}: {error}") from error
            reason = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
            what = f"{type(error).__name__}: {reason}".replace(self._suffix, "")
            raise UserError(f"{_place(path, error)}: {what}: correct it") from error
        return module

    def _execute(self, module: ModuleType, name: str, path: Path) -> None:
        module.__file__ = str(path)
        vars(module).update({tables.MARK: self, "__builtins__": self._builtins})
        exec(compile(self._read(name, path), str(path), "exec"), vars(module))

    def forget(self) -> None:
        """Removes the modules and table rows of a space that could not be loaded."""
        tables.SPACES.remove(self)
        del _FINDER.spaces[self._suffix]
        for name in [name for name in sys.modules if self._suffix in name.partition(".")[0]]:
            del sys.modules[name]

    def _read(self, name: str, path: Path) -> bytes:
        """Reads a file and the files it imports, once: later changes to them are not executed."""
        if name not in self.files:
            self._paths[name], self.files[name] = _absolute(path), path.read_bytes()
            for imported in _imports(self.files[name], PurePosixPath(name).parent):
                if self._has(imported.partition("/")[0]) and (found := self._find(imported)):
                    self._read(*found)
            self.after_reading()
        return self.files[name]

    def read_too(self, name: str) -> None:
        """Reads a file that the run has stored, if it still exists: code may import it later."""
        for folder in self.folders:
            if not self.copied and (folder / name).is_file():
                self._read(name, folder / name)

    def _find(self, module: str) -> tuple[str, Path] | None:
        """Finds the file of a module `name` or `package/name`: its name in RUN/code, and its path."""
        for name in (f"{module}/__init__.py", f"{module}.py"):
            found = [self._paths[name]] if name in self.files else []
            if not self.copied:
                found += [path for folder in self.folders if (path := folder / name).is_file() and path not in found]
            for other in found[1:]:
                if other.read_bytes() != self.files.get(name, found[0].read_bytes()):
                    raise _one_name(found[0], other)
            if found:
                return name, found[0]
        return None

    # ----------------------------------------------------------------------------------- modules

    def spec(self, name: str) -> Any:
        """The importlib spec of a module NAME@N or PACKAGE@N.NAME; None if it does not exist."""
        module = name.replace(self._suffix, "", 1).replace(".", "/")
        found = self._find(module)
        if found is None:
            return importlib.machinery.ModuleSpec(name, None, is_package=True) if self._is_folder(module) else None
        package = found[0].endswith("/__init__.py")
        spec: Any = importlib.util.spec_from_loader(name, self, is_package=package)
        spec.loader_state = found
        if package:
            spec.submodule_search_locations = [str(found[1].parent)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Executes a module of `spec`, for importlib."""
        spec: Any = module.__spec__
        self._execute(module, *spec.loader_state)

    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """The `import` statement of modules in this space: files next to them are imported into it."""
        top, dot, rest = name.partition(".")
        if level == 0 and self._has(top):
            name = f"{top}{self._suffix}{dot}{rest}"
        return builtins.__import__(name, globals, locals, fromlist, level)

    def _has(self, top: str) -> bool:
        """Whether a module belongs to this space. The standard library, s2sjax and installed packages go first."""
        if top in sys.stdlib_module_names or top == "s2sjax":
            return False
        found = self._find(top)
        if not (found or self._is_folder(top)):
            return False
        if self.copied or (found and not found[0].endswith("/__init__.py")):
            return True
        with without_current_directory():
            specs = (finder.find_spec(top, None) for finder in sys.meta_path)
            installed = next((spec.origin for spec in specs if spec and spec.origin), None)
        return installed is None or (found is not None and Path(installed).resolve() != found[1].resolve())

    def _is_folder(self, module: str) -> bool:
        """Whether a module is a package without an __init__.py."""
        folders = [] if self.copied else self.folders
        there = any(next((folder / module).glob("*.py"), None) for folder in folders)
        return there or any(name.startswith(f"{module}/") for name in self.files)

    def module(self, name: str) -> ModuleType | None:
        if name.startswith(PREFIX):
            file = f"{name.removeprefix(PREFIX)}.py"
            return self.load(self.folders[0] / file) if file in self.files else None
        top, dot, rest = name.partition(".")
        has = any(file == f"{top}.py" or file.startswith(f"{top}/") for file in self.files)
        return importlib.import_module(f"{top}{self._suffix}{dot}{rest}") if has else None

    # -------------------------------------------------------------------------------- other spaces

    def replaces(self, older: tables.Space) -> bool:
        return isinstance(older, Space) and (self.path == older.path or self.files == older.files)

    def clash(self, other: tables.Space, name: Any) -> Exception:
        where = " and ".join(str(space.path) for space in (other, self) if isinstance(space, Space))
        return UserError(f"{name!r} is defined by {where}: rename one, or use them in two processes")


def _one_name(path: Path, other: Path) -> UserError:
    return UserError(f"{path} and {other} have the same name, and a run keeps its files in one folder: rename one")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of spaces, whose names contain the suffix of their space."""

    def __init__(self) -> None:
        self.spaces: dict[str, Space] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        space = self.spaces.get("@" + name.partition(".")[0].partition("@")[2])
        return None if space is None else space.spec(name)


_FINDER = _Finder()


def _imports(content: bytes, folder: PurePosixPath) -> Iterator[str]:
    """The modules that a file imports, including inside functions: "name" or "package/name"."""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):  # reported when the file is executed
        return
    for node in nodes:
        paths: list[list[str]] = []
        if isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = [*folder.parts[: len(folder.parts) - node.level + 1]] if node.level else []
            module = [*package, *(node.module.split(".") if node.module else ())]
            paths = [[*module, alias.name] for alias in node.names]
        for path in paths:
            yield from ("/".join(path[:end]) for end in range(1, len(path) + 1))


# ----------------------------------------------------------------------------------------- loading


def load_experiment(
    file: str | Path, run: Callable[[config.Experiment], Path] | None = None, trust: bool = False
) -> config.Experiment:
    """Loads the `experiment` that a Python file defines. Relative paths in it are relative to the file.

    It has the settings that its field `init` takes from another run. run: returns the folder of its own run, which has
    stored these settings if it exists; by default runs/NAME. trust: trust the code of the other run.
    """
    experiment = getattr(load_file(file), "experiment", None)
    if not isinstance(experiment, config.Experiment):
        raise UserError(
            f"{file} defines no `experiment`: it must build one of that name, such as an s2sjax.tasks.Translation"
        )
    experiment = config.resolve_paths(experiment, _absolute(file).parent)
    if not experiment.init:
        return experiment
    from s2sjax.runs import initial_settings  # imports this module

    path = run(experiment) if run else Path("runs") / experiment.name
    return initial_settings.take(experiment, *folder_and_members(path), trust=trust)


def folder_and_members(path: Path) -> list[Path]:
    """A folder and, if it is a sweep, the folders of its members."""
    return [path, *sorted(each.parent for each in path.glob("*/config.json") if b'"s2sjax"' in each.read_bytes())]


def load_file(file: str | Path) -> ModuleType:
    """Imports a file, even if it was imported before. An error in it is reported with its line.

    A file that is loaded by another experiment file belongs to the space of that file, and is imported once.
    """
    path, within = config.local_path(file), tables.current()
    if isinstance(within, Space):
        return within.load(path)
    space = Space(_absolute(path).parent)
    try:
        module = space.load(path)
    except BaseException:
        space.forget()
        raise
    _newest[_absolute(path)] = space
    return module


def space_of_file(file: str | Path) -> Space | None:
    """The newest space of a file; None if it was not loaded."""
    return _newest.get(_absolute(file))


def _absolute(path: str | Path) -> Path:
    return Path(os.path.abspath(path))


def _place(path: Path, error: Exception) -> str:
    """The location of an error in a file: "experiments/g2p.py, line 12"."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)
