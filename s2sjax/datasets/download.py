"""Downloads one file, from the first of several addresses that has it.

A download is written to PATH.partial, and PATH.partial.json says which address it is from. When the connection breaks
or stalls, it is continued after a while with a Range request, in this process or the next one. PATH exists only if its
hash is right. Proxies are those of the environment: http_proxy, https_proxy, no_proxy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from s2sjax.errors import UserError
from s2sjax.files import relative_path, replace_file
from s2sjax.version import __version__

MIRROR = "S2SJAX_DATA_MIRROR"
CHUNK = 1 << 16
_SAFE = "%/:=&?~#+!$,;'@()*[]"
TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)
"""status codes of servers that may answer later"""
LONGEST_WAIT = 60.0
"""maximal number of seconds between two tries, whatever the server asks for"""


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long to wait, and how often to try again."""

    timeout: float = 30.0
    """seconds without any bytes after which a connection counts as stalled"""
    tries: int = 5
    """tries at one address without any new bytes"""
    pause: float = 1.0
    """seconds before the second try; doubled before each further one"""
    sleep: Callable[[float], None] = time.sleep


PATIENCE = Patience()


class _TryAgain(Exception):
    """A failure that may pass.

    after: seconds to wait, as the server asks for. connected: whether there is a server. busy: whether it says so.
    """

    def __init__(self, reason: str, after: float = 0.0, connected: bool = True, busy: bool = False):
        super().__init__(reason)
        self.after, self.connected, self.busy = after, connected, busy


class _Refused(Exception):
    """A failure that will not pass: the next address is tried."""


class _Unreachable(_Refused):
    """The server cannot be reached, or is busy all the time."""


class _Restart(Exception):
    """What was downloaded so far does not fit to the rest: it is deleted, and the download starts again."""


def download(
    addresses: Sequence[str],
    path: Path,
    check: Callable[[Path], str],
    advance: Callable[[int], None] = lambda count: None,
    patience: Patience = PATIENCE,
    unreachable: set[str] | None = None,
    is_verified: bool = True,
) -> str:
    """Downloads a file to `path`, and returns the address that it came from.

    check: returns what is wrong with a file, or "". advance: called with the number of new bytes, which is negative if
    the download starts again. unreachable: hosts that are not tried; those that cannot be reached are added to it.
    is_verified: whether `check` would find that two parts are not of one version of the file.
    """
    unreachable = set() if unreachable is None else unreachable
    partial = _Partial(path, advance, is_verified)
    failures = []
    begun = partial.origin().get("address")
    for address in sorted(mirrored(addresses), key=lambda each: each != begun):
        host = urlsplit(address).netloc or address
        try:
            if host in unreachable:
                raise _Refused("cannot be reached")
            _download_from(address, partial, check, patience)
        except _Refused as error:
            failures.append(f"{host}: {error}")
            if isinstance(error, _Unreachable):
                unreachable.add(host)
            continue
        with writing(path):
            partial.finish()
        return address
    raise UserError(
        f"cannot download {addresses[0].rpartition('/')[2]} ({'; '.join(dict.fromkeys(failures))}): check the network "
        f"and run the same command again, or name a mirror in {MIRROR}"
    )


def mirrored(addresses: Sequence[str]) -> list[str]:
    """The addresses to try: first MIRROR/host/path for each, if $S2SJAX_DATA_MIRROR is set."""
    base = os.environ.get(MIRROR, "").rstrip("/")
    if base and not is_address(base):
        raise UserError(f"{MIRROR} is {base!r}, which is no address: write https://HOST/PATH, or file:///FOLDER")
    parts = [urlsplit(address) for address in addresses if base]
    return [*(f"{base}/{part.netloc}{part.path}" for part in parts), *addresses]


