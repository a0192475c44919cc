"""Which requests are answered, and with which errors. The model is a function here: it writes lines backwards."""

import http.client
import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from s2sjax.errors import UserError
from s2sjax.serve import api, server

JSON = {"Content-Type": "application/json"}


class Backwards:
    """What the server needs of a service."""

    run, why, translates = SimpleNamespace(folder=Path("runs/<b>x")), [], True

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
    thread = threading.Thread(target=lambda: found.serve_forever(0.02))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def ask(running, method, path, body=None, **headers):
    """(status, answer, headers)"""
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
        (405, "GET", "/decode", None, {}, "answers POST only"),
        (405, "DELETE", "/", None, {}, "answers GET only"),
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
        (411, "POST", "/decode", None, JSON | {"Transfer-Encoding": "chunked"}, "length of the body is missing"),
        (413, "POST", "/decode", None, JSON | {"Content-Length": "1000001"}, "too large"),
        (413, "POST", "/decode", None, JSON | {"Content-Length": "9" * 5000}, "too large"),
        (400, "POST", "/explain", "{}", JSON, "nothing to explain"),
        (500, "POST", "/decode", '{"lines": ["break"]}', JSON, "the server made a mistake"),
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


def test_more_connections_than_allowed_are_turned_away(monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 1)
    found = server.Server(Backwards(), "127.0.0.1", 0)
    thread = threading.Thread(target=lambda: found.serve_forever(0.02))
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", found.server_port), timeout=10) as first:
            first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert first.recv(12) == b"HTTP/1.1 200"  # and stays open
            with socket.create_connection(("127.0.0.1", found.server_port), timeout=10) as second:
                assert second.recv(12) == b"HTTP/1.1 503"
    finally:
        found.shutdown()
        thread.join()
        found.server_close()
