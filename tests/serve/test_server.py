"""Accepted requests, and the errors of refused ones. The model is replaced by a function that reverses lines."""

import contextlib
import http.client
import json
import socket
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from s2sjax.errors import UserError
from s2sjax.serve import api, server

JSON = {"Content-Type": "application/json"}


class Backwards:
    """The part of a service that the server needs."""

    run, why, translates, most_bytes = SimpleNamespace(folder=Path("runs/<b>x")), [], True, 1_000_000

    def about(self):
        return {"run": "runs/<b>x", "model": "Backwards", "task": "Test", "step": 1, "settings": "", "nbest": 1}

    def health(self):
        return {"status": "ok"}

    def decode(self, request):
        lines = api.fields(request, {"lines": list}, "lines")["lines"]
        if "break" in lines:
            raise ZeroDivisionError
        return {"outputs": [{"text": line[::-1], "score": float("-inf")} for line in lines]}

    def explain(self, request):
        raise UserError("there is nothing to explain")


@pytest.fixture(scope="module")
def running():
    found = server.Server(Backwards(), "127.0.0.1", 0)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def ask(running, method, path, body=None, **headers):
    """Sends a request. Returns (status, answer, headers)."""
    connection = http.client.HTTPConnection("127.0.0.1", running.server_port, timeout=10)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    page = answer.headers["Content-Type"].startswith("text/html")
    return answer.status, content.decode() if page or not content else json.loads(content), answer.headers


