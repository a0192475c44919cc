"""HTTP: which requests are answered at all, and how.

A page of another site must not be able to use a server on the user's machine. So a request is refused if its Host is a
name that is not ours (a site may let its own name lead here), or if the browser says that another site sent it. The
size of a body is checked before it is read. Errors are JSON: {"error": "..."}.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from s2sjax import __version__
from s2sjax.errors import UserError
from s2sjax.evaluations import finite
from s2sjax.report import page
from s2sjax.serve.api import Service
from s2sjax.serve.engine import Busy, Stopped

MOST_BYTES = 1_000_000
"""of a body"""
MOST_CONNECTIONS = 64
PATIENCE = 30
"""seconds that a client may take to send its request"""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


Headers = Mapping[str, str] | Message


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, reason: str, **headers: str):
        super().__init__(reason)
        self.status, self.headers = status, headers


class Route(NamedTuple):
    method: str
    answer: Callable[[Any], Any]


def check_sender(headers: Headers, names: set[str]) -> None:
    """Refuses requests from pages of other sites. names: of this server, besides addresses."""
    host = headers.get("Host", "")
    if not is_ours(host, names):
        shown = host[:60]
        raise Refused(403, f"Host is {shown!r}: use an address, or one of {', '.join(sorted(names))}")
    origin = headers.get("Origin")
    if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
        raise Refused(403, "the request comes from a page of another site")
    site, mode = headers.get("Sec-Fetch-Site", "none"), headers.get("Sec-Fetch-Mode", "")
    if site not in ("none", "same-origin") and mode != "navigate":
        raise Refused(403, "the request comes from a page of another site")


def is_ours(host: str, names: set[str]) -> bool:
    """Whether a Host header names this server: an address, which no other site can own, or one of its names."""
    name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return name.lower().removesuffix(".") in names


def body_length(headers: Headers) -> int:
    """Of a body that may be read."""
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the body must be JSON: send the header Content-Type: application/json")
    if "Transfer-Encoding" in headers or "Content-Length" not in headers:
        raise Refused(411, "the length of the body is missing: send the header Content-Length")
    length = headers["Content-Length"].strip()
    if not (length.isascii() and length.isdecimal()):
        raise Refused(400, "Content-Length is not a number")
    if len(length) > 12 or int(length) > MOST_BYTES:
        raise Refused(413, f"the body is too large: at most {MOST_BYTES:,} bytes in one request")
    return int(length)


class Handler(BaseHTTPRequestHandler):
    protocol_version = default_request_version = "HTTP/1.1"
    server_version, sys_version = f"s2sjax/{__version__}", ""
    timeout = PATIENCE
    server: Server

    def handle_expect_100(self) -> bool:
        """A client that asks before it sends a large body."""
        try:
            self._route()
            body_length(self.headers)
        except Refused as refused:
            self._refuse(refused)
            return False
        return super().handle_expect_100()

    def _answer(self) -> None:
        try:
            route = self._route()
            request = self._body() if self.command == "POST" else None
            try:
                self._send(200, route.answer(request))
            except UserError as error:
                raise Refused(400, str(error)) from None
            except Busy:
                raise Refused(503, "too many lines are waiting: try again later", **{"Retry-After": "1"}) from None
            except Stopped:
                raise Refused(503, "the server is being stopped") from None
        except Refused as refused:
            self._refuse(refused)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception:
            traceback.print_exc(file=sys.stderr)
            self._refuse(Refused(500, "the server made a mistake: its output says which"))

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = do_PATCH = _answer

    def _route(self) -> Route:
        check_sender(self.headers, self.server.names)
        routes, path = self.server.routes, self.path.partition("?")[0]
        if path not in routes:
            raise Refused(404, f"there is nothing at {path[:60]}: there is {', '.join(routes)}")
        route = routes[path]
        if self.command != route.method and (self.command, route.method) != ("HEAD", "GET"):
            raise Refused(405, f"{path} answers {route.method} only", Allow=route.method)
        return route

    def _body(self) -> Any:
        length = body_length(self.headers)
        body = self.rfile.read(length)
        if len(body) < length:
            raise Refused(400, "the body ends before its Content-Length")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not valid JSON") from None

    def _refuse(self, refused: Refused) -> None:
        self.close_connection = True  # the body may still be unread
        with contextlib.suppress(ConnectionError, TimeoutError):
            self._send(refused.status, {"error": str(refused)}, Connection="close", **refused.headers)

    def _send(self, status: int, answer: Any, **headers: str) -> None:
        kind, content = "application/json", answer
        if isinstance(answer, bytes):
            kind, headers = "text/html; charset=utf-8", headers | {"Content-Security-Policy": self.server.policy}
        else:
            content = (json.dumps(finite(answer)) + "\n").encode()
        self.send_response(status)
        for name, value in (HEADERS | {"Content-Type": kind, "Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses, such as a request that is not HTTP: as JSON, too."""
        self._refuse(Refused(int(code), message or "the request cannot be understood"))

    def log_message(self, *_: Any) -> None:
        """Nothing: the terminal is for what matters."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, service: Service, host: str, port: int):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.service = service
        self.names = {"localhost", host.lower(), socket.gethostname().lower()}
        self.policy = page.policy(page.LIVE) + "; frame-ancestors 'none'"
        values = service.about() | {"why": service.why, "explains": service.translates, "version": __version__}
        document = page.render(f"{service.run.folder}: s2sjax", finite(values), page.LIVE).encode()
        self.routes = {
            "/": Route("GET", lambda _: document),
            "/health": Route("GET", lambda _: service.health()),
            "/decode": Route("POST", service.decode),
            "/explain": Route("POST", service.explain),
        }
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Without the look-up of the host's name, which may take long."""
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no error."""
        if not isinstance(sys.exception(), OSError):
            traceback.print_exc(file=sys.stderr)

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}/"
