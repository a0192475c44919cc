"""Commands on runs in object storage: the trace of some steps, and addresses that are not whole."""

import gzip
import json
import os
import subprocess
import sys

import pytest
from conftest import child_environment

from s2sjax import files
from s2sjax.training import profiling
from s2sjax.training.checkpoints import folders

FILE = """
from s2sjax.config import Train
from s2sjax.tasks import Regression
experiment = Regression("tiny", train=Train(steps=6, save_every=6, evaluate_every=0))
"""


def test_the_trace_is_in_the_folder_of_the_run(emulators, tmp_path, monkeypatch, call):
    (tmp_path / "tiny.py").write_text(FILE)
    bucket = f"gs://runs/{os.urandom(4).hex()}"
    monkeypatch.setattr(profiling.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    code, out, err = call("train", tmp_path / "tiny.py", "--out", bucket, "--profile", "2:4")
    assert code == 0, err
    line = next(line for line in out.splitlines() if line.startswith("their trace: open "))
    file = line.removeprefix("their trace: open ").partition(" ")[0]
    assert file.startswith(f"{bucket}/profile/plugins/profile/") and f"xprof --logdir {bucket}/profile" in line
    events = json.loads(gzip.decompress(files.as_path(file).read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "train" for event in events) == 3
    assert any(name.endswith(".xplane.pb") for name in files.as_path(f"{bucket}/profile").files())
    assert f"{bucket}/profile" in out.splitlines()[-1], "the last line lists what was written"
    assert not list((tmp_path / "temporary").iterdir()), "the local trace is left behind"


@pytest.mark.parametrize("address", ["gs://", "s3:///", "gs://ab/run"])
@pytest.mark.parametrize("command", ["decode", "evaluate", "results", "serve"])
def test_an_address_without_a_bucket_says_what_is_missing(emulators, call, command, address):
    code, out, err = call(command, address)
    assert (code, out) == (2, "")
    scheme = address[:2]
    assert err == (
        f"error: {scheme}://{address[5:].strip('/')} names no bucket, whose name has at least three letters: write "
        f"{scheme}://BUCKET/...\n"
    )


def test_the_checkpoints_of_runs_are_listed_for_a_script(emulators):
    """What slurm_job.sh reads: those that are complete, of a run and of the runs of a sweep."""
    bucket = f"gs://runs/{os.urandom(4).hex()}"
    command = [sys.executable, "-m", folders.__name__, bucket]
    listed = lambda: subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=120)
    assert (found := listed()).returncode == 0 and found.stdout.split() == []
    complete = [f"{bucket}/checkpoints/{step}" for step in (10, 5)] + [f"{bucket}/seed=0/checkpoints/20"]
    for path in (*complete, f"{bucket}/checkpoints/4.damaged"):
        (files.as_path(path) / folders.MARKER).write_text("")
    (files.as_path(bucket) / "checkpoints/30/params/half").write_text("")
    assert sorted(listed().stdout.split()) == sorted(complete)
