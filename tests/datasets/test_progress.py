"""The progress of a download: a bar in a terminal, a plain line now and then elsewhere."""

import io
import sys

import pytest

from s2sjax.datasets import progress


@pytest.mark.parametrize(
    "count, text", [(0, "0 kB"), (12_400, "12 kB"), (2_140_000, "2.1 MB"), (1_123_601_491, "1.1 GB")]
)
def test_bytes_for_people(count, text):
    assert progress.megabytes(count) == text


def test_plain_lines_at_most_every_few_seconds(capsys, monkeypatch):
    with progress.shown("ptb", 6_000_000) as advance:
        advance(1_000_000)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    with progress.shown("ptb", 6_000_000) as advance:
        advance(1_000_000)
        advance(2_000_000)
    with progress.shown("own", 0) as advance:  # of unknown size
        advance(5_000)
    assert capsys.readouterr().out == "ptb: 1.0 MB of 6.0 MB\nptb: 3.0 MB of 6.0 MB\nown: 5 kB\n"


def test_a_bar_in_a_terminal_leaves_nothing_behind(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress.shown("ptb", 6_000_000) as advance:
        advance(3_000_000)
    written = sys.stdout.getvalue()
    assert "ptb" in written and "3.0/6.0 MB" in written
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is shown again
