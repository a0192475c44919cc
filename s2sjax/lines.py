"""Standard input as lines of text."""

import os
import queue
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from s2sjax.errors import UserError, one_line

T = TypeVar("T")
CHUNK = 4096
"""lines that `decode` and `score` read at a time, at most, to sort them by length"""
NAMED = 10
"""lines that cannot be read and are named, each with what is wrong; the others are only counted"""
Arrived = queue.Queue[bytes | OSError]
"""the lines of a stream, then b"" or the error that ended it"""


def two_columns(line: str, index: int, name: str) -> tuple[str, str]:
    source, tab, second = line.partition("\t")
    if not tab:
        raise UserError(f"standard input, line {index + 1} has no tab: write source<tab>{name} on each line")
    return source, second


class Refused:
    """Lines that cannot be read. The first ones are named when they come. Their answers are empty lines, and all other
    lines are answered; at the end the command fails.
    """

    def __init__(self) -> None:
        self._lines = self._refused = 0

    def without(self, read: Sequence[T | UserError]) -> list[T]:
        """The lines that can be read."""
        for line in read:
            self._lines += 1
            if isinstance(line, UserError):
                self._refused += 1
                if self._refused <= NAMED:
                    print(f"error: {one_line(line)}", file=sys.stderr, flush=True)
        return [line for line in read if not isinstance(line, UserError)]

    def blanked(self, read: Sequence[tuple[str, str] | UserError]) -> list[tuple[str, str]]:
        """All lines, with blank ones for those that cannot be read, so that the others keep their numbers."""
        readable = iter(self.without(read))
        return [("", "") if isinstance(line, UserError) else next(readable) for line in read]

    def check(self) -> None:
        if self._refused:
            of_all = f"{self._refused:,} of {self._lines:,} lines"
            raise UserError(f"{of_all} could not be read, their answers are empty lines: see above")


def chunks(parse: Callable[[str, int], T]) -> Iterator[list[T | UserError]]:
    """parse(line, its index) of each line of standard input. If that fails, its error is in the place of the line.

    CHUNK lines at a time from a file; from a pipe or a terminal, those that have arrived. Call it before the model is
    loaded: a pipe is read meanwhile.
    """
    if sys.stdin is None:
        raise UserError("standard input is closed: give it the lines, as in s2sjax decode RUN < lines.txt")
    read = _gathered(_read_ahead(sys.stdin.fileno())) if _is_stream() else _read()
    return _parsed(read, parse)


def _parsed(chunks: Iterator[list[bytes]], parse: Callable[[str, int], T]) -> Iterator[list[T | UserError]]:
    first = 0
    for chunk in chunks:
        parsed: list[T | UserError] = []
        for index, line in enumerate(chunk, first):
            try:
                parsed.append(parse(_decoded(line, index), index))
            except UserError as error:
                parsed.append(error)
        yield parsed
        first += len(chunk)


def _decoded(line: bytes, index: int) -> str:
    line = line.removeprefix(b"\xef\xbb\xbf") if index == 0 else line
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UserError(f"standard input, line {index + 1} is not UTF-8: convert it first") from None


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
