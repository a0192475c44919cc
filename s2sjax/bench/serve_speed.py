"""Latency of `s2sjax serve`, including the client, compared with the decoding itself.

Each round measures everything once, so that its ratios compare one state of the machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from s2sjax.bench import peers
from s2sjax.errors import UserError
from s2sjax.runs import run
from s2sjax.serve.api import MOST_LINES, Service
from s2sjax.serve.server import Server

CLIENTS = 32
ROWS = f"{'round':8}{'1 client':>24}{f'{CLIENTS} clients':>40}{'beside 1,000 lines':>22}"
ABOUT = f"{'':8}{'p50':>12}{'of decode':>12}{'p50':>12}{'p99/p50':>10}{'of decode':>18}{'p50':>12}{'alone x':>10}"


def bench(folder: str, rounds: int) -> None:
    """Prints a line for each round: times in milliseconds, and ratios to decoding the same lines without a server."""
    opened = run.load(folder)
    if not opened.task.generates_text:
        raise UserError(f"{folder} does not translate text: name a run that does")
    split = opened.task.default_split
    if split is None:
        raise UserError(f"{folder} has no dev or test examples to decode: name another run")
    examples: Any = opened.task.examples(split)
    lines = [example.source for example in examples][:MOST_LINES]
    service = Service(opened)
    server = Server(service, "127.0.0.1", 0)
    service.engine.start()
    service.engine.call(lambda: service.warm_up(print)).result()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        print(f"a turn has {service.engine.turn} lines\n{ROWS}\n{ABOUT}", flush=True)
        for number in range(1, rounds + 1):
            print(f"{number:<8}{_round(service, server.server_port, lines)}", flush=True)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        service.engine.close()


def _round(service: Service, port: int, lines: Sequence[str]) -> str:
    few = lines[:100]
    decode = lambda some: service.engine.call(lambda: service.translator.decode(service.params, some)).result()
    alone = [peers.seconds(lambda line=line: decode([line])) for line in few]
    one = _clients(port, 1, few)["times"]
    in_batches = peers.seconds(lambda: [decode(lines[n : n + CLIENTS]) for n in range(0, len(lines), CLIENTS)])
    many = _clients(port, CLIENTS, lines)
    beside = _clients(port, 1, lines, lines)["times"]
    p50, ratio = statistics.median(one), statistics.median(one) / statistics.median(alone)
    middle, last = statistics.median(many["times"]), statistics.quantiles(many["times"], n=100)[98]
    small, throughput = statistics.median(beside), in_batches / many["seconds"]
    return (
        f"{1e3 * p50:9.1f} ms{ratio:12.2f}{1e3 * middle:9.1f} ms{last / middle:10.2f}{throughput:18.2f}"
        f"{1e3 * small:9.1f} ms{small / p50:10.2f}"
    )


def _clients(port: int, clients: int, lines: Sequence[str], large: Sequence[str] = ()) -> dict[str, Any]:
    """Runs http_clients.py and returns its measurements."""
    repeated = list(lines) * (5 if large else 1)
    asked = json.dumps({"port": port, "clients": clients, "lines": repeated, "large": list(large)})
    program = Path(__file__).with_name("http_clients.py")
    found = subprocess.run([sys.executable, program], input=asked, text=True, check=True, capture_output=True)
    return json.loads(found.stdout)
