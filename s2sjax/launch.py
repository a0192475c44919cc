"""Multi-process runs: a parent process starts each process, and forwards its output and signals.

    pod(2, 4, ["train", "experiments/reverse.py"])      a simulated pod: 2 processes with 4 CPU devices each
    watch([{}], ["train", ...])                         the process of this host in a real pod

When one process dies, JAX aborts the others with a C++ stack trace. The parent prints one line instead. Nothing here
imports JAX.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO

WATCHED = "S2SJAX_WATCHED"
"""set in the environment of a process that has such a parent"""
GRACE = 60
"""seconds that the other processes have to exit when one has failed"""
CHATTER = ("[Gloo]", "preemption_notifier", "preemption_sync_manager")
LOST_CHATTER = ("coordination_service", "distributed service detected fatal errors")
"""log lines of JAX about connections: opened, and lost"""
CONNECTIONS = ("gloo", "unavailable", "aborted", "barrier", "connection", "heartbeat", "coordination")
"""words in the errors that a lost process causes"""
LOST = "another process of this run has died or cannot be reached: run the same command again on all hosts; training "
LOST += "continues from its last checkpoint"


def pod(processes: int, devices: int, command: Sequence[str]) -> int:
    """Runs an s2sjax command in `processes` processes with `devices` simulated CPU devices each: its exit code."""
    address = f"127.0.0.1:{_free_port()}"
    shared = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "JAX_COORDINATOR_ADDRESS": address}
    each = [shared | {"JAX_NUM_PROCESSES": str(processes), "JAX_PROCESS_ID": str(n)} for n in range(processes)]
    return watch(each, [*command, "--distributed"])


def watch(environments: Sequence[dict[str, str]], command: Sequence[str]) -> int:
    """Runs the command once per environment. Returns the exit code of the first process to fail, or 0."""
    many = len(environments) > 1
    printed: set[str] = set()
    children = [_Child(extra, command, f"[{n}] " if many else "", printed) for n, extra in enumerate(environments)]
    with _forward_signals(children):
        deadline = None
        code = 0
        while running := [child for child in children if child.process.poll() is None]:
            failed = next((child for child in children if child.process.poll()), None)
            if failed and deadline is None:
                code, deadline = failed.process.returncode, time.monotonic() + GRACE
            if deadline is not None and time.monotonic() > deadline:
                for child in running:
                    child.process.kill()
            time.sleep(0.05)
        for child in children:
            child.finish()
    code = code or next((child.process.returncode for child in children if child.process.returncode), 0)
    return 128 - code if code < 0 else code


def is_loss(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is a JAX error that says that another process cannot be reached."""
    while error is not None:
        if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
            return any(word in str(error).lower() for word in CONNECTIONS)
        error = error.__cause__
    return False


class _Child:
    """One process. Its output goes to our own streams, without the log lines of JAX."""

    def __init__(self, extra: dict[str, str], command: Sequence[str], prefix: str, printed: set[str]):
        environment = os.environ | extra | {WATCHED: "1", "PYTHONUNBUFFERED": "1"}
        alone = not prefix  # then its standard output may be a terminal, with a progress bar
        self.process = subprocess.Popen(
            [sys.executable, "-m", "s2sjax.cli", *command], env=environment, encoding="utf-8", errors="replace",
            stdout=None if alone else subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._prefix = "" if prefix == "[0] " else prefix
        self._cut, self._printed = False, printed
        pairs = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self._readers = [threading.Thread(target=self._forward, args=pair) for pair in pairs if pair[0]]
        for reader in self._readers:
            reader.start()

    def _forward(self, stream: IO[str], ours: IO[str]) -> None:
        for line in stream:
            # All processes run the same command and fail with the same error, or get the same Ctrl-C.
            if line.startswith("error: ") or (line.startswith("interrupted") and ours is sys.stderr):
                self._print_once(line)
                continue
            self._cut = self._cut or any(word in line for word in LOST_CHATTER)  # and the stack trace after it
            if not self._cut and not any(word in line for word in CHATTER):
                print(self._prefix + line, end="", file=ours, flush=True)

    def _print_once(self, line: str) -> None:
        if line not in self._printed:
            self._printed.add(line)
            print(line, end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """To be called when the process has ended."""
        for reader in self._readers:
            reader.join()
        if self.process.returncode == -signal.SIGABRT and self._cut:
            self._print_once(f"error: {LOST}\n")
        elif self.process.returncode < 0:
            name = signal.Signals(-self.process.returncode).name
            print(f"{self._prefix}error: the process was ended by {name}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _forward_signals(children: Sequence[_Child]) -> Iterator[None]:
    """Forwards SIGTERM to the processes. A terminal sends Ctrl-C to all of them itself; they save, and we wait."""

    def handle(number: int, _) -> None:
        for child in children:
            if number == signal.SIGTERM and child.process.poll() is None:
                child.process.terminate()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
