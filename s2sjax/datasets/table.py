"""The table of the data sets: sets.json of this package, then sets.json of the data folder, which is the user's.

    {"my_pairs": {
        "about": "English-Frisian pairs", "licence": "CC0", "citation": "Me (2026). My pairs.",
        "base": "https://example.org/pairs/",
        "files": {"train.tsv": {"url": "train.tsv.gz", "convert": "gunzip", "sha256": "9f2c..."},
                  "dev.tsv": {"url": "dev.tsv", "sha256": "41aa..."}}}}

The fields of a file are those of `File`, with `url` (an address, or several that are tried in turn) for a file that is
made from one download, or `from`, a list of the names of `sources`. An address without a scheme begins with `base`, of
which there may be several, too.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import json
import os
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from s2sjax.datasets import convert
from s2sjax.datasets.download import is_address
from s2sjax.datasets.folder import data_folder
from s2sjax.errors import UserError, nearest
from s2sjax.files import relative_path

OWN = "sets.json"
"""name of the user's table in the data folder"""


@dataclasses.dataclass(frozen=True)
class Source:
    """A file that is downloaded. At least one of its hashes must agree, if any is given."""

    url: tuple[str, ...]
    """addresses, tried in turn"""
    size: int = 0
    """number of bytes, for the progress bar; approximate if addresses have different files"""
    sha256: tuple[str, ...] = ()
    """accepted hashes of the file"""
    content: str = ""
    """hash of what a .gz file contains, or of the listing of `members`: for files whose compression may differ"""
    git_blob: str = ""
    """id of the file in Git"""
    members: str = ""
    """pattern of the members of a tar archive that are used, such as recordings/*.wav"""
    names: tuple[Source, ...] = ()
    """text files that list the names of the members that are used"""
    each: str = ""
    """converter that is applied to every member"""

    @property
    def is_verified(self) -> bool:
        """Whether it has a hash of its own, so that another page is recognised."""
        return bool(self.sha256 or self.content or self.git_blob)


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a data set, and what it is made from."""

    path: str
    """path below the folder of the set"""
    sources: tuple[Source, ...]
    """downloads that it is made from"""
    convert: str | Callable[..., bytes] = ""
    """name of a function of convert.py, or a function, that takes the downloads as bytes; "" copies the download"""
    args: tuple[Any, ...] = ()
    """further arguments of `convert`"""
    sha256: str = ""
    """hash of the file"""
    content: str = ""
    """hash of what a .gz file contains, or of the listing of a zip file, instead of `sha256`"""
    extra: bool = False
    """whether no experiment needs it: a folder without it counts as complete"""

    def __post_init__(self):
        """The hash of a file is that of its only download, if it is this download, or unpacked from it."""
        known: dict[str, Any] = {}
        if self.convert == "":
            known = {"sha256": (self.sha256,) if self.sha256 else (), "content": self.content}
        elif self.convert == "gunzip":
            known = {"content": self.sha256}
        if len(self.sources) == 1 and any(known.values()) and not self.sources[0].is_verified:
            object.__setattr__(self, "sources", (dataclasses.replace(self.sources[0], **known),))


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A public data set."""

    name: str
    about: str
    """what it is, in a few words"""
    licence: str
    citation: str
    files: tuple[File, ...] = ()
    note: str = ""
    """why it cannot be fetched, and what to do instead"""

    @property
    def size(self) -> int:
        """Number of bytes to download."""
        return size_of(self.files)


def sources_of(files: Sequence[File]) -> tuple[Source, ...]:
    """The downloads of some files, each once, and before it the lists of its members."""
    found: dict[Source, None] = {}
    for source in (source for file in files for source in file.sources):
        found |= dict.fromkeys((*source.names, source))
    return tuple(found)


# ------------------------------------------------------------------------------------- lookup


def all_sets(folder: Path | None = None) -> dict[str, DataSet]:
    """All data sets by name: those of this package, and those of sets.json in the data folder."""
    own = (folder or data_folder()) / OWN
    return _built_in() | (read_table(own) if own.is_file() else {})


