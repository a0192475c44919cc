"""Hashes of files and of their contents."""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob(path: Path) -> str:
    """The id that Git gives to a file: the SHA-1 of "blob SIZE", a zero byte, and the content."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def listing(members: Mapping[str, str]) -> str:
    """The SHA-256 of the sorted lines "NAME<tab>SHA-256" of the members of an archive."""
    lines = "".join(f"{name}\t{digest}\n" for name, digest in sorted(members.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def content(path: Path) -> str:
    """A hash that does not depend on the compression: of the unpacked text of a .gz file, or of the listing of a zip.

    Returns "" if the file cannot be unpacked.
    """
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                return _unpacked(file)
        with zipfile.ZipFile(path) as archive:
            return listing({name: _sha256_of(archive.read(name)) for name in archive.namelist()})
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile):
        return ""


def _unpacked(file: BinaryIO) -> str:
    file.seek(0)
    with gzip.open(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()  # type: ignore[arg-type]


def _sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def members(path: Path, pattern: str, names: Collection[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Yields the path and the content of each member of a tar archive that matches a pattern.

    The first folder of each path is dropped, because GitHub names it after the repository and the commit.
    names: only members with these last names; empty for all.
    """
    with tarfile.open(path, "r:*") as archive:
        for member in archive:
            inner = member.name.partition("/")[2]
            if not member.isfile() or not fnmatch.fnmatchcase(inner, pattern):
                continue
            if not names or inner.rpartition("/")[2] in names:
                opened = archive.extractfile(member)
                yield inner, opened.read() if opened else b""


def members_listing(path: Path, pattern: str, names: Collection[str] = ()) -> str:
    """The digest of the listing of some members of a tar archive."""
    return listing({inner: _sha256_of(data) for inner, data in members(path, pattern, names)})
