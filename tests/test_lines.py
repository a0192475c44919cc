"""Standard input line by line: a pipe is answered as its lines arrive."""

import os
import sys

import pytest

from s2sjax import lines as standard_input
from s2sjax.errors import UserError


class Pipe:
    """A standard input that a test writes to while the command reads."""

    def __init__(self, monkeypatch):
        descriptor, self.end = os.pipe()
        self.stdin = os.fdopen(descriptor)
        monkeypatch.setattr(sys, "stdin", self.stdin)

    def write(self, content: bytes) -> None:
        os.write(self.end, content)

    def close(self) -> None:
        os.close(self.end)


def test_a_pipe_is_answered_as_its_lines_arrive(monkeypatch):
    """No line waits for the next; a line that is not whole yet does; the last one may lack its end."""
    pipe = Pipe(monkeypatch)
    lines = standard_input.chunks(lambda line, index: line)
    for content, whole in ((b"\xef\xbb\xbfa\n", "a"), (b"b\r\nc", "b"), (b"d\n\xc3\xa9", "cd")):
        pipe.write(content)
        assert next(lines) == [whole]
    pipe.close()
    assert list(lines) == [["é"]]


def test_a_pipe_is_read_ahead_in_chunks_and_its_faults_are_named(monkeypatch):
    pipe = Pipe(monkeypatch)
    pipe.write(b"a\n" * 4100 + b"b\n\xff\nc\n")
    pipe.close()
    found = []
    with pytest.raises(UserError, match="standard input, line 4102 is not UTF-8: convert it first"):
        for chunk in standard_input.chunks(lambda line, index: line):
            assert len(chunk) <= standard_input.CHUNK
            found += chunk
    assert found == ["a"] * 4100 + ["b"]


def test_a_line_can_be_refused_and_the_others_read(monkeypatch):
    pipe = Pipe(monkeypatch)
    pipe.write(b"a\n\xff\nc\n")
    pipe.close()
    found = [each for chunk in standard_input.chunks(lambda line, index: line, refuse=str) for each in chunk]
    assert found == ["a", "standard input, line 2 is not UTF-8: convert it first", "c"]


def test_a_closed_standard_input_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="standard input is closed: give it the lines"):
        standard_input.chunks(lambda line, index: line)
