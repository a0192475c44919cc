"""Gets and checks the files of data sets.

FOLDER/NAME holds the files of a set, and SOURCE.json: its licence and citation, and for each file its origin and hash.
FOLDER/.downloads/NAME holds unfinished downloads. One process at a time gets a set; others wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from s2sjax.datasets import convert, digests, progress
from s2sjax.datasets.download import PATIENCE, Patience, download, writing
from s2sjax.datasets.folder import data_folder
from s2sjax.datasets.table import DataSet, File, Source, find, sources_of
from s2sjax.errors import UserError, nearest
from s2sjax.files import readable_size, relative_path, replace_file

RECORD = "SOURCE.json"
OFFLINE = "S2SJAX_OFFLINE"
UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.EBADF)
"""errors of file systems without locks"""
Say = Callable[[str], None]


class State(NamedTuple):
    """The files of a data set, by what is in its folder."""

    right: list[File]
    """files with the right hash"""
    unknown: list[File]
    """files that are there, but whose hash nobody knows"""
    missing: list[File]
    differs: list[File]
    """files with another hash"""

    @property
    def is_complete(self) -> bool:
        return not self.missing and not self.differs


def get(
    data_set: DataSet | str,
    folder: Path | None = None,
    *,
    offline: bool | None = None,
    every: bool = True,
    say: Say = print,
    patience: Patience = PATIENCE,
) -> Path:
    """Gets the missing files of a data set, and returns its folder.

    folder: the folder of all data sets (default: $S2SJAX_DATA, or data). offline: raise instead of downloading
    (default: whether $S2SJAX_OFFLINE is set). every: also when only files are missing that no experiment needs.
    """
    base = (folder or data_folder()).absolute()
    if isinstance(data_set, str):
        data_set = find(data_set, base)
    home = base / data_set.name
    needed = _needed(data_set, home, every)
    if not needed:
        return home
    if offline if offline is not None else is_offline():
        raise _offline(data_set, needed, home)
    with _locked(base, data_set.name, say):
        needed = _needed(data_set, home, every)  # another process may have got them meanwhile
        if needed:
            _get_files(data_set, needed, base, say, patience)
    return home


def is_offline() -> bool:
    """Whether $S2SJAX_OFFLINE forbids to download."""
    return os.environ.get(OFFLINE, "").lower() not in ("", "0", "false", "no")


def check(data_set: DataSet, folder: Path | None = None, files: Sequence[File] | None = None) -> State:
    """Compares the files of a data set with their hashes."""
    home = (folder or data_folder()) / data_set.name
    recorded = _recorded(home)
    state = State([], [], [], [])
    for file in data_set.files if files is None else files:
        _state_of(file, home / file.path, recorded, state).append(file)
    return state


def _state_of(file: File, path: Path, recorded: dict[str, Any], state: State) -> list[File]:
    if not path.is_file():
        return state.missing
    if file.content:
        return state.right if digests.content(path) == file.content else state.differs
    expected = file.sha256 or recorded.get(file.path, {}).get("sha256")
    if not expected:
        return state.unknown
    return state.right if digests.sha256(path) == expected else state.differs


def _needed(data_set: DataSet, home: Path, every: bool) -> list[File]:
    """The files to get. Raises for a file that is there with other content."""
    state = check(data_set, home.parent)
    if state.differs:
        names = _listed(state.differs)
        raise UserError(
            f"{relative_path(home)}/{names} is not the published file: move it away, and run the same command again"
        )
    if not every and all(file.extra for file in state.missing):
        return []
    if state.missing and data_set.note:
        raise UserError(f"{data_set.name} cannot be fetched: {data_set.note}")
    return state.missing


def _listed(files: Sequence[File]) -> str:
    more = f" and {len(files) - 1} others" if len(files) > 2 else f" and {files[1].path}" if len(files) == 2 else ""
    return f"{files[0].path}{more}"


def _offline(data_set: DataSet, needed: Sequence[File], home: Path) -> UserError:
    return UserError(
        f"{relative_path(home)} lacks {_listed(needed)}, and nothing is downloaded offline: run s2sjax data get "
        f"{data_set.name} where there is a network and copy the folder, or unset {OFFLINE}"
    )


# ------------------------------------------------------------------------------------ getting


def _get_files(data_set: DataSet, files: list[File], base: Path, say: Say, patience: Patience) -> None:
    files = sorted(files, key=lambda file: file.extra)
    sources = sources_of(files)
    for source in sources:  # before anything is downloaded
        convert.check_packages(source.each)
    home, downloads = base / data_set.name, base / ".downloads" / data_set.name
    size = sum(source.size for source in sources)
    about = f", {readable_size(size)} to download" if size else ""
    say(f"getting {data_set.name}: {data_set.about} ({len(files)} files{about})")
    say(f"  licence: {data_set.licence}")
    say(f"  cite: {data_set.citation}")
    origins, failed = _fetch_all(data_set, files, downloads, patience)
    opened: dict[Source, dict[str, bytes]] = {}
    for file in (file for file in files if file not in failed):
        with _failure_of_extra(file, failed):
            made = _make(file, downloads, home / file.path, opened)
            _record(data_set, home, file, made, [origins[source] for source in file.sources])
    needed = tuple(map(_name, sources_of(list(failed))))  # by the next command
    with contextlib.suppress(OSError):
        for part in (part for part in downloads.iterdir() if not part.name.startswith(needed)):
            part.unlink()
        downloads.rmdir()
        downloads.parent.rmdir()
    without = f", without {_listed(list(failed))}, which no experiment needs ({failed.popitem()[1]})" if failed else ""
    say(f"wrote {relative_path(home)}{without}")


def _fetch_all(
    data_set: DataSet, files: Sequence[File], downloads: Path, patience: Patience
) -> tuple[dict[Source, str], dict[File, UserError]]:
    """Downloads the sources of some files. Returns their addresses, and the files that cannot be made.

    Raises if one of those is needed by an experiment.
    """
    origins: dict[Source, str] = {}
    failed: dict[File, UserError] = {}
    unreachable: set[str] = set()
    with progress.shown(data_set.name, sum(source.size for source in sources_of(files))) as advance:
        for file in files:
            with _failure_of_extra(file, failed):
                for source in (source for source in sources_of([file]) if source not in origins):
                    path, lists = downloads / _name(source), [downloads / _name(each) for each in source.names]
                    origins[source] = _fetch(source, path, lists, advance, patience, unreachable)
    return origins, failed


@contextlib.contextmanager
def _failure_of_extra(file: File, failed: dict[File, UserError]) -> Iterator[None]:
    """Keeps the error of a file that no experiment needs, so that the others are made."""
    try:
        yield
    except UserError as error:
        if not file.extra:
            raise
        failed[file] = error


def _name(source: Source) -> str:
    """The name of a download: that of its address, and a hash of it, because names repeat."""
    address = source.url[0]
    last = address.rstrip("/").rpartition("/")[2][:80]
    return f"{hashlib.sha256(address.encode()).hexdigest()[:8]}-{last}"


def _fetch(
    source: Source, path: Path, lists: Sequence[Path], advance: Callable[[int], None], patience: Patience,
    unreachable: set[str],
) -> str:  # fmt: skip
    """Downloads a source, unless an earlier process has. Returns the address."""
    verify = lambda file: _wrong(source, file, lists)
    if path.is_file() and not verify(path):
        advance(path.stat().st_size)
        return source.url[0]
    return download(source.url, path, verify, advance, patience, unreachable, source.is_verified)


def _wrong(source: Source, path: Path, lists: Sequence[Path]) -> str:
    """What is wrong with a download; "" if nothing is."""
    if source.sha256 and digests.sha256(path) in source.sha256:
        return ""
    if source.git_blob and digests.git_blob(path) == source.git_blob:
        return ""
    if source.members and (source.content or not source.is_verified):
        try:
            found = digests.members_listing(path, source.members, _names(lists))
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            return f"it is no archive ({error})"
        return "" if not source.content or found == source.content else "its files have other hashes than the published"
    if source.content and digests.content(path) == source.content:
        return ""
    return f"its hash is not that of the published file ({path.stat().st_size:,} bytes)" if source.is_verified else ""


def _names(lists: Sequence[Path]) -> set[str]:
    return {name for path in lists for name in path.read_text(encoding="utf-8").split()}


def _open(source: Source, downloads: Path) -> dict[str, bytes]:
    lists = [downloads / _name(each) for each in source.names]
    each = convert.CONVERTERS.get(source.each, bytes)
    found = digests.members(downloads / _name(source), source.members, _names(lists))
    return {inner.rpartition("/")[2]: each(data) for inner, data in found}


def _make(file: File, downloads: Path, path: Path, opened: dict[Source, dict[str, bytes]]) -> str:
    """Makes a file from its downloads, and returns its SHA-256."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if file.convert:
            made = _converted(file, downloads, opened)
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                draft.write_bytes(made)
        else:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(downloads / _name(file.sources[0]), draft)
        found = digests.sha256(draft)
        wrong = file.content and digests.content(draft) != file.content
        if wrong or (file.sha256 and found != file.sha256):
            made_from = f"{'as converted ' if file.convert else ''}from {file.sources[0].url[0]}"
            _forget(file, downloads)
            raise UserError(f"{file.path}, {made_from}, has not the expected hash: correct its entry")
        with writing(path):
            os.replace(draft, path)
        return found
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def _forget(file: File, downloads: Path) -> None:
    """Deletes the downloads that have no hash: perhaps they were another page."""
    for source in (source for source in file.sources if not source.is_verified):
        with contextlib.suppress(OSError):
            (downloads / _name(source)).unlink()


