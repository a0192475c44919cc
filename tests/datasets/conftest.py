"""A web server that misbehaves on demand, in a thread of the test."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from s2sjax.datasets.download import Patience


class Host:
    """Serves `files`. The answers to a path are those of `script`, one after the other, then ordinary ones."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.script: dict[str, list] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.ended = threading.Event()
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                host.requests.append((self.path, dict(self.headers)))
                answers = host.script.get(self.path, [])
                (answers.pop(0) if answers else whole)(host, self, host.files.get(self.path))

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a client that has gone
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self):
        self.ended.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]


def send(handler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    headers = {"Content-Length": str(len(body))} | {name.replace("_", "-"): value for name, value in headers.items()}
    for name, value in headers.items():
        if value:
            handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def whole(host, handler, content):
    """An ordinary answer: a Range and an If-Range are respected."""
    if content is None:
        return send(handler, 404)
    etag = f'"{hashlib.md5(content).hexdigest()}"'
    wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    if not wanted or handler.headers.get("If-Range", etag) != etag:
        return send(handler, 200, content, ETag=etag)
    start = int(wanted[1])
    if start >= len(content):
        return send(handler, 416, Content_Range=f"bytes */{len(content)}")
    return send(
        handler, 206, content[start:], ETag=etag, Content_Range=f"bytes {start}-{len(content) - 1}/{len(content)}"
    )


def breaks_after(count: int, with_etag: bool = True):
    """Promises the whole file, and closes the connection after some bytes of the answer."""

    def answer(host, handler, content):
        wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        etag = f'"{hashlib.md5(content).hexdigest()}"' if with_etag else ""
        span = f"bytes {start}-{len(content) - 1}/{len(content)}" if wanted else ""
        length = str(len(content) - start)
        send(handler, 206 if wanted else 200, b"", Content_Length=length, ETag=etag, Content_Range=span)
        handler.wfile.write(content[start : start + count])
        handler.close_connection = True

    return answer


def stalls_after(count: int):
    """Sends some bytes, and then nothing until the test ends."""

    def answer(host, handler, content):
        send(handler, 200, b"", Content_Length=str(len(content)), ETag='"1"')
        handler.wfile.write(content[:count])
        handler.wfile.flush()
        host.ended.wait(60)

    return answer


def status(code: int, **headers: str):
    return lambda host, handler, content: send(handler, code, b"no", **headers)


def other_bytes(body: bytes):
    return lambda host, handler, content: send(handler, 200, body)


def ignores_range(host, handler, content):
    send(handler, 200, content)


def redirects_to(address: str):
    return lambda host, handler, content: send(handler, 302, Location=address)


@pytest.fixture
def host():
    host = Host()
    yield host
    host.close()


@pytest.fixture
def other_host():
    host = Host()
    yield host
    host.close()


@pytest.fixture
def waits() -> list[float]:
    """The pauses that downloads make, instead of sleeping."""
    return []


@pytest.fixture
def patience(waits) -> Patience:
    return Patience(timeout=60.0, tries=3, pause=1.0, sleep=waits.append)


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    for name in ("S2SJAX_DATA", "S2SJAX_OFFLINE", "S2SJAX_DATA_MIRROR", "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


class Answers:
    """The answers of a server, for tests, which cannot import this file."""

    whole, breaks_after = staticmethod(whole), staticmethod(breaks_after)
    stalls_after, status = staticmethod(stalls_after), staticmethod(status)
    other_bytes, redirects_to = staticmethod(other_bytes), staticmethod(redirects_to)
    ignores_range = staticmethod(ignores_range)


@pytest.fixture
def answers() -> type[Answers]:
    return Answers
