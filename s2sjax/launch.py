"""Several processes as one program: each is watched by a parent that passes on its words and signals.

    pod(2, 4, ["train", "experiments/reverse.py"])      a pod in a box: 2 processes of 4 CPU devices on this machine
    watch([{}], ["train", ...])                         this host's process of a real one

Where a process dies, JAX makes the others abort, with the trace of a C++ thread; the parent says in one line what that
means. Nothing here imports JAX.
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
"""seconds that the others have to end by themselves when one has failed"""
CHATTER = ("[Gloo]", "preemption_notifier", "preemption_sync_manager")
LOST_CHATTER = ("coordination_service", "distributed service detected fatal errors")
"""what JAX's own threads say of connections made, and lost"""
CONNECTIONS = ("gloo", "unavailable", "aborted", "barrier", "connection", "heartbeat", "coordination")
"""words of errors that a lost process makes"""
LOST = "another process of this run has died, or cannot be reached: run the same command again, on all hosts; training "
LOST += "goes on from its last checkpoint"


def pod(processes: int, devices: int, command: Sequence[str]) -> int:
    """Runs an s2sjax command as so many real processes with so many fake devices each: its exit code."""
    address = f"127.0.0.1:{_free_port()}"
    shared = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "JAX_COORDINATOR_ADDRESS": address}
    each = [shared | {"JAX_NUM_PROCESSES": str(processes), "JAX_PROCESS_ID": str(n)} for n in range(processes)]
    return watch(each, [*command, "--distributed"])


def watch(environments: Sequence[dict[str, str]], command: Sequence[str]) -> int:
    """Runs the command once in each environment; the exit code of the first to fail, or 0."""
    several = len(environments) > 1
    told: set[str] = set()
    children = [_Child(extra, command, f"[{n}] " if several else "", told) for n, extra in enumerate(environments)]
    with _passing_on(children):
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
    """Whether an error of JAX, or what it caused, says that another process cannot be reached."""
    while error is not None:
        if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
            return any(word in str(error).lower() for word in CONNECTIONS)
        error = error.__cause__
    return False


class _Child:
    """One process; what it says goes to our own streams, less the chatter."""

    def __init__(self, extra: dict[str, str], command: Sequence[str], prefix: str, told: set[str]):
        environment = os.environ | extra | {WATCHED: "1", "PYTHONUNBUFFERED": "1"}
        alone = not prefix  # then its standard output may be a terminal's, with a live line
        self.process = subprocess.Popen(
            [sys.executable, "-m", "s2sjax.cli", *command], env=environment, encoding="utf-8", errors="replace",
            stdout=None if alone else subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._prefix = "" if prefix == "[0] " else prefix
        self._cut, self._told = False, told
        pairs = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self._readers = [threading.Thread(target=self._pass_on, args=pair) for pair in pairs if pair[0]]
        for reader in self._readers:
            reader.start()

    def _pass_on(self, stream: IO[str], ours: IO[str]) -> None:
        for line in stream:
            if line.startswith("error: "):  # they all run the same command, so they fail alike
                self._tell_once(line)
                continue
            self._cut = self._cut or any(word in line for word in LOST_CHATTER)  # and with it the trace that follows
            if not self._cut and not any(word in line for word in CHATTER):
                print(self._prefix + line, end="", file=ours, flush=True)

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            print(line, end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Once it has ended."""
        for reader in self._readers:
            reader.join()
        if self.process.returncode == -signal.SIGABRT and self._cut:
            self._tell_once(f"error: {LOST}\n")
        elif self.process.returncode < 0:
            name = signal.Signals(-self.process.returncode).name
            print(f"{self._prefix}error: the process was ended by {name}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _passing_on(children: Sequence[_Child]) -> Iterator[None]:
    """A SIGTERM is for them; a Ctrl-C they have had already."""

    def tell(number: int, _) -> None:
        for child in children:
            if number == signal.SIGTERM and child.process.poll() is None:
                child.process.terminate()

    former = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
