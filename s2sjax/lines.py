"""Standard input as lines of text."""

import os
import queue
import stat
import sys
import threading
from collections.abc import Iterator
from itertools import islice

from s2sjax.errors import UserError

CHUNK = 4096
"""lines that `decode` and `score` read at a time, at most, to sort them by length"""
Arrived = queue.Queue[bytes | OSError]
"""the lines of a stream, then b"" or the error that ended it"""


def two_columns(line: str, index: int, name: str) -> tuple[str, str]:
    source, tab, second = line.partition("\t")
    if not tab:
        raise UserError(f"standard input, line {index + 1} has no tab: write source<tab>{name} on each line")
    return source, second


def chunks() -> Iterator[list[str]]:
    """The lines of standard input: CHUNK at a time from a file; from a pipe or a terminal, those that have arrived.

    Call it before the model is loaded: a pipe is read meanwhile.
    """
    return _decoded(_gathered(_read_ahead(sys.stdin.fileno())) if _is_stream() else _read())


def _decoded(chunks: Iterator[list[bytes]]) -> Iterator[list[str]]:
    number = 0
    for chunk in chunks:
        lines: list[str] = []
        for line in chunk:
            number += 1
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            try:
                lines.append(line.decode().removesuffix("\n").removesuffix("\r"))
            except UnicodeDecodeError:
                if lines:
                    yield lines  # the lines before it are answered first
                raise UserError(f"standard input, line {number} is not UTF-8: convert it first") from None
        yield lines


def _is_stream() -> bool:
    try:
        return not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    except OSError:  # not a file at all: a test, a notebook
        return False


def _read() -> Iterator[list[bytes]]:
    while chunk := list(islice(sys.stdin.buffer, CHUNK)):
        yield chunk


def _read_ahead(descriptor: int) -> Arrived:
    """Reads in a thread, while the lines before are decoded."""
    arrived: Arrived = queue.Queue(2 * CHUNK)

    def read() -> None:
        try:
            with open(descriptor, "rb", closefd=False) as stream:
                for line in stream:
                    arrived.put(line)
            arrived.put(b"")
        except OSError as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    return arrived


def _gathered(arrived: Arrived) -> Iterator[list[bytes]]:
    """At least one line, and all others that are there."""
    while True:
        chunk = [arrived.get()]
        while len(chunk) < CHUNK and not arrived.empty():
            chunk.append(arrived.get())
        last = chunk[-1]
        lines = [line for line in chunk if isinstance(line, bytes) and line]
        if lines:
            yield lines
        if isinstance(last, OSError):
            raise last
        if not last:
            return
