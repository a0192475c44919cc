"""Clients of a server, for `s2sjax bench serve`: a separate program, without JAX, that prints their times as JSON.

Standard input: {"port", "clients", "lines", "large"}. Each client has one connection and requests one line at a time
until all lines are done. With `large`, another client sends these lines in one request, and the others stop when it is
answered. Times are seconds from the first byte sent to the last byte read.
"""

import asyncio
import json
import sys
import time


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lines: list[str]) -> float:
    """Sends a request and returns its seconds."""
    began = time.perf_counter()
    body = json.dumps({"lines": lines}).encode()
    head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(f"POST /decode HTTP/1.1\r\n{head}".encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in answer.split(b"\r\n") if line.startswith(b"Content-Length:"))
    outputs = json.loads(await reader.readexactly(length))["outputs"]
    assert len(outputs) == len(lines), "one output for each line"
    return time.perf_counter() - began


async def main(asked: dict) -> dict:
    left, large = list(asked["lines"]), asked["large"]
    times, ended = [], asyncio.Event()

    async def client() -> None:
        connection = await asyncio.open_connection("127.0.0.1", asked["port"])
        while left and not ended.is_set():
            times.append(await ask(*connection, [left.pop()]))
        connection[1].close()

    async def send_large() -> float:
        connection = await asyncio.open_connection("127.0.0.1", asked["port"])
        taken = await ask(*connection, large)
        ended.set()
        return taken

    began = time.perf_counter()
    clients = [client() for _ in range(asked["clients"])]
    found = await asyncio.gather(*([send_large()] if large else []), *clients)
    return {"times": times, "seconds": time.perf_counter() - began, "large": found[0]}


print(json.dumps(asyncio.run(main(json.load(sys.stdin)))))