def is_address(text: str) -> bool:
    """Whether a text is an address that can be downloaded from: https, http or file."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises for a wrong one
    except ValueError:
        return False
    return parts.scheme == "file" or (parts.scheme in ("https", "http") and bool(parts.hostname))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError, such as that of a full disk or a read-only folder, into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {relative_path(path)} ({error.strerror or error}): free some space or fix it, or set "
            "S2SJAX_DATA to another folder"
        ) from error


class _Partial:
    """The part of a file that was downloaded so far, and where it is from."""

    def __init__(self, path: Path, advance: Callable[[int], None], is_verified: bool):
        self.path, self.target, self.advance = path.with_name(f"{path.name}.partial"), path, advance
        self.is_verified = is_verified
        self.note = path.with_name(f"{path.name}.partial.json")
        self.counted = 0

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def origin(self) -> dict[str, Any]:
        """The address, the validator (ETag or date) and the length of the whole file; empty if they are not known."""
        try:
            found = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and isinstance(found.get("validator", ""), str) else {}

    def resumable(self, address: str) -> int:
        """The number of bytes that are there from this address, and that the rest can be appended to.

        Without a validator, only the hash of the file can tell whether the rest is of the same version.
        """
        origin = self.origin()
        is_safe = self.is_verified or bool(origin.get("validator"))
        return self.size() if origin.get("address") == address and is_safe else 0

    def begin(self, address: str, validator: str, length: int | None) -> None:
        """Starts a new file."""
        with writing(self.target):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
            origin = {"address": address, "validator": validator, "length": length}
            replace_file(self.note, json.dumps(origin))
        self.count()

    def append(self, chunks: Iterator[bytes]) -> None:
        with contextlib.ExitStack() as opened:
            with writing(self.target):  # without a buffer: all that has arrived is kept when the process ends
                file = opened.enter_context(open(self.path, "ab", buffering=0))
            for chunk in chunks:
                with writing(self.target):
                    left = memoryview(chunk)
                    while left:
                        left = left[file.write(left) :]
                self.count()

    def count(self) -> None:
        """Reports the bytes that are there."""
        size = self.size()
        self.advance(size - self.counted)
        self.counted = size

    def delete(self) -> None:
        with writing(self.target):
            self.path.unlink(missing_ok=True)
            self.note.unlink(missing_ok=True)
        self.count()

    def finish(self) -> None:
        os.replace(self.path, self.target)
        self.note.unlink(missing_ok=True)


def _download_from(address: str, partial: _Partial, check: Callable[[Path], str], patience: Patience) -> None:
    """Downloads from one address. Raises _Refused if that is impossible."""
    failed, most, restarts, reached = 0, 0, 0, False
    while True:
        resumed = partial.resumable(address)  # the part of another address is kept until this one answers
        try:
            if not resumed or resumed != partial.origin().get("length"):
                _transfer(address, partial, patience.timeout)
            partial.count()
            wrong = check(partial.path)
            if not wrong:
                return
            partial.delete()
            if not resumed:
                raise _Refused(wrong)
            raise _Restart(wrong)  # the file may have changed between its two parts
        except _Restart as error:
            if resumed:  # else it is of another address, or nothing
                partial.delete()
            most, restarts = 0, restarts + 1
            if restarts > 2:
                raise _Refused(str(error)) from None
        except _TryAgain as error:
            size = partial.resumable(address)
            failed = 1 if size > most else failed + 1
            most, reached = max(size, most), reached or error.connected
            if not reached and failed >= 2:
                raise _Unreachable(str(error)) from None
            if failed >= patience.tries:
                busy = partial.resumable(address) == 0 and error.busy  # and so it will be for other files
                raise (_Unreachable if busy else _Refused)(f"{error}, {failed} times") from None
            patience.sleep(min(max(patience.pause * 2 ** (failed - 1), error.after), LONGEST_WAIT))


def _transfer(address: str, partial: _Partial, timeout: float) -> None:
    """Appends the rest of a file to what is there of it."""
    start = partial.resumable(address)
    partial.count()
    headers = {"User-Agent": f"s2sjax/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if validator := partial.origin().get("validator"):
            headers["If-Range"] = validator
    parts = urlsplit(address)
    path, query = quote(parts.path, safe=_SAFE), quote(parts.query, safe=_SAFE)
    quoted = parts._replace(path=path, query=query).geturl()
    with _opened(urllib.request.Request(quoted, headers=headers), timeout) as answer:
        total = _total(answer, start)
        if answer.status != 206 or not start:  # a server that ignores Range sends the whole file
            partial.begin(address, _validator(answer), total)
        partial.append(_chunks(answer))
        got = partial.size()
        if total is not None and got < total:
            raise _TryAgain(f"the connection broke off after {got:,} of {total:,} bytes")


def _total(answer: Any, start: int) -> int | None:
    """The number of bytes of the whole file, if the server says it."""
    if answer.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if not found or int(found[1]) != start:
            raise _Restart(f"it answers with {answer.headers.get('Content-Range')!r} to bytes={start}-")
        return None if found[2] == "*" else int(found[2])
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _validator(answer: Any) -> str:
    """What names this version of the file in a later If-Range: a strong ETag, or the date of the last change."""
    etag = answer.headers.get("ETag", "")
    return etag if etag.startswith('"') else answer.headers.get("Last-Modified", "")


@contextlib.contextmanager
def _opened(request: urllib.request.Request, timeout: float) -> Iterator[Any]:
    """Opens an address, and sorts its errors into those that may pass and others."""
    try:
        opener = urllib.request.build_opener()  # a new one, because the proxies of the environment may change
        with opener.open(request, timeout=timeout) as answer:
            yield answer
    except urllib.error.HTTPError as error:
        reason = f"{error.code} {' '.join(str(error.reason).split())}"
        if error.code == 416:
            raise _Restart(reason) from None
        if error.code in TRY_AGAIN:
            after = error.headers.get("Retry-After", "")
            raise _TryAgain(reason, float(after) if after.isdecimal() else 0.0, busy=error.code in (429, 503)) from None
        raise _Refused(reason) from None
    except TimeoutError:
        raise _TryAgain(f"no answer for {timeout:g} s") from None
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or str(error.reason)
        if isinstance(error.reason, TimeoutError):
            reason = f"no answer for {timeout:g} s"
        if isinstance(error.reason, FileNotFoundError):
            raise _Refused(reason) from None
        raise _TryAgain(reason, connected=False) from None
    except (http.client.HTTPException, OSError) as error:
        raise _TryAgain(f"the connection broke ({error})") from None
    except ValueError as error:  # no address
        raise _Refused(str(error)) from None


def _chunks(answer: Any) -> Iterator[bytes]:
    while chunk := answer.read1(CHUNK) if hasattr(answer, "read1") else answer.read(CHUNK):
        yield chunk