def _converted(file: File, downloads: Path, opened: dict[Source, dict[str, bytes]]) -> bytes:
    function = convert.CONVERTERS.get(file.convert) if isinstance(file.convert, str) else file.convert
    if function is None:
        near = nearest(str(file.convert), convert.CONVERTERS)
        raise UserError(f"there is no converter {file.convert!r}: did you mean {near!r}?")
    try:
        for source in file.sources:
            if source.members and source not in opened:
                opened[source] = _open(source, downloads)
        read = lambda source: opened[source] if source in opened else (downloads / _name(source)).read_bytes()
        made = function(*map(read, file.sources), *file.args)
        if not isinstance(made, bytes):
            raise TypeError(f"the converter returns {type(made).__name__}, not bytes")
        return made
    except UserError:
        _forget(file, downloads)
        raise
    except Exception as error:
        _forget(file, downloads)
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"cannot make {file.path} from {file.sources[0].url[0]} ({what}): correct its entry") from error


# ----------------------------------------------------------------------------- record and lock


def _recorded(home: Path) -> dict[str, Any]:
    """The files of SOURCE.json, by path."""
    try:
        files = json.loads((home / RECORD).read_text(encoding="utf-8"))["files"]
        return {path: entry for path, entry in files.items() if isinstance(entry, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _record(data_set: DataSet, home: Path, file: File, sha256: str, origins: list[str]) -> None:
    """Adds a file to SOURCE.json."""
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    files = _recorded(home) | {file.path: {"sha256": sha256, "from": origins, "date": date}}
    entry = {"about": data_set.about, "licence": data_set.licence, "citation": data_set.citation, "files": files}
    with writing(home / RECORD):
        replace_file(home / RECORD, json.dumps(entry, indent=1, ensure_ascii=False) + "\n", f"{os.getpid()}.partial")


@contextlib.contextmanager
def _locked(base: Path, name: str, say: Say) -> Iterator[None]:
    """Waits until no other process gets this data set. The kernel releases the lock when the process ends."""
    path = base / ".downloads" / f"{name}.lock"
    with contextlib.ExitStack() as held:
        with writing(base):
            base.mkdir(parents=True, exist_ok=True)
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            file = held.enter_context(open(path, "w", encoding="utf-8"))
            with contextlib.suppress(OSError):  # another user's: those who can write in the folder can get other sets
                mode = base.stat().st_mode & 0o2777  # sticky, Linux may refuse to open the lock of another user
                path.parent.chmod(mode)
                path.chmod(mode & 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that gets {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # every file is written in one piece anyway
            if error.errno not in UNSUPPORTED:
                raise
        yield
