"""`s2sjax report` and `s2sjax serve`: errors, and the end of a server."""

import os
import signal
import threading

from s2sjax.cli.start_jax import ends_by_signal


def test_error_messages_are_one_line(call, tmp_path):
    assert call("report") == (2, "", "error: the following arguments are required: RUN: see s2sjax report --help\n")
    code, _, errors = call("report", tmp_path)
    assert code == 2 and errors == f"error: {tmp_path} is not a run folder (it has no config.json): " \
        "train first, or name another folder\n"  # fmt: skip
    assert "is not an HTML file" in call("report", tmp_path, "--out", "x.png")[2]
    assert "'-1' is not a whole number" in call("report", tmp_path, "--trees", "-1")[2]
    assert "is not a run folder" in call("serve", tmp_path)[2]
    assert call("report", "--help")[0] == call("serve", "--help")[0] == 0


def test_the_first_signal_stops_the_server_and_restores_the_handlers():
    stopped, before = threading.Event(), signal.getsignal(signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGTERM):
        stopped.clear()
        with ends_by_signal(stopped.set):
            os.kill(os.getpid(), number)
            assert stopped.wait(10)
        assert signal.getsignal(signal.SIGINT) is before
