"""The code of a run: RUN/code holds copies of the experiment file and of the files next to it that it imports.

NAME.py               as it was executed; stored before the first step, or when it was first imported
until-step-N/         the code of the steps before N, if it was replaced with `--accept-code`
code.json             the SHA-256 of each file, now and formerly; the files to load when the run is opened, and whether
                      it needs them: a file that only sets fields of s2sjax is stored, but not executed again

Opening a run that needs its code executes that code. It is executed only if this user has trained with these files or
has declared them trusted. The SHA-256 of trusted files is stored for each user in TRUSTED.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from s2sjax import config
from s2sjax.config.serialize import PREFIX
from s2sjax.core import tables
from s2sjax.errors import UserError
from s2sjax.files import replace_file
from s2sjax.runs.experiment_file import Space, hashes, space_of_file, spaces_of
from s2sjax.training import multihost

FOLDER, RECORD = "code", "code.json"
TRUSTED = "s2sjax/trusted"
"""folder in $XDG_STATE_HOME (default: ~/.local/state) with an empty file, named by SHA-256, for each trusted file"""
NOTHING = tables.Space()
"""the space of a run that needs no code"""


class Code(NamedTuple):
    """The code of a run or of an experiment."""

    files: dict[str, bytes]
    """content of each file, by name in RUN/code"""
    loaded: list[str]
    """files that are loaded to open the run; they import the others"""
    needed: bool | None
    """whether the run cannot be opened without them; None if unknown, because an earlier version stored them"""
    former: list[dict[str, Any]]
    """code that was replaced: [{"until_step": 60, "sha256": {"mine.py": ...}}, ...]"""


def code_of(experiment: config.Experiment, file: str | Path | None = None, names: Iterable[str] = ()) -> Code:
    """Collects the code of an experiment and of its experiment file. names: files that it may import later."""
    spaces = needed = spaces_of(experiment)
    loose: dict[str, bytes] = {}
    if file and not any(space.path == Path(os.path.abspath(file)) for space in spaces):
        own = space_of_file(file)
        spaces = [*spaces, *([own] if own else [])]
        loose = {} if own else {Path(file).name: Path(file).read_bytes()}
    found = Code(dict(loose), [*loose], bool(needed), [])
    for space in spaces:
        for name in names:
            space.read_too(name)
        for name, content in space.files.items():
            if found.files.setdefault(name, content) != content:
                raise UserError(f"the experiment needs two different files {name}: rename one")
        found.loaded.extend(space.loaded)
    return found


# --------------------------------------------------------------------------------------- in a run


def read(run: Path) -> Code:
    """Reads the code stored in a run. Raises if the run needs it and it does not match code.json."""
    folder = run / FOLDER
    if not (folder / RECORD).is_file():  # stored by an earlier version, or no code
        files = {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}
        return Code(files, list(files), None, [])
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        expected, loaded, needed = dict(record["sha256"]), list(record["loaded"]), bool(record["needed"])
        former = list(record["former"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "copy it again from where the run was made"
        raise UserError(f"{folder / RECORD} cannot be read ({error!r}): {remedy}") from None
    files = {}
    for name in expected:
        path = folder / name
        if path.is_file():
            files[name] = path.read_bytes()
        elif needed:
            raise _missing(path)
        if needed and hashes(files)[name] != expected[name]:
            raise UserError(
                f"{path} is not the code that this run was trained with: copy it again from where the run was made"
            )
    return Code(files, loaded, needed, former)


def check_same(run: Path, experiment: config.Experiment, file: str | Path | None) -> None:
    """Raises if the code of an experiment differs from the code with which the run was trained."""
    if found := change(run, experiment, file):
        remedy = "give another --out, or add --accept-code (accept_code=True) to continue with the new code"
        raise UserError(f"{run} was trained with different code: {found}: {remedy}")


def change(run: Path, experiment: config.Experiment, file: str | Path | None) -> str:
    """Describes the first difference between the code of a run and of an experiment; "" if there is none."""
    old = read(run)
    new = code_of(experiment, file, old.files)
    if not (new.needed or old.needed):
        return ""
    if not old.files:
        return f"{run / FOLDER} is missing"
    names = sorted(old.files.keys() | new.files.keys())
    if old.needed is None:  # earlier versions stored more files
        names = [name for name in names if name in old.files and name in new.files]
    different = (name for name in names if old.files.get(name) != new.files.get(name))
    return next((_difference(name, old.files.get(name), new.files.get(name)) for name in different), "")


def first_step(run: Path) -> int:
    """The step from which the run was trained with its current code."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a run may have no code
        former = json.loads((run / FOLDER / RECORD).read_text(encoding="utf-8"))["former"]
        return max((each["until_step"] for each in former), default=0)
    return 0


