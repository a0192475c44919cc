"""The clients of `s2sjax bench serve`: every line is sent once, and a large request runs along with small ones."""

import threading
from pathlib import Path
from types import SimpleNamespace

from s2sjax.bench import serve_speed
from s2sjax.serve.engine import Engine
from s2sjax.serve.server import Server


class Echo:
    """A service whose model returns each line."""

    run, why, translates, most_bytes = SimpleNamespace(folder=Path("runs/echo")), [], True, 1_000_000

    def __init__(self):
        self.engine = Engine(lambda lines: lambda: [{"text": line} for line in lines], (1, 4, 16), 4000)
        self.engine.start()

    def about(self):
        return {"run": "runs/echo", "model": "Echo", "task": "Test", "step": 1, "settings": "", "nbest": 1}

    def health(self):
        return {"status": "ok"}

    def decode(self, request):
        return self.engine.submit(request["lines"], lambda outputs: {"outputs": outputs})

    explain = decode


def test_clients_ask_for_every_line_and_are_timed(call):
    service = Echo()
    server = Server(service, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    lines = [f"line {n}" for n in range(100)]
    found = serve_speed._clients(server.server_port, 8, lines)
    assert len(found["times"]) == service.engine.items == 100 and 0 < min(found["times"]) < found["seconds"]
    found = serve_speed._clients(server.server_port, 2, lines, lines)
    assert found["times"] and 0 < found["large"] <= found["seconds"]
    server.shutdown()
    thread.join()
    server.server_close()
    service.engine.close()
    assert "name it, as in s2sjax bench serve --run runs/g2p" in call("bench", "serve")[2]
    assert "--run is an option of bench serve: leave it out" in call("bench", "data", "--run", "x")[2]
