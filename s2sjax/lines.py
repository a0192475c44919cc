"""Standard input as lines of text."""

import sys
from collections.abc import Iterator

from s2sjax.errors import UserError

CHUNK = 4096
"""lines that `decode` and `score` read at a time, to sort them by length"""


def two_columns(line: str, index: int, name: str) -> tuple[str, str]:
    source, tab, second = line.partition("\t")
    if not tab:
        raise UserError(f"standard input, line {index + 1} has no tab: write source<tab>{name} on each line")
    return source, second


def input_lines() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        try:
            yield line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise UserError(f"standard input, line {number} is not UTF-8: convert it first") from None


def chunks(lines: Iterator[str]) -> Iterator[list[str]]:
    """CHUNK lines at a time from a file or pipe, one at a time from a terminal."""
    size = 1 if sys.stdin.isatty() else CHUNK
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
