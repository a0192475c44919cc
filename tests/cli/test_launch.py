"""A parent and its processes, which are small programs here: when one dies, it is named, and the others end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import child_environment

from s2sjax.cli import launch

PARENT = """
import signal, sys
from s2sjax.cli import launch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background with it ignored
launch.PROGRAM = (sys.executable, "-c", sys.argv[1])
sys.exit(launch.watch([{"NUMBER": "0"}, {"NUMBER": "1"}], []))
"""
# A process that logs to a file: "began 1234", then the signals that it gets.
CHILD = """
import os, signal, sys, time
from pathlib import Path
from s2sjax.cli import launch
number, folder = os.environ["NUMBER"], Path(os.environ["FOLDER"])
def tell(text):
    with open(folder / number, "a") as file:
        file.write(text + "\\n")
def other_has_died():
    pid = (folder / "1").read_text().split()[1]
    return not Path(f"/proc/{pid}").exists()
def handle(signal_number, _):
    tell(signal.Signals(signal_number).name)
    print("saved", flush=True)
    os._exit(0 if signal_number == signal.SIGTERM else 130)
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, handle)
launch.end_with_parent()
tell(f"began {os.getpid()}")
"""
WAIT = CHILD + "while True: signal.pause()"


class Parent:
    def __init__(self, folder: Path, program: str):
        environment = child_environment(FOLDER=str(folder))
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT, program], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def told(self, number: int) -> list[str]:
        path = self.folder / str(number)
        return path.read_text().splitlines() if path.exists() else []

    def wait(self, lines: int) -> list[int]:
        """Waits until both processes have logged so many lines. Returns their process ids."""
        while min(len(self.told(0)), len(self.told(1))) < lines:
            time.sleep(0.01)
        return [int(self.told(number)[0].split()[1]) for number in (0, 1)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_parent_alone_reaches_each_process_once(tmp_path, number):
    parent = Parent(tmp_path, WAIT)
    parent.wait(1)
    parent.process.send_signal(number)
    out, err = parent.process.communicate()
    assert parent.process.returncode == (130 if number == signal.SIGINT else 0)
    assert (sorted(out.splitlines()), err) == (["[1] saved", "saved"], "")
    assert [parent.told(n)[1:] for n in (0, 1)] == [[number.name]] * 2


def test_a_ctrl_c_of_a_terminal_reaches_the_parent_alone(tmp_path):
    """Ctrl-C goes to the parent's process group. If the processes were in it, they would get it twice and not save."""
    parent = Parent(tmp_path, WAIT)
    assert all(os.getpgid(pid) != os.getpgid(parent.process.pid) for pid in parent.wait(1))
    parent.process.terminate()
    parent.process.communicate()


@pytest.mark.parametrize("deaf", [False, True])
def test_processes_whose_parent_is_killed_save_and_end(tmp_path, deaf):
    """Also ends processes that ignore the SIGTERM."""
    ignore = "launch.GRACE = 0; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nlaunch.end_with_parent()"
    parent = Parent(tmp_path, WAIT.replace("launch.end_with_parent()", ignore) if deaf else WAIT)
    pids = parent.wait(1)
    parent.process.kill()
    parent.process.communicate()
    while any(state_of(pid) != "Z" for pid in pids):  # gone, or nobody's
        time.sleep(0.01)
    assert [parent.told(n)[1:] for n in (0, 1)] == [[] if deaf else ["SIGTERM"]] * 2


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2]
    except FileNotFoundError:
        return "Z"


def test_the_process_that_was_killed_is_named_and_not_what_followed(tmp_path):
    fails = (
        CHILD
        + """
while number == "0" and not ((folder / "1").exists() and other_has_died()): time.sleep(0.01)
if number == "0":
    print("error: could not save the checkpoint of step 3", file=sys.stderr, flush=True)
    os._exit(2)
signal.pause()
"""
    )
    parent = Parent(tmp_path, fails)
    os.kill(parent.wait(1)[1], signal.SIGKILL)
    _, err = parent.process.communicate()
    assert err == f"error: process 1 was ended by SIGKILL: {launch.AGAIN}\n"
    assert parent.process.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    "errors, printed",
    [
        (["the field is wrong"] * 2, ["the field is wrong"]),
        ([launch.LOST, "the disk is full"], ["the disk is full"]),
        ([launch.LOST] * 2, [launch.LOST]),
    ],
    ids=["the same", "one follows from the other", "a process of another host"],
)
def test_errors_are_told_once(tmp_path, errors, printed):
    fails = CHILD + f"print('error: ' + {errors!r}[int(number)], file=sys.stderr, flush=True); os._exit(2)"
    parent = Parent(tmp_path, fails)
    _, err = parent.process.communicate()
    assert (parent.process.returncode, err) == (2, "".join(f"error: {line}\n" for line in printed))
