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
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from s2sjax.config.serialize import PREFIX
from s2sjax.core import tables
from s2sjax.errors import UserError
from s2sjax.files import replace_file
from s2sjax.runs.experiment_file import Space, space_of_file
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


class Origin(NamedTuple):
    """Where the code of an experiment comes from."""

    spaces: list[Space]
    """spaces that the experiment needs"""
    own: list[Space]
    """space of the experiment file, if that is none of these"""
    loose: dict[str, bytes]
    """content of the experiment file, if it was not loaded"""

    def code(self, names: Iterable[str] = ()) -> Code:
        """Collects the code. names: files that it may import later."""
        found = Code(dict(self.loose), [*self.loose], bool(self.spaces), [])
        for space in (*self.spaces, *self.own):
            for name in names:
                space.read_too(name)
            for name, content in space.files.items():
                if found.files.setdefault(name, content) != content:
                    raise UserError(f"the experiment needs two different files {name}: rename one")
            found.loaded.extend(space.loaded)
        return found


NO_CODE = Origin([], [], {})
"""the origin of an experiment that has no code of its own"""


def origin_of(experiment: Any, file: str | Path | None = None) -> Origin:
    """Finds the code of an experiment and of its experiment file."""
    spaces = _spaces_of(experiment)
    if not file or any(space.path == Path(os.path.abspath(file)) for space in spaces):
        return Origin(spaces, [], {})
    if own := space_of_file(file):
        return Origin(spaces, [own], {})
    return Origin(spaces, [], {Path(file).name: Path(file).read_bytes()})


def _spaces_of(settings: Any) -> list[Space]:
    """The spaces that define the classes, table rows and functions that an experiment uses."""
    found: list[Any] = []
    if isinstance(settings, tables.Name):
        found = [settings.space]
    elif isinstance(settings, str):
        found = [tables.of_module(settings.rpartition(".")[0])]
    elif isinstance(settings, tuple | list):
        found = [space for value in settings for space in _spaces_of(value)]
    elif dataclasses.is_dataclass(settings):
        values = [getattr(settings, field.name) for field in dataclasses.fields(settings)]
        found = [tables.of_module(type(settings).__module__), *_spaces_of(values)]
    return list(dict.fromkeys(space for space in found if isinstance(space, Space)))


def hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of each file."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names of the files that differ, or that only one has, given the contents or the hashes of two codes."""
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]


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


def change(run: Path, origin: Origin) -> str:
    """Describes the first difference between the code of a run and of an experiment; "" if there is none."""
    old = read(run)
    new = origin.code(old.files)
    if not (new.needed or old.needed):
        return ""
    if not old.files:
        return f"{run / FOLDER} is missing"
    for name in differing(old.files, new.files):
        if old.needed is not None or (name in old.files and name in new.files):  # earlier versions stored more files
            return _difference(name, old.files.get(name), new.files.get(name))
    return ""


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


def keep(run: Path, origin: Origin, step: int | None = None) -> list[str]:
    """Stores the code of a new run, or its code from `step` on. Returns the names of the files that have changed.

    Files that are imported later are stored at that time.
    """
    new = origin.code()
    for space in origin.spaces:
        space.after_reading = partial(_store_added, run, origin)
    trust(new.files)
    if not multihost.is_leader() or not new.files:
        return []
    old = Code({}, [], None, []) if step is None else read(run)
    changed = differing(old.files, new.files)
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


def _store_added(run: Path, origin: Origin) -> None:
    new = origin.code()
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
