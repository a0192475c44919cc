"""The progress of a download: a bar in a terminal, a plain line now and then elsewhere."""

import io
import sys

import rich
from rich.console import Console

from s2sjax.datasets import progress


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
    assert capsys.readouterr().out == "ptb: 1.0 MB of 6.0 MB\nptb: 3.0 MB of 6.0 MB\nown: 5.0 kB\n"


def test_a_bar_in_a_terminal_leaves_nothing_behind(monkeypatch):
    """Also if Rich was used before where there was no terminal: its shared console keeps what it found there."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(rich, "_console", Console(file=io.StringIO()))
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress.shown("ptb", 6_000_000) as advance:
        advance(3_000_000)
    written = sys.stdout.getvalue()
    assert "ptb" in written and "3.0/6.0 MB" in written
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is shown again
