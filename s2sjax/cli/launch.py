"""Multi-process runs: a parent process starts each process, and forwards its output and signals.

    pod(2, 4, ["train", "experiments/reverse.py"])      a simulated pod: 2 processes with 4 CPU devices each
    watch([{}], ["train", ...])                         the process of this host in a real pod

When one process dies, JAX aborts the others with a C++ stack trace. The parent prints one line instead, which names the
process that died. When the parent dies, the processes save and exit. This module does not import JAX.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO

WATCHED = "S2SJAX_WATCHED"
"""environment variable that is set in a process with such a parent"""
PARENT = "S2SJAX_PARENT"
"""environment variable with the file descriptor of a pipe that is closed when the parent ends"""
GRACE = 60
"""seconds that the other processes have to exit after one of them, or the parent, has failed"""
CHATTER = ("[Gloo]", "preemption_notifier", "preemption_sync_manager")
"""words in the log lines of JAX about opened connections"""
LOST_CHATTER = ("coordination_service", "distributed service detected fatal errors")
"""words in the log lines of JAX about lost connections"""
CONNECTIONS = ("gloo", "unavailable", "aborted", "barrier", "connection", "heartbeat", "coordination")
"""words in the errors that a lost process causes"""
AGAIN = "run the same command again on all hosts; training continues from its last checkpoint"
LOST = f"another process of this run has died or cannot be reached: {AGAIN}"
PROGRAM = (sys.executable, "-m", "s2sjax.cli.main")


def pod(processes: int, devices: int, command: Sequence[str]) -> int:
    """Runs a command in `processes` processes with `devices` simulated CPU devices each. Returns the exit code."""
    address = f"127.0.0.1:{_free_port()}"
    shared = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "JAX_COORDINATOR_ADDRESS": address}
    each = [shared | {"JAX_NUM_PROCESSES": str(processes), "JAX_PROCESS_ID": str(n)} for n in range(processes)]
    return watch(each, [*command, "--distributed"])


def watch(environments: Sequence[dict[str, str]], command: Sequence[str]) -> int:
    """Runs the command once per environment. Returns the exit code of the first process to fail, or 0."""
    many = len(environments) > 1
    reader, writer = os.pipe()  # closed by the kernel when this process ends, however it ends
    shared = {WATCHED: "1", PARENT: str(reader), "PYTHONUNBUFFERED": "1"}
    numbers = range(len(environments)) if many else [None]
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        # A shell starts `command &` with Ctrl-C ignored. The children would inherit this, and could not save.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    children = [_Child(extra | shared, command, n, reader) for n, extra in zip(numbers, environments)]
    os.close(reader)
    first, deadline, printed = None, None, set[str]()
    with _forward_signals(children):
        while running := [child for child in children if child.process.poll() is None]:
            if first is None and (first := _first_failure(children)):
                deadline = time.monotonic() + GRACE
                first.print_errors(printed)
            if deadline is not None and time.monotonic() > deadline:
                for child in running:
                    child.process.kill()
            time.sleep(0.05)
        for child in children:
            child.join()
        first = first or _first_failure(children)
        for child in [first] if first and first.was_killed else children:  # the others fail because one was killed
            child.print_errors(printed)
    os.close(writer)
    if not printed and any(child.has_lost_another for child in children):
        print(f"error: {LOST}", file=sys.stderr, flush=True)
    code = first.process.returncode if first else 0
    return 128 - code if code < 0 else code


def _first_failure(children: Sequence[_Child]) -> _Child | None:
    """A process that has failed; preferably one that was killed, because the others fail as a consequence."""
    if not any(child.process.poll() for child in children):
        return None
    failed = [child for child in children if child.process.poll()]  # again: another may have been killed in between
    for child in failed:
        child.join()
    return next((child for child in failed if child.was_killed), failed[0])


def end_with_parent() -> None:
    """Starts a thread that sends this process a SIGTERM when its parent has been killed, so that training saves."""

    def wait(pipe: int) -> None:
        os.read(pipe, 1)  # returns when the parent has ended: nobody writes
        for stream in (1, 2):
            if stat.S_ISFIFO(os.fstat(stream).st_mode):  # read by the parent: printing would raise before saving
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    if PARENT in os.environ:
        threading.Thread(target=wait, args=[int(os.environ.pop(PARENT))], daemon=True).start()


def is_loss(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is a JAX error about an unreachable process."""
    while error is not None:
        if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
            return any(word in str(error).lower() for word in CONNECTIONS)
        error = error.__cause__ or error.__context__
    return False


class _Child:
    """One process. Its output is forwarded to the streams of the parent, without the log lines of JAX."""

    def __init__(self, extra: dict[str, str], command: Sequence[str], number: int | None, pipe: int):
        alone = number is None  # then its standard output may be a terminal, with a progress bar
        self.process = subprocess.Popen(
            [*PROGRAM, *command], env=os.environ | extra, encoding="utf-8", errors="replace",
            stdout=None if alone else subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[pipe],
            start_new_session=True,  # a terminal sends Ctrl-C only to the parent, which forwards it once
        )  # fmt: skip
        self._name = "the process" if alone else f"process {number}"
        self._prefix = f"[{number}] " if number else ""
        self._cut, self._errors = False, list[str]()
        pairs = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self._readers = [threading.Thread(target=self._forward, args=pair) for pair in pairs if pair[0]]
        for reader in self._readers:
            reader.start()

    def _forward(self, stream: IO[str], ours: IO[str]) -> None:
        for line in stream:
            # Processes that run the same command fail with the same error, which is printed once.
            if line.startswith("error: ") or (line.startswith("interrupted") and ours is sys.stderr):
                self._errors.append(line)
                continue
            self._cut = self._cut or any(word in line for word in LOST_CHATTER)  # and the stack trace after it
            if not self._cut and not any(word in line for word in CHATTER):
                print(self._prefix + line, end="", file=ours, flush=True)

    def join(self) -> None:
        """Waits until all output of the process, which has ended, is forwarded."""
        for reader in self._readers:
            reader.join()

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended the process, unless JAX aborted it because another process was lost."""
        return (self.process.returncode or 0) < 0 and not self.has_lost_another

    @property
    def has_lost_another(self) -> bool:
        is_aborted = self.process.returncode == -signal.SIGABRT and self._cut
        return is_aborted or any(LOST in line for line in self._errors)

    def print_errors(self, printed: set[str]) -> None:
        """Prints why the process has failed, except errors printed before, and LOST: another process knows more."""
        if self.was_killed:
            signal_name = signal.Signals(-self.process.returncode).name
            self._errors = [f"error: {self._name} was ended by {signal_name}: {AGAIN}\n"]
        for line in self._errors:
            if line not in printed and LOST not in line:
                printed.add(line)
                print(line, end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _forward_signals(children: Sequence[_Child]) -> Iterator[None]:
    """Forwards SIGTERM and Ctrl-C to the processes, which save while the parent waits. Ctrl-Z also stops them."""

    def send(number: int, _: object = None) -> None:
        for child in children:
            if child.process.poll() is None:
                child.process.send_signal(number)

    def stop(*_) -> None:
        send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        send(signal.SIGCONT)

    handlers = {signal.SIGTERM: send, signal.SIGINT: send, signal.SIGTSTP: stop}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