def test_lines_and_health_and_the_page(running):
    body = json.dumps({"lines": ["abc", "</script>"]})
    status, answer, headers = ask(running, "POST", "/decode", body, **JSON)
    assert (status, [each["text"] for each in answer["outputs"]]) == (200, ["cba", ">tpircs/<"])
    assert answer["outputs"][0]["score"] is None  # JSON has no infinity
    assert headers["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in headers
    assert ask(running, "GET", "/health")[:2] == (200, {"status": "ok"})
    status, page, headers = ask(running, "GET", "/?x=1")
    assert status == 200 and "<b>x" not in page and "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert ask(running, "HEAD", "/")[:2] == (200, "")


@pytest.mark.parametrize(
    ("status", "method", "path", "body", "headers", "reason"),
    [
        (404, "GET", "/nothing", None, {}, "there is nothing at /nothing"),
        (405, "GET", "/decode", None, {}, "only accepts POST"),
        (405, "DELETE", "/", None, {}, "only accepts GET"),
        (501, "TRACE", "/", None, {}, "Unsupported method"),
        (415, "POST", "/decode", "{}", {}, "application/json"),
        (415, "POST", "/decode", "{}", {"Content-Type": "text/plain"}, "application/json"),
        (400, "POST", "/decode", "{", JSON, "not valid JSON"),
        (400, "POST", "/decode", "[" * 200_000, JSON, "not valid JSON"),
        (400, "POST", "/decode", "[]", JSON, "not a JSON object"),
        (400, "POST", "/decode", '{"linez": []}', JSON, "there is no field 'linez'"),
        (400, "POST", "/decode", '{"lines": 3}', JSON, "lines is not a list"),
        (400, "POST", "/decode", "{}", JSON, "lines is missing"),
        (400, "POST", "/decode", "{}", JSON | {"Content-Length": "-1"}, "not a number"),
        (411, "POST", "/decode", None, JSON | {"Transfer-Encoding": "chunked"}, "Transfer-Encoding is not supported"),
        (413, "POST", "/decode", None, JSON | {"Content-Length": "1000001"}, "too large"),
        (413, "POST", "/decode", None, JSON | {"Content-Length": "9" * 5000}, "too large"),
        (400, "POST", "/explain", "{}", JSON, "nothing to explain"),
        (500, "POST", "/decode", '{"lines": ["break"]}', JSON, "internal error: see the output"),
        (403, "GET", "/health", None, {"Host": "evil.example"}, "Host is 'evil.example'"),
        (403, "GET", "/", None, {"Host": "127.0.0.1.evil.example:80"}, "Host is"),
        (403, "GET", "/health", None, {"Origin": "http://evil.example"}, "another site"),
        (403, "POST", "/decode", "{}", JSON | {"Origin": "null"}, "another site"),
        (403, "POST", "/decode", "{}", JSON | {"Origin": "http://127.0.0.1:1"}, "another site"),
        (403, "GET", "/health", None, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, "another site"),
    ],
)  # fmt: skip
def test_what_is_refused_gets_a_status_and_a_reason(running, capfd, status, method, path, body, headers, reason):
    found, answer, _ = ask(running, method, path, body, **headers)
    assert (found, list(answer)) == (status, ["error"]) and reason in answer["error"]
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (status == 500)


def test_pages_of_its_own_and_links_from_elsewhere_are_welcome(running):
    host = f"localhost:{running.server_port}"
    own = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert ask(running, "POST", "/decode", '{"lines": []}', **JSON, **own)[0] == 200
    assert ask(running, "GET", "/", **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 200


@pytest.mark.parametrize(("host", "ours"), [
    ("localhost", True), ("LOCALHOST.:8000", True), ("127.0.0.1:80", True), ("[::1]:8000", True), ("10.0.0.7", True),
    ("", False), ("evil.example", False), ("localhost.evil.example", False), ("[::1", False), ("1.2.3", False),
])  # fmt: skip
def test_a_name_that_another_site_may_own_is_not_ours(host, ours):
    assert server.is_ours(host, {"localhost"}) == ours


@pytest.mark.parametrize(("line", "reason"), [
    (3, "not a string"), ("x" * 20_001, "at most 20,000"), ("a\rb", "line break"), ("a\ud800", "valid Unicode"),
])  # fmt: skip
def test_a_line_that_cannot_be_decoded_is_named(line, reason):
    with pytest.raises(UserError, match=rf"^lines\[2\] .*{reason}"):
        api.checked_line(line, "lines[2]")
    assert api.checked_line("\U0001f600 \t\u2028", "") == "\U0001f600 \t\u2028"


def test_a_large_body_is_refused_before_it_is_sent(running):
    with socket.create_connection(("127.0.0.1", running.server_port), timeout=10) as client:
        head = (
            "POST /decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n"
        )
        client.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert client.makefile("rb").readline() == b"HTTP/1.1 413 Request Entity Too Large\r\n"


def test_what_is_not_http_gets_json_too(running):
    with socket.create_connection(("127.0.0.1", running.server_port), timeout=10) as client:
        client.sendall(b"nonsense here\r\n\r\n")
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.endswith(b"}\n") and b'{"error": "Bad ' in answer


def raw(running, content, answers=1):
    """Returns (the statuses of `answers` answers, whether the connection is closed after them)."""
    with socket.create_connection(("127.0.0.1", running.server_port), timeout=10) as client:
        client.sendall(content)
        file, statuses = client.makefile("rb"), []
        for _ in range(answers):
            statuses.append(int(file.readline().split()[1]))
            headers = dict(line.split(b": ", 1) for line in iter(file.readline, b"\r\n"))
            file.read(int(headers[b"Content-Length"]))
        try:
            if statuses[-1] < 400:
                client.sendall(HIDDEN)
            return statuses, file.read(1) == b""
        except ConnectionError:
            return statuses, True


HOST = b"Host: localhost\r\n"
POST = b"POST /decode HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
BODY = b'{"lines": []}'
HIDDEN = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"


def test_requests_follow_each_other_on_a_connection(running):
    full = POST + b"Content-Length: 13\r\n\r\n" + BODY
    assert raw(running, HIDDEN + full + HIDDEN, 3) == ([200, 200, 200], False)
    assert raw(running, b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n") == ([200], True)
    assert raw(running, b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n") == ([200], False)


@pytest.mark.parametrize(("status", "request_"), [
    (400, b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN),
    (411, b"GET /health HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + HIDDEN),
    (411, POST + b"Content-Length: 13\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY + HIDDEN),
    (400, POST + b"Content-Length: 13\r\nContent-Length: 13\r\n\r\n" + BODY),
    (400, POST + b"Content-Length: 13\r\ncontent-length: 99\r\n\r\n" + BODY),
    (400, POST + b"Content-Length: 13, 13\r\n\r\n" + BODY),
    (400, POST + b"Content-Length: +13\r\n\r\n" + BODY),
    (400, POST + b"Content-Length: -13\r\n\r\n" + BODY),
    (400, POST + b"Content-Length: 0x0d\r\n\r\n" + BODY),
    (400, POST + b"Content-Length: 1_3\r\n\r\n" + BODY),
    (400, POST + b"Content-Length : 13\r\n\r\n" + BODY),
    (400, POST + b"X: y\r\n Content-Length: 13\r\n\r\n" + BODY),
    (400, POST + b"Content-Length: 13\n\r\n\r\n" + BODY),
    (400, POST + b"X: a\rContent-Length: 13\r\n\r\n" + BODY),
    (400, POST + b"X: a\x00b\r\nContent-Length: 13\r\n\r\n" + BODY),
    (400, b"GET /health HTTP/1.1\r\n" + HOST + HOST + b"\r\n"),
    (400, b"GET /health HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n\r\n"),
    (400, b"GET /health HTTP/1.1\r\n" + HOST + b"\xff: x\r\n\r\n"),
    (400, b"GET  /health HTTP/1.1\r\n" + HOST + b"\r\n"),
    (400, b"GET http://localhost/health HTTP/1.1\r\n" + HOST + b"\r\n"),
    (400, b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n"),
    (400, b"GET /health\r\n\r\n"),
    (403, b"GET /health HTTP/1.1\r\n\r\n"),
    (431, b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 20_000 + b"\r\n\r\n"),
    (431, b"GET /" + b"x" * 20_000),
])  # fmt: skip
def test_what_can_be_read_in_two_ways_is_refused_and_the_connection_closed(running, status, request_):
    """Classic request smuggling: what follows is never answered as a separate request."""
    assert raw(running, request_) == ([status], True)


def test_head_and_body_are_one_write(running):
    """Two packets would cost 40 ms per request, by Nagle's algorithm and delayed acknowledgements."""
    with socket.create_connection(("127.0.0.1", running.server_port), timeout=10) as client:
        for _ in range(5):
            client.sendall(HIDDEN)
            assert client.recv(65536).endswith(b'\r\n\r\n{"status": "ok"}\n')


@contextlib.contextmanager
def serving(service):
    found = server.Server(service, "127.0.0.1", 0)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


def connect(found):
    return socket.create_connection(("127.0.0.1", found.server_port), timeout=10)


def test_clients_that_leave_in_the_middle_of_a_body_are_no_error(capfd):
    with serving(Backwards()) as found:
        for _ in range(30):
            with connect(found) as client:
                client.sendall(POST + b"Content-Length: 900\r\n\r\n{")
            assert ask(found, "GET", "/health")[0] == 200
    assert capfd.readouterr().err == ""


def test_slow_and_idle_connections_make_room_for_others(monkeypatch):
    """A client that sends a request is answered, however many others send a byte now and then."""
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 4)
    with serving(Backwards()) as found, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(found)) for _ in range(4)]
        for number, client in enumerate(slow):  # before a request, in its head, in its body, and after it
            client.sendall((b"", HIDDEN[:20], POST + b"Content-Length: 13\r\n\r\n{", HIDDEN)[number])
        assert slow[3].recv(12) == b"HTTP/1.1 200"
        for _ in range(6):
            assert ask(found, "GET", "/health")[:2] == (200, {"status": "ok"})
        assert slow[0].recv(1) == b""  # the longest waiting connection was closed


def test_connections_that_are_being_answered_are_kept_and_the_next_is_turned_away(monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 1)
    busy, entered = Future(), threading.Event()
    service = Backwards()
    service.decode = lambda request: (entered.set(), busy)[1]
    with serving(service) as found, connect(found) as first:
        first.sendall(POST + b"Content-Length: 13\r\n\r\n" + BODY)
        assert entered.wait(10)
        with connect(found) as second:
            assert second.recv(12) == b"HTTP/1.1 503"
        busy.set_result({"outputs": []})
        assert first.recv(12) == b"HTTP/1.1 200"


def test_a_whole_request_has_one_deadline(monkeypatch):
    """A byte now and then does not extend the deadline of a request."""
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    with serving(Backwards()) as found, connect(found) as slow:
        ended = threading.Event()

        def trickle():
            with contextlib.suppress(OSError):
                while not ended.wait(0.01):
                    slow.sendall(b"X")

        slow.sendall(b"GET /health HTTP/1.1\r\nX: ")
        thread = threading.Thread(target=trickle)
        thread.start()
        with contextlib.suppress(ConnectionError):
            assert slow.recv(1) == b""  # closed, although every byte came in time
        ended.set()
        thread.join()


def test_bodies_that_are_read_at_once_have_a_limit(monkeypatch):
    monkeypatch.setattr(server, "MOST_READING", 2_000_000)
    with serving(Backwards()) as found, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(found)) for _ in range(3)]
        for client in slow:
            client.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 100"
        assert slow[0].recv(100)[12:] == b"" or slow[0].recv(1) == b""
        body = json.dumps({"lines": ["abc"]})
        assert ask(found, "POST", "/decode", body, **JSON)[0] == 200


def test_a_server_stops_before_it_starts_and_while_clients_wait():
    found = server.Server(Backwards(), "127.0.0.1", 0)
    found.shutdown()
    found.serve_forever()  # returns at once
    found.server_close()
    with serving(Backwards()) as other, connect(other) as client:
        client.sendall(HIDDEN + HIDDEN[:9])
        assert client.recv(12) == b"HTTP/1.1 200"
        other.shutdown()
        with contextlib.suppress(ConnectionError):
            assert client.makefile("rb").read()[-1:] == b"\n"  # only the first answer


def test_health_says_that_programs_are_compiled(running, monkeypatch):
    monkeypatch.setattr(Backwards, "health", lambda self: {"status": "warming", "programs": 4, "compiled": 1})

    def refuse(self, request):
        raise api.Warming("1 of 4 are ready")

    monkeypatch.setattr(Backwards, "explain", refuse)
    assert ask(running, "GET", "/health")[:2] == (503, {"status": "warming", "programs": 4, "compiled": 1})
    with serving(Backwards()) as found:
        status, answer, headers = ask(found, "POST", "/explain", "{}", **JSON)
        assert (status, answer, headers["Retry-After"]) == (503, {"error": "1 of 4 are ready"}, "1")
