"""Standard input line by line: a pipe is answered as its lines arrive."""

import os
import sys

import pytest

from s2sjax.cli import standard_input as standard_input
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
    """A complete line does not wait for the next one; the last one may lack its newline."""
    pipe = Pipe(monkeypatch)
    lines = standard_input.chunks(lambda line, index: line)
    for content, whole in ((b"\xef\xbb\xbfa\n", "a"), (b"b\r\nc", "b"), (b"d\n\xc3\xa9", "cd")):
        pipe.write(content)
        assert next(lines) == [whole]
    pipe.close()
    assert list(lines) == [["é"]]


def test_a_pipe_is_read_ahead_in_chunks_and_a_fault_takes_the_place_of_its_line(monkeypatch):
    pipe = Pipe(monkeypatch)
    pipe.write(b"a\n" * 4100 + b"b\n\xff\nc\n")
    pipe.close()
    found = []
    for chunk in standard_input.chunks(lambda line, index: line):
        assert len(chunk) <= standard_input.CHUNK
        found += chunk
    assert [*map(str, found)] == ["a"] * 4100 + ["b", "standard input, line 4102 is not UTF-8: convert it first", "c"]
    assert [isinstance(each, UserError) for each in found[-3:]] == [False, True, False]


def test_lines_that_cannot_be_read_are_named_counted_and_blank(capsys):
    refused, bad = standard_input.Refused(), UserError("line 2 is odd: mend it")
    assert refused.blanked([("a", "b"), bad, ("c", "d")]) == [("a", "b"), ("", ""), ("c", "d")]
    assert refused.without(["e"]) == ["e"]
    assert capsys.readouterr().err == "error: line 2 is odd: mend it\n"
    with pytest.raises(UserError, match=r"^1 of 4 lines could not be read and got empty answers: see the err"):
        refused.check()
    standard_input.Refused().check()
    standard_input.Refused().without([bad] * 50)
    assert len(capsys.readouterr().err.splitlines()) == standard_input.NAMED == 10


def test_a_closed_standard_input_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="standard input is closed: redirect a file to it"):
        standard_input.chunks(lambda line, index: line)
