"""A strict parser of HTTP/1.1 requests, which refuses ambiguous ones.

If a proxy and this server split a request differently, another request can be smuggled past the proxy. Therefore lines
must end with CR LF, headers must not continue on a second line, the colon must directly follow the name, the headers
that matter must appear once, and a body needs a Content-Length and a POST.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from s2sjax.version import __version__

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
ONCE = (
    "host", "content-length", "content-type", "transfer-encoding", "connection", "expect", "origin", "sec-fetch-site",
    "sec-fetch-mode",
)  # fmt: skip
"""headers that are read, each of which may appear once"""
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
    """Answers a request with an error, and closes the connection, because the body may be unread."""

    def __init__(self, status: int, reason: str, **headers: str):
        super().__init__(reason)
        self.status, self.headers = status, headers


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    """headers of `ONCE`, by lower-case name"""
    stays: bool
    """whether the connection stays open after the request"""


def parse(head: bytes) -> Request:
    """Parses the request line and the headers, including the empty line after them."""
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
            raise Refused(400, "a header is invalid: send each as one line, Name: value, that ends with CR LF")
        name, value = found[1].decode("ascii").lower(), found[2].decode("latin-1")
        if name in headers:
            raise Refused(400, f"the header {name} appears twice: send it once")
        if name in ONCE:
            headers[name] = value
    stays = minor == "1" and headers.get("connection", "").lower() != "close"
    return Request(method, path.partition("?")[0], headers, stays)


def body_length(request: Request, most: int) -> int:
    """The length of the body, at most `most`; 0 for a request without a body."""
    headers = request.headers
    if "transfer-encoding" in headers:
        raise Refused(411, "Transfer-Encoding is not supported: send the header Content-Length instead")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        raise Refused(400, "Content-Length is not a number")
    if request.method != "POST":
        if length.strip("0"):
            raise Refused(400, f"a {request.method} request must not have a body: leave it out")
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
    """The head and the content in one piece: Nagle's algorithm would delay a second one."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in (SENT | headers | {"Content-Length": str(len(content))}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content