def find(name: str, folder: Path | None = None) -> DataSet:
    """The data set of a name."""
    sets = all_sets(folder)
    if name not in sets:
        near = nearest(name, sets, cutoff=0.6)
        meant = f"did you mean {near!r}?" if near else "s2sjax data list names them"
        raise UserError(f"there is no data set {name!r}: {meant}")
    return sets[name]


def owner(path: str | Path) -> tuple[DataSet, str] | None:
    """The data set that a path belongs to, and the path within it; None if it is not below the data folder."""
    folder, absolute = data_folder(), Path(os.path.abspath(os.path.expanduser(path)))
    if not absolute.is_relative_to(folder) or absolute == folder:
        return None
    name, *rest = absolute.relative_to(folder).parts
    data_set = all_sets().get(name)
    return (data_set, "/".join(rest)) if data_set else None


def missing(path: str | Path) -> str:
    """The error for a missing file or folder of a known data set, with its remedy; "" for any other path."""
    found = owner(path)
    if not found or Path(path).exists() or glob.has_magic(str(path)):  # the reader reports a pattern without files
        return ""
    data_set, inner = found
    folder, inside = data_folder(), (PurePosixPath(file.path) for file in data_set.files)
    what = f"data:{data_set.name}{'/' * bool(inner)}{inner} is not in {relative_path(folder)}/"
    if not any(file.is_relative_to(inner) for file in inside) and data_set.files:
        near = nearest(inner, [file.path for file in data_set.files])
        return f"{what}, and {data_set.name} has no such file: did you mean data:{data_set.name}/{near}?"
    remedy = data_set.note if data_set.note else f"run s2sjax data get {data_set.name}"
    return f"{what}: {remedy}, or set S2SJAX_DATA to the folder that has it"


# ----------------------------------------------------------------------------------- reading


@functools.cache
def _built_in() -> dict[str, DataSet]:
    text = resources.files("s2sjax.datasets").joinpath("sets.json").read_text(encoding="utf-8")
    return parse(json.loads(text), "s2sjax")


