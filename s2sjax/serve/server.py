"""The HTTP server: checks and answers requests.

A page of another site must not be able to use a server on the user's machine. Therefore a request is refused if its
Host is not a name of this server (against DNS rebinding), or if the browser says that another site sent it. The size
of a body is checked before it is read. Errors are JSON: {"error": "..."}.

One thread reads and writes all connections (asyncio). A client has `PATIENCE` seconds to send a whole request; when
there are too many connections, the one that has been slow or idle for longest is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from s2sjax.errors import UserError
from s2sjax.report import page
from s2sjax.runs.evaluations import finite
from s2sjax.serve import http
from s2sjax.serve.api import Service, Warming
from s2sjax.serve.engine import Busy, Stopped
from s2sjax.serve.http import Refused
from s2sjax.version import __version__

MOST_CONNECTIONS = 256
MOST_READING = 100_000_000
"""maximum total bytes of the bodies that are being read"""
MOST_HEAD = 16_384
"""maximum bytes of the request line and the headers"""
IDLE = 60
"""seconds that a connection may be idle"""
PATIENCE = 30
"""seconds that a client may take to send a request after its first byte, or to read an answer"""


class Route(NamedTuple):
    method: str
    answer: Callable[[Any], Any]
    """function from the JSON of the request to a value, or to a future of one"""


def check_sender(headers: Mapping[str, str], names: set[str]) -> None:
    """Refuses requests from pages of other sites. names: host names of this server."""
    host = headers.get("host", "")
    if not is_ours(host, names):
        shown = host[:60]
        raise Refused(403, f"Host is {shown!r}: use an address, or one of {', '.join(sorted(names))}")
    ours = (f"http://{host}".lower(), f"https://{host}".lower())
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
    if headers.get("origin", ours[0]).lower() not in ours or (
        site not in ("none", "same-origin") and mode != "navigate"
    ):
        raise Refused(403, "the request comes from a page of another site")


def is_ours(host: str, names: set[str]) -> bool:
    """Whether a Host header is an IP address, which no other site can own, or one of the names of this server."""
    name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return name.lower().removesuffix(".") in names


class Server:
    """Listens from its creation on, and answers while `serve_forever` runs in some thread; `shutdown` ends it."""

    def __init__(self, service: Service, host: str, port: int):
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
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
        self.server_name, self.server_port = self._socket.getsockname()[:2]
        self._open: set[asyncio.Task[None]] = set()
        self._slow: dict[asyncio.Task[None], int] = {}
        """connections that wait for their clients, longest wait first, and the bytes that they still read"""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop, self._ended, self._changed = False, threading.Event(), threading.Lock()

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}/"

    def serve_forever(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._ended.set()

    def shutdown(self) -> None:
        """Ends `serve_forever`, which runs in another thread, and waits until it has returned."""
        with self._changed:
            self._stop = True
            if self._loop is None:
                return
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._ended.wait()

    def server_close(self) -> None:
        self._socket.close()

    async def _serve(self) -> None:
        with self._changed:
            if self._stop:
                return
            self._stopped, self._loop = asyncio.Event(), asyncio.get_running_loop()
        server = await asyncio.start_server(self._connected, sock=self._socket.dup(), limit=MOST_HEAD)
        await self._stopped.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        with self._changed:
            self._loop = None

    # ---------------------------------------------------------------------------------- a connection

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        writer.transport.set_write_buffer_limits(high=0)  # an answer is sent when `drain` returns
        try:
            if len(self._open) >= MOST_CONNECTIONS and not self._close_slowest():
                writer.write(_error(Refused(503, "there are too many connections: try again later")))
                return await self._sent(writer)
            self._open.add(task)
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has disconnected or is too slow, or the server is being stopped
        except Exception:
            traceback.print_exc(file=sys.stderr)
        finally:
            self._open.discard(task)
            writer.transport.abort()

    def _close_slowest(self, reads: bool = False) -> bool:
        """Closes the connection that has waited longest for its client. Returns False if there is none.

        reads: consider only connections that are reading a body.
        """
        task = next((task for task, length in self._slow.items() if length or not reads), None)
        if task is None:
            return False
        del self._slow[task]
        self._open.discard(task)
        task.cancel()
        return True

    @contextlib.contextmanager
    def _waits(self, reading: int = 0) -> Iterator[None]:
        """Marks the connection as waiting for its client: it may be closed for others. reading: bytes to come."""
        task = asyncio.current_task()
        assert task is not None, "asyncio runs every connection as a task"
        self._slow[task] = reading
        try:
            yield
        finally:
            self._slow.pop(task, None)

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request. Returns whether another may follow on the connection."""
        try:
            request, route, content = await self._read(reader, writer)
            found = await self._answer(route, http.parse_body(content) if request.method == "POST" else None)
        except Refused as refused:
            writer.write(_error(refused))
            await self._sent(writer)
            await self._discard(reader, writer)
            return False
        writer.write(found[: found.index(b"\r\n\r\n") + 4] if request.method == "HEAD" else found)
        await self._sent(writer)
        return request.stays

    async def _sent(self, writer: asyncio.StreamWriter) -> None:
        with self._waits():
            async with asyncio.timeout(PATIENCE):
                await writer.drain()

    async def _discard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Discards what the client still sends for a second: if the connection broke, it could not read the error."""
        with self._waits(), contextlib.suppress(OSError):  # a time-out, or the client has disconnected
            writer.write_eof()
            async with asyncio.timeout(1):
                while await reader.read(65536):
                    pass

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[http.Request, Route, bytes]:
        with self._waits():
            async with asyncio.timeout(IDLE):
                first = await reader.readexactly(1)
        async with asyncio.timeout(PATIENCE):
            with self._waits():
                try:
                    head = first + await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    raise Refused(431, f"the headers are too large: at most {MOST_HEAD:,} bytes") from None
            request = http.parse(head)
            route = self._route(request)
            length = http.body_length(request, self.service.most_bytes)
            while length + sum(self._slow.values()) > MOST_READING and self._close_slowest(reads=True):
                pass
            with self._waits(length):
                if length and request.headers.get("expect", "").lower() == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                try:
                    return request, route, await reader.readexactly(length)
                except asyncio.IncompleteReadError:
                    raise Refused(400, "the body ends before its Content-Length") from None

    # -------------------------------------------------------------------------------------- answers

    def _route(self, request: http.Request) -> Route:
        check_sender(request.headers, self.names)
        if request.path not in self.routes:
            raise Refused(404, f"there is nothing at {request.path[:60]}: use one of {', '.join(self.routes)}")
        route = self.routes[request.path]
        if request.method != route.method and (request.method, route.method) != ("HEAD", "GET"):
            raise Refused(405, f"{request.path} only accepts {route.method}", Allow=route.method)
        return route

    async def _answer(self, route: Route, asked: Any) -> bytes:
        """The answer to a request with this JSON body, ready to be sent."""
        later = {"Retry-After": "1"}
        try:
            found = route.answer(asked)
            if isinstance(found, Future):
                found = await asyncio.wrap_future(found)
        except UserError as error:
            raise Refused(400, str(error)) from None
        except Warming as warming:
            raise Refused(503, str(warming), **later) from None
        except Busy:
            raise Refused(503, "too many lines are waiting: try again later", **later) from None
        except Stopped:
            raise Refused(503, "the server is being stopped") from None
        except Exception:
            traceback.print_exc(file=sys.stderr)
            raise Refused(500, "internal error: see the output of the server") from None
        if isinstance(found, bytes):
            kind = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": self.policy}
            return http.answer(200, found, **kind)
        return _json(503 if found.get("status") == "warming" else 200, found)


def _json(status: int, found: Any, **headers: str) -> bytes:
    content = (json.dumps(finite(found)) + "\n").encode()
    return http.answer(status, content, **{"Content-Type": "application/json"}, **headers)


def _error(refused: Refused) -> bytes:
    return _json(refused.status, {"error": str(refused)}, Connection="close", **refused.headers)
