"""An outage under two processes, and commands without credentials for Google Cloud Storage."""

import os
import re
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import child_environment
from object_storage.conftest import free_ports

import s2sjax
from s2sjax import files
from s2sjax.cli import launch
from s2sjax.training import run_log
from s2sjax.training.checkpoints import folders

FILE = """
from s2sjax.config import Train
from s2sjax.tasks import Regression
experiment = Regression("tiny", train=Train(steps=40, save_every=10, max_to_keep=4, log_every=5, evaluate_every=0))
"""
PROCESS = """
import asyncio, os, pathlib, sys, time, types
import gcsfs.retry
from s2sjax import files, object_storage
from s2sjax.cli import main
from s2sjax.runs import lease
from s2sjax.training import loop, run_log
from s2sjax.training.checkpoints import folders
out, outage = sys.argv[sys.argv.index("--out") + 1], pathlib.Path(os.environ["OUTAGE"])
gcsfs.retry.asyncio = types.SimpleNamespace(
    **{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(seconds / 100)})
object_storage.SHORTEST, run_log.PATIENCE, lease.TIMEOUT = 0.1, 1.0, 3.0
log_step = run_log.Log.step
def step(self, number, numbers):
    log_step(self, number, numbers)
    if number == 12:  # of the leader; the other process waits for its gradients
        while not folders.exists(files.as_path(out) / "checkpoints/10"):
            time.sleep(0.05)
        outage.write_text("503")
    elif number == 22:
        outage.unlink()
if os.environ["JAX_PROCESS_ID"] == "0" and files.in_storage(out):
    run_log.Log.step = step
main.main(sys.argv[1:])
"""


def train_as_two(folder, out, outage) -> list[str]:
    """Trains in two processes. Returns what each of them has printed."""
    shared = {
        "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "JAX_NUM_PROCESSES": "2", launch.WATCHED: "1",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_ports()[0]}", "OUTAGE": str(outage),
    }  # fmt: skip
    command = [sys.executable, "-c", PROCESS, "train", "tiny.py", "--out", str(out), "--distributed"]
    children = [
        subprocess.Popen(command, env=child_environment(**shared, JAX_PROCESS_ID=str(number)), cwd=folder, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for number in range(2)
    ]  # fmt: skip
    said = []
    try:
        for child in children:
            said.append(child.communicate(timeout=300)[0])
            assert child.returncode == 0, said[-1]
    finally:
        for child in children:
            child.kill()
    return said


@pytest.mark.slow
def test_two_processes_go_on_through_an_outage(emulators, outage, tmp_path):
    (tmp_path / "tiny.py").write_text(FILE)
    bucket = f"gs://runs/{os.urandom(4).hex()}"
    leader, other = train_as_two(tmp_path, bucket, outage)
    assert leader.count("could not save the checkpoint of step 20") == 1, leader
    assert len(re.findall(rf"saved step [34]0: {bucket}/checkpoints can be written again", leader)) == 1, leader
    assert "could not" not in other and "cannot be written" not in other
    assert sorted(path.name for path in folders.of_runs(files.as_path(bucket))) == ["10", "30", "40"]
    train_as_two(tmp_path, tmp_path / "run", outage)
    runs = [s2sjax.load(each) for each in (bucket, tmp_path / "run")]
    for mine, wanted in zip(*(jax.tree.leaves(each.params()[0]) for each in runs), strict=True):
        np.testing.assert_array_equal(mine, wanted)
    lines = [run_log.read_lines(each.folder / run_log.METRICS) for each in runs]
    losses = [[(line["step"], line["loss"]) for line in each if "loss" in line] for each in lines]
    assert losses[0] == losses[1] != []


def test_without_credentials_for_google_a_command_says_what_to_set(emulators, outage, tmp_path):
    """The storage refuses a client that has found no credentials. No metadata server is waited for."""
    outage.write_text("401")
    unset = ("GOOGLE_AUTH_TOKEN_FOR_TESTING", "GOOGLE_APPLICATION_CREDENTIALS", "NO_GCE_CHECK")
    environment = {name: value for name, value in child_environment().items() if name not in unset}
    environment |= {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path), "GCE_METADATA_HOST": "nowhere.invalid"}
    command = [sys.executable, "-m", "s2sjax.cli.main", "results", "gs://runs/any"]
    with socket.create_server(("127.0.0.1", 0)) as metadata:
        environment["GCE_METADATA_IP"] = f"127.0.0.1:{metadata.getsockname()[1]}"
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        metadata.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has asked it
            metadata.accept()
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: gs://runs/any") and "no valid credentials (" in done.stderr
    assert "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS" in done.stderr
