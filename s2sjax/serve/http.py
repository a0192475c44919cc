"""Requests of HTTP/1.1, read strictly: what two programs could read in two ways is refused.

A request that a proxy and this server divide differently can smuggle another one past the proxy. So lines end with CR
LF, a header is not continued on a second line, its name is followed by the colon at once, the headers that matter
come once, and a body has a Content-Length and belongs to a POST.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from s2sjax import __version__

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
ONCE = (
    "host", "content-length", "content-type", "transfer-encoding", "connection", "expect", "origin", "sec-fetch-site",
    "sec-fetch-mode",
)  # fmt: skip
"""headers that are read, and may come once"""
_REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
SENT = {
    "Server": f"s2sjax/{__version__}",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""headers of every answer"""


class Refused(Exception):
    """A request that is answered with an error, after which the connection is closed: its body may be unread."""

    def __init__(self, status: int, reason: str, **headers: str):
        super().__init__(reason)
        self.status, self.headers = status, headers


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    """those of `ONCE`, by their names in lower case"""
    stays: bool
    """whether the connection stays open after it"""


def parse(head: bytes) -> Request:
    """The request line and the headers, up to and with the empty line."""
    first, *lines = head[:-4].split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise Refused(400, "Bad request line: send METHOD /path HTTP/1.1")
    method, path, minor = (part.decode("ascii") for part in line.groups())
    if method not in METHODS:
        raise Refused(501, f"Unsupported method: use {', '.join(METHODS[:3])}")
    headers: dict[str, str] = {}
    for each in lines:
        found = _HEADER.fullmatch(each)
        if found is None:
            raise Refused(400, "a header cannot be understood: send Name: value, CR and LF, each on one line")
        name, value = found[1].decode("ascii").lower(), found[2].decode("latin-1")
        if name in headers:
            raise Refused(400, f"the header {name} comes twice: send it once")
        if name in ONCE:
            headers[name] = value
    stays = minor == "1" and headers.get("connection", "").lower() != "close"
    return Request(method, path.partition("?")[0], headers, stays)


def body_length(request: Request, most: int) -> int:
    """Bytes of a body that may be read; 0 for a request that has none."""
    headers = request.headers
    if "transfer-encoding" in headers:
        raise Refused(411, "the length of the body is missing: send the header Content-Length, no Transfer-Encoding")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        raise Refused(400, "Content-Length is not a number")
    if request.method != "POST":
        if length.strip("0"):
            raise Refused(400, f"a {request.method} has no body: leave it out")
        return 0
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the body must be JSON: send the header Content-Type: application/json")
    if "content-length" not in headers:
        raise Refused(411, "the length of the body is missing: send the header Content-Length")
    if len(length) > 12 or int(length) > most:
        raise Refused(413, f"the body is too large: at most {most:,} bytes in one request")
    return int(length)


def parse_body(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not valid JSON") from None


def answer(status: int, content: bytes, **headers: str) -> bytes:
    """The head and the content, to be sent in one piece: two pieces would wait for each other (Nagle)."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in (SENT | headers | {"Content-Length": str(len(content))}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content