def _difference(name: str, old: bytes | None, new: bytes | None) -> str:
    """Describes the first line that differs."""
    if old is None or new is None:
        return f"{name} is {'new' if old is None else 'missing'}"
    lines = [content.decode("utf-8", "replace").splitlines() for content in (old, new)]
    for number, (before, after) in enumerate(zip_longest(*lines, fillvalue=""), start=1):
        if before != after:
            same = next((at for at, (one, other) in enumerate(zip(before, after)) if one != other), 0)
            was, now = (_short(line[max(0, same - 30) :]) for line in (before, after))
            return f"{name}, line {number} was {was} and is {now}"
    return f"{name} has different line endings"


def _short(line: str) -> str:
    text = line.strip()
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def keep(run: Path, experiment: config.Experiment, file: str | Path | None, step: int | None = None) -> list[str]:
    """Stores the code of a new run, or its code from `step` on. Returns the names of the files that have changed.

    Files that are imported later are stored at that time.
    """
    new = code_of(experiment, file)
    for space in spaces_of(experiment):
        space.after_reading = partial(_store_added, run, experiment, file)
    trust(new.files)
    if not multihost.is_leader() or not new.files:
        return []
    old = Code({}, [], None, []) if step is None else read(run)
    changed = [name for name in sorted(old.files.keys() | new.files) if old.files.get(name) != new.files.get(name)]
    if not changed and old.needed == new.needed:
        return []
    former = old.former
    archive = run / FOLDER / f"until-step-{step}"
    if old.files and changed and step and not archive.exists():
        for name, content in old.files.items():
            replace_file(archive / name, content)
        former = [*former, {"until_step": step, "sha256": hashes(old.files)}]
    for path in (run / FOLDER).glob("*.py"):
        if path.name not in new.files:
            path.unlink()
    _store(run, new._replace(former=former))
    return changed if old.files else []


def _store_added(run: Path, experiment: config.Experiment, file: str | Path | None) -> None:
    new = code_of(experiment, file)
    trust(new.files)
    if multihost.is_leader():
        _store(run, new._replace(former=read(run).former))


def _store(run: Path, code: Code) -> None:
    for name, content in code.files.items():
        replace_file(run / FOLDER / name, content)
    record = {"loaded": code.loaded, "needed": code.needed, "sha256": hashes(code.files), "former": code.former}
    replace_file(run / FOLDER / RECORD, json.dumps(record, indent=2).encode() + b"\n")


# ----------------------------------------------------------------------------------------- opening


def is_needed(run: Path, code: Code, page: Any) -> bool | None:
    """Whether the experiment in a config.json needs the code of its run; None if unknown: try without."""
    modules = set(_modules(page))
    for name in sorted(modules):
        file = f"{name.removeprefix(PREFIX)}.py"
        if name.startswith(PREFIX) and file not in code.files:
            raise _missing(run / FOLDER / file)
    tops = {name.partition(".")[0] for name in modules}
    files = {name.removesuffix(".py").partition("/")[0] for name in code.files}
    return True if tops & files or any(name.startswith(PREFIX) for name in modules) else code.needed


def _modules(page: Any) -> Iterable[str]:
    """The modules that define the kinds in a configuration."""
    if isinstance(page, dict):
        kind = page.get("kind")
        if isinstance(kind, str) and ":" in kind:
            yield kind.partition(":")[0]
    for value in page.values() if isinstance(page, dict) else page if isinstance(page, list) else ():
        yield from _modules(value)


def execute(run: Path, code: Code) -> Space:
    """Executes the code of a run in a new space. Raises if it is not trusted."""
    known = _trusted()
    if any(digest not in known for digest in hashes(code.files).values()):
        raise UserError(
            f"{run} has code that this user has not trained with, and opening it executes {run / FOLDER}: read it, and "
            "add --trust if you trust it (from Python: s2sjax.load(run, trust=True))"
        )
    space = Space((run / FOLDER).absolute(), code.files)
    try:
        with tables.within(space):
            for name in code.loaded:
                space.load(run / FOLDER / name)
    except BaseException:
        space.forget()
        raise
    return space


_here: set[str] = set()
"""SHA-256 of the files trusted in this process, in case TRUSTED is not writable"""


def trust(files: Mapping[str, bytes]) -> None:
    """Records that this user trusts these files: runs with them can be opened from now on."""
    digests = set(hashes(files).values())
    _here.update(digests)
    with contextlib.suppress(OSError, RuntimeError):  # --trust will be required again
        _folder().mkdir(parents=True, exist_ok=True)
        for digest in digests:
            (_folder() / digest).touch()


def _trusted() -> set[str]:
    with contextlib.suppress(OSError, RuntimeError):
        return _here | set(os.listdir(_folder()))
    return _here


def _folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / TRUSTED


def _missing(path: Path) -> UserError:
    return UserError(f"{path} is missing: copy it back, or copy the run again from where it was made")