def read_table(path: Path) -> dict[str, DataSet]:
    """The data sets of a JSON file."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(
            f"{relative_path(path)} is not a table of data sets ({error}): correct it, see docs/data.md"
        ) from None
    return parse(table, relative_path(path))


def parse(table: Any, origin: str) -> dict[str, DataSet]:
    """The data sets of a table. origin: where it comes from, for errors."""
    if not isinstance(table, dict):
        raise UserError(f"{origin} must map names to data sets: see docs/data.md")
    return {name: _Parser(f"{origin}, {name}").data_set(name, entry) for name, entry in table.items()}


class _Parser:
    """Reads one data set of a table."""

    def __init__(self, where: str):
        self.where = where
        self.bases: tuple[str, ...] = ()
        self.named: dict[str, Source] = {}
        self.is_local = False
        """whether the set has no addresses, but a note that says so"""

    def data_set(self, name: str, entry: Any) -> DataSet:
        self.fields("the data set", entry, "about licence citation note base sources files")
        if not name or "/" in name or name.startswith("."):
            raise UserError(f"{self.where}: the name of a data set is the name of its folder: choose another")
        for required in ("about", "licence", "citation"):
            if not entry.get(required):
                raise UserError(f"{self.where}: {required!r} is missing: add it")
        self.bases, self.is_local = _several(entry.get("base", "")), bool(entry.get("note"))
        for key, source in entry.get("sources", {}).items():
            self.named[key] = self.source(source)
        files = tuple(self.file(path, each) for path, each in entry.get("files", {}).items())
        return DataSet(name, entry["about"], entry["licence"], entry["citation"], files, entry.get("note", ""))

    def file(self, path: str, entry: Any) -> File:
        self.fields(path, entry, "url from convert sha256 content extra size git_blob")
        inner = PurePosixPath(path)
        if not inner.parts or inner.is_absolute() or ".." in inner.parts or inner.parts[:1] == ("SOURCE.json",):
            raise UserError(f"{self.where}: the path {path} must be below the folder of the data set: change it")
        function, *args = _several(entry.get("convert", ""))
        self.converter(path, function)
        sha256, content = (entry.get(key, "").lower() for key in ("sha256", "content"))
        sources: tuple[Source, ...] = ()
        if "from" in entry:
            sources = tuple(self.source_named(key, path) for key in _several(entry["from"]))
        elif "url" in entry or not self.is_local:
            sources = (self.source({key: entry[key] for key in ("url", "size", "git_blob") if key in entry}),)
        if not function and (len(sources) > 1 or any(source.members for source in sources)):
            raise UserError(
                f"{self.where}, {path} is made from several files: name the function that does it as convert"
            )
        return File(path, sources, function, tuple(args), sha256, content, bool(entry.get("extra")))

    def converter(self, path: str, function: str) -> None:
        if function and function not in convert.CONVERTERS:
            near = nearest(function, convert.CONVERTERS)
            raise UserError(f"{self.where}, {path}: there is no converter {function!r}: did you mean {near!r}?")

    def source_named(self, key: str, path: str) -> Source:
        if key not in self.named:
            near = f": did you mean {nearest(key, self.named)!r}?" if self.named else ""
            raise UserError(f"{self.where}, {path}: there is no source {key!r}{near}")
        return self.named[key]

    def source(self, entry: Any) -> Source:
        hashes = entry.get("sha256") if isinstance(entry, dict) else None  # of a source there may be several
        plain = entry | {"sha256": ""} if isinstance(hashes, list) and all(map(_is_text, hashes)) else entry
        self.fields("a source", plain, "url size sha256 content git_blob members names each")
        urls = _several(entry.get("url", ""))
        addresses = tuple(base + url if "://" not in url else url for url in urls for base in self.bases)
        addresses = tuple(dict.fromkeys(addresses))
        for address in addresses or ("",):
            if not is_address(address):
                raise UserError(f"{self.where}: {address!r} is no address: write https://..., or give a base")
        names = tuple(self.source_named(key, "names") for key in _several(entry.get("names", [])))
        self.converter("each", entry.get("each", ""))
        simple = {key: entry[key] for key in ("size", "members", "each") if key in entry}
        simple |= {key: entry[key].lower() for key in ("content", "git_blob") if key in entry}
        sha256 = tuple(each.lower() for each in _several(entry.get("sha256", "")) if each)
        return Source(addresses, sha256=sha256, names=names, **simple)

    def fields(self, what: str, entry: Any, allowed: str) -> None:
        names = allowed.split()
        for name in entry if isinstance(entry, dict) else [entry]:
            if not isinstance(entry, dict) or name not in names:
                raise UserError(f"{self.where}: {what} has no field {name!r}: the fields are {', '.join(names)}")
            kind = _KINDS.get(name, "a text")
            if not _FORMS[kind](entry[name]):
                raise UserError(f"{self.where}: {name!r} of {what} is {entry[name]!r:.60}: it must be {kind}")


_is_text = lambda value: isinstance(value, str)
_is_list = lambda value: isinstance(value, list) and len(value) > 0
_FORMS: dict[str, Callable[[Any], bool]] = {
    "a text": _is_text,
    "a text or a list of texts": lambda value: _is_text(value) or (_is_list(value) and all(map(_is_text, value))),
    "the name of a function, or a list of it and its arguments": lambda value: (
        _is_text(value)
        or (_is_list(value) and _is_text(value[0]) and all(isinstance(each, str | int | float) for each in value))
    ),
    "a whole number": lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
    "true or false": lambda value: isinstance(value, bool),
    "an object of names and entries": lambda value: isinstance(value, dict),
}
_KINDS = {"size": "a whole number", "extra": "true or false"}
_KINDS |= dict.fromkeys(("files", "sources"), "an object of names and entries")
_KINDS |= dict.fromkeys(("url", "base", "from", "names"), "a text or a list of texts")
_KINDS["convert"] = "the name of a function, or a list of it and its arguments"


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def size_of(files: Sequence[File]) -> int:
    """Number of bytes to download for some files."""
    return sum(source.size for source in sources_of(files))
