"""Reads standard input as lines of text."""

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
"""maximum number of lines that `decode` and `score` read at a time, to sort them by length"""
NAMED = 10
"""number of unreadable lines whose errors are printed; the others are only counted"""
Arrived = queue.Queue[bytes | OSError]
"""lines of a stream, then b"" or the error that ended it"""


def two_columns(line: str, index: int, name: str) -> tuple[str, str]:
    source, tab, second = line.partition("\t")
    if not tab:
        raise UserError(f"standard input, line {index + 1} has no tab: write source<tab>{name} on each line")
    return source, second


class Refused:
    """Prints the errors of the first unreadable lines, and fails at the end. Unreadable lines get empty answers."""

    def __init__(self) -> None:
        self._lines = self._refused = 0

    def without(self, read: Sequence[T | UserError]) -> list[T]:
        """The readable lines."""
        for line in read:
            self._lines += 1
            if isinstance(line, UserError):
                self._refused += 1
                if self._refused <= NAMED:
                    print(f"error: {one_line(line)}", file=sys.stderr, flush=True)
        return [line for line in read if not isinstance(line, UserError)]

    def blanked(self, read: Sequence[tuple[str, str] | UserError]) -> list[tuple[str, str]]:
        """All lines, with blank ones instead of unreadable ones, so that the others keep their numbers."""
        readable = iter(self.without(read))
        return [("", "") if isinstance(line, UserError) else next(readable) for line in read]

    def check(self) -> None:
        if self._refused:
            of_all = f"{self._refused:,} of {self._lines:,} lines"
            raise UserError(f"{of_all} could not be read and got empty answers: see the errors above")


def chunks(parse: Callable[[str, int], T]) -> Iterator[list[T | UserError]]:
    """Yields lists of parse(line, index) of the lines of standard input. A line with a UserError is replaced by it.

    A list has CHUNK lines of a file, or the lines that have arrived from a pipe or a terminal. Call this before loading
    the model: a pipe is read meanwhile.
    """
    if sys.stdin is None:
        raise UserError("standard input is closed: redirect a file to it, as in s2sjax decode RUN < lines.txt")
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
    except OSError:  # not a file, as in tests and notebooks
        return False


def _read() -> Iterator[list[bytes]]:
    while chunk := list(islice(sys.stdin.buffer, CHUNK)):
        yield chunk


def _read_ahead(descriptor: int) -> Arrived:
    """Starts a thread that reads lines while the previous ones are decoded."""
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
    """Yields lists of the lines that have arrived, at least one each."""
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
