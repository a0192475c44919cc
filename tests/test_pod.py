"""Pods of real processes on one machine: killed, interrupted, and resumed with another number of processes."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import zoo
from conftest import said_by_us, seed_of

from s2sjax.cli import launch
from s2sjax.runs import run
from s2sjax.training.checkpoints.manager import Checkpoints

# Every process runs this experiment file, which records the examples of each step of each process. At the step that
# HOLD names ("4 all": all processes, "4 1": process 1) it waits for the file GO, so that a test can act there.
PAGE = """
import json, os, time
import jax
from s2sjax.config import Data, Evaluate, Luong, Search, Synthetic, Train
from s2sjax.tasks import Translation
from s2sjax.training import loop

plain = loop.Programs.__call__

def noting(programs, state, batch, log):
    shards = [shard.data for shard in batch["example"].addressable_shards if shard.replica_id == 0]
    ids = [int(number) for rows in shards for number in rows if number >= 0]
    with open(os.environ["LEDGER"], "a") as file:
        file.write(json.dumps([int(os.environ["LIFE"]), int(state.step), ids]) + "\\n")
    here = [f"{int(state.step)} all", f"{int(state.step)} {jax.process_index()}"]
    while os.environ["HOLD"] in here and not os.path.exists(os.environ["GO"]):
        time.sleep(0.02)
    return plain(programs, state, batch, log)

loop.Programs.__call__ = noting
experiment = Translation(
    name="tiny",
    data=Data(Synthetic("reverse", train=70, dev=8, test=21, length=5, alphabet=4), buckets=((6, 6),),
              batch_tokens=120),
    model=Luong(width=8, embedding_size=4, layers=1, dropout=0.3),
    train=Train(steps=21, warmup_steps=1, evaluate_every=7, save_every=3, log_every=1, max_to_keep=2),
    search=Search(beam_size=2),
    evaluate=Evaluate(metrics=("cer", "exact"), batch_size=8, dev_examples=8),
    show=("abcd",),
)
"""
# A shell starts background jobs with SIGINT ignored, and the tests may be one.
LAUNCH = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from s2sjax.cli.main import main; main()"
)
EXAMPLES, EPOCHS, PER_EPOCH = 70, 3, 7
HEARTBEAT = 15  # seconds; half of the default
WAIT = 600  # seconds after which a test fails
pytestmark = pytest.mark.timeout(1800)  # many processes, each of which imports JAX and compiles


class Pod:
    """Starts pods with one experiment file, one after the other, and reads what they wrote."""

    def __init__(self, folder: Path):
        self.folder, self.life = folder, 0
        self.page, self.ledger = folder / "page.py", folder / "ledger"
        self.page.write_text(PAGE)

    def start(self, processes: int, devices: int, out: str, *fields: str, evaluate=False, hold="") -> subprocess.Popen:
        self.life += 1
        self.go = self.folder / f"go-{self.life}"
        environment = os.environ | {
            "HOLD": hold, "GO": str(self.go), "S2SJAX_HEARTBEAT": str(HEARTBEAT),
            "LEDGER": str(self.ledger), "LIFE": str(self.life),
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }  # fmt: skip
        what = ["evaluate", self.folder / out] if evaluate else ["train", self.page, "--out", self.folder / out]
        command = ["launch", "-p", processes, "-d", devices, "--", *what]
        return subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *map(str, command), *fields], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def finish(self, *arguments, evaluate: bool = False) -> tuple[int, str, str]:
        process = self.start(*arguments, evaluate=evaluate)
        out, err = process.communicate(timeout=WAIT)
        return process.returncode, out, said_by_us(err)

    def notes(self, life: int | None = None) -> list[tuple[int, int, list[int]]]:
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        notes = [json.loads(line) for line in lines if line.endswith("]]")]
        return [note for note in notes if life in (None, note[0])]

    def wait_for(self, step: int, process: subprocess.Popen) -> None:
        """Waits until the current pod has begun the step."""
        end = time.monotonic() + WAIT
        while not any(at >= step for _, at, _ in self.notes(self.life)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, f"step {step} has not begun within {WAIT} seconds"
            time.sleep(0.02)

    def losses(self, out: str) -> dict[int, float]:
        lines = map(json.loads, (self.folder / out / "metrics.jsonl").read_text().splitlines())
        return {line["step"]: line["loss"] for line in lines if "loss" in line}

    def results(self, out: str) -> dict:
        """The metrics of its only evaluation."""
        (file,) = (self.folder / out / "evaluations").glob("*/results.json")
        return json.loads(file.read_text())["metrics"]

    def dev_losses(self, out: str) -> dict[int, float]:
        lines = map(json.loads, (self.folder / out / "metrics.jsonl").read_text().splitlines())
        return {line["step"]: line["dev_loss"] for line in lines if "dev_loss" in line}

    def fingerprints(self, out: str) -> dict:
        return Checkpoints(self.folder / out / "checkpoints", read_only=True).header(EPOCHS * PER_EPOCH)["leaves"]


def children(process: subprocess.Popen) -> list[int]:
    """The ids of the processes of a pod, in order."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def pod(tmp_path_factory) -> Pod:
    return Pod(tmp_path_factory.mktemp("pod"))


@pytest.fixture(scope="module")
def whole(pod) -> tuple[str, str]:
    """The output of an undisturbed pod of 2 x 2."""
    code, out, err = pod.finish(2, 2, "whole")
    assert code == 0, err
    return out, err


@pytest.mark.slow
def test_two_hosts_of_two_devices_do_what_one_device_does_and_one_of_them_speaks(pod, whole):
    out, err = whole
    assert err == ""
    assert out.count("weights, on 4 cpu devices") == out.count("\nwrote ") == 1 and "[1]" not in out
    assert out.count("mesh: data 4 x fsdp 1 x tensor 1 on 4 cpu devices, 2 hosts") == 1
    code, alone, _ = pod.finish(1, 1, "alone")
    assert code == 0
    together, single = (pod.losses(name) for name in ("whole", "alone"))
    assert together == pytest.approx(single, abs=1e-5) and len(together) == EPOCHS * PER_EPOCH
    assert pod.dev_losses("whole") == pytest.approx(pod.dev_losses("alone"), rel=1e-5)
    assert list(pod.dev_losses("whole")) == [7, 14, 21]
    results = [pod.results(name) for name in ("whole", "alone")]
    assert results[0] == results[1]  # scores of the 21 lines of the test set, on 4 devices and on one
    code, _, err = pod.finish(2, 1, "alone", "--split", "test", evaluate=True)
    assert (code, err) == (0, "") and pod.results("alone") == results[0]
    assert re.findall("^  .*->.*$", out, re.M) == re.findall("^  .*->.*$", alone, re.M)


@pytest.mark.exhaustive
def test_pods_killed_and_started_in_other_numbers_see_every_example_once_an_epoch(pod, whole):
    killed_again_and_again(pod, "killed", [(1, 2, 11)], delay=0)


SPLIT = {
    "2x1": (2, 1, "--train.mesh.tensor", "2"),
    "2x2": (2, 2, "--train.mesh.tensor", "4"),
    "2x3": (2, 3, "--train.mesh.tensor", "2"),  # each host holds two of three shards of the rows: they share one
    "4x1": (4, 1, "--train.mesh.fsdp", "2", "--train.mesh.tensor", "2"),
}


@zoo.each(SPLIT, "name", quick=(), rare=("2x2", "2x3", "4x1"))
def test_hosts_that_split_products_go_on_and_evaluate_as_one_device_does(pod, whole, name):
    """A tensor axis that spans hosts: the hosts of a group hold the same rows and save their shards together."""
    processes, devices, *mesh = SPLIT[name]
    kills = [(1, 2, 6), (processes, devices, 11, *mesh)]  # first a pod of another size, then as the last one
    killed_again_and_again(pod, f"split-{name}", kills, delay=0, last=SPLIT[name])
    before = pod.results(f"split-{name}")
    code, _, err = pod.finish(processes, devices, f"split-{name}", "--split", "test", evaluate=True)
    assert (code, err) == (0, "") and pod.results(f"split-{name}") == before


@pytest.mark.slow
def test_two_hosts_that_count_as_two_slices_split_within_each_and_do_the_same(pod, whole, tmp_path):
    two = Pod(tmp_path)
    slices = "from s2sjax.training import mesh; mesh.slice_of = lambda device: device.process_index"
    two.page.write_text(f"{PAGE}\n{slices}\n")
    code, out, err = two.finish(2, 2, "slices", "--train.mesh.fsdp", "2")
    assert (code, err) == (0, "") and "mesh: data 2 x fsdp 2 x tensor 1 on 4 cpu devices, 2 hosts" in out
    assert two.losses("slices") == pytest.approx(pod.losses("whole"), abs=1e-5)
    code, _, err = two.finish(2, 2, "never", "--train.mesh.fsdp", "4")
    assert code == 2 and "the 2 slices have 2 devices each, and only data may cross slices" in err


@pytest.mark.exhaustive
def test_so_do_pods_killed_at_random(pod, whole):
    kills = [(2, 4, 5), (1, 2, 9), (2, 1, 12), (2, 2, 16), (1, 1, 19)]
    killed_again_and_again(pod, "killed-at-random", kills, delay=0.3)


def killed_again_and_again(pod, out, kills, delay, last=(2, 4, "--train.mesh.fsdp", "2", "--train.mesh.tensor", "4")):
    """Kills pods, each in the given step; the last pod, with another mesh, runs to the end."""
    chance = random.Random(seed_of(5))
    before = pod.life
    for processes, devices, step, *fields in kills:
        # With a delay the pod is killed around an earlier step; if it reaches `step` before that, it waits there.
        process = pod.start(processes, devices, out, *fields, hold=f"{step} all")
        pod.wait_for(step - (delay > 0), process)
        time.sleep(chance.uniform(0, delay))
        for pid in children(process):  # all hosts at once: a power cut
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=WAIT)
        assert process.returncode
    processes, devices, *mesh = last  # with tensor parallelism, also in evaluation: the score is the same
    code, _, err = pod.finish(processes, devices, out, *mesh)
    assert code == 0, err
    results = [pod.results(name) for name in ("whole", out)]
    assert results[0] == results[1]

    seen: dict[int, dict[int, list[int]]] = {}
    for life, step, ids in pod.notes():
        if life > before:
            seen.setdefault(step, {}).setdefault(life, []).extend(ids)
    assert sorted(seen) == list(range(EPOCHS * PER_EPOCH))
    final = {step: lives[max(lives)] for step, lives in seen.items()}
    for epoch in range(EPOCHS):
        steps = range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH)
        assert sorted(number for step in steps for number in final[step]) == list(range(EXAMPLES))
    for step, lives in seen.items():  # earlier runs of a step, with any number of processes, had the same examples
        assert all(set(ids) <= set(final[step]) for ids in lives.values())
    assert pod.losses(out) == pytest.approx(pod.losses("whole"), abs=1e-5)


@pytest.mark.parametrize(
    "lost", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.exhaustive)]
)
def test_a_host_that_dies_ends_the_others_with_one_line_and_the_next_start_goes_on_bit_for_bit(pod, whole, lost):
    """The host is process 0, the coordinator, or another one."""
    out = f"lost-{lost}"
    process = pod.start(2, 2, out, hold=f"8 {lost}")
    pod.wait_for(8, process)
    os.kill(children(process)[lost], signal.SIGKILL)
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGKILL
    assert said_by_us(err) == f"error: process {lost} was ended by SIGKILL: {launch.AGAIN}\n"
    code, said, err = pod.finish(2, 2, out)
    assert code == 0 and "resumed after step" in said, err
    assert pod.losses(out) == pod.losses("whole")
    assert pod.fingerprints(out) == pod.fingerprints("whole")


@zoo.each(["all hosts", "one host"], "told", quick=(), rare=("one host",))
def test_a_sigterm_saves_once_and_ends_all_hosts_well(pod, whole, told):
    out = told.replace(" ", "-")
    process = pod.start(2, 2, out, hold="4 all")
    pod.wait_for(4, process)
    if told == "one host":
        os.kill(children(process)[1], signal.SIGTERM)
    else:
        process.terminate()
    time.sleep(5)  # XLA polls for a SIGTERM once a second; the pod waits meanwhile
    pod.go.touch()
    said, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    (step,) = map(int, re.findall(r"interrupted: saved step (\d+); run the same command again", said))
    assert run.load(pod.folder / out).checkpoints(read_only=True).steps()[-1] == step < EPOCHS * PER_EPOCH
    code, said, err = pod.finish(2, 2, out)
    assert code == 0 and f"resumed after step {step}" in said, err
    assert pod.fingerprints(out) == pod.fingerprints("whole")


@pytest.mark.exhaustive
def test_a_shard_that_one_host_reads_is_torn_and_all_hosts_fall_back_to_the_same_step(pod):
    split = ["--train.mesh.fsdp", "2", "--model.width", "64", "--train.evaluate_every", "0"]
    code, _, err = pod.finish(2, 1, "torn", *split, "--train.steps", "6")
    assert code == 0, err
    shards = [path for path in (pod.folder / "torn/checkpoints/6/params").glob("ocdbt.process_1/d/*")]
    assert shards
    for path in shards:
        os.truncate(path, path.stat().st_size // 2)
    code, said, err = pod.finish(2, 1, "torn", *split, "--train.steps", "7")
    assert code == 0, err
    assert said.count("checkpoint of step 6 is damaged (") == said.count("): falling back to step 3\n") == 1
    assert "resumed after step 3\n" in said and (pod.folder / "torn/checkpoints/6.damaged").is_dir()


@pytest.mark.slow
def test_a_second_pod_is_refused_and_a_ctrl_c_saves_once(pod):
    process = pod.start(2, 1, "pressed", hold="4 all")
    pod.wait_for(4, process)
    go = pod.go
    code, out, err = pod.finish(2, 1, "pressed")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {pod.folder / 'pressed'} is being trained by process ") and err.count("\n") == 1
    process.send_signal(signal.SIGINT)  # only to the launcher: the processes have their own group
    time.sleep(5)  # as above
    go.touch()
    said, err = process.communicate(timeout=WAIT)
    assert (process.returncode, said_by_us(err)) == (130, "")
    (step,) = map(int, re.findall(r"interrupted: saved step (\d+); run the same command again to continue", said))
    assert run.load(pod.folder / "pressed").checkpoints(read_only=True).steps()[-1] == step < EPOCHS * PER_EPOCH


@pytest.mark.exhaustive
def test_a_pod_whose_launcher_is_killed_saves_and_ends(pod):
    process = pod.start(2, 1, "orphaned", hold="4 all")
    pod.wait_for(4, process)
    process.kill()
    time.sleep(5)  # as above
    pod.go.touch()
    process.communicate(timeout=WAIT)  # until the processes have closed its streams
    end = time.monotonic() + WAIT
    while (pod.folder / "orphaned" / "lock").exists():  # until the processes have ended
        assert time.monotonic() < end
        time.sleep(0.1)
    steps = run.load(pod.folder / "orphaned").checkpoints(read_only=True).steps()
    assert steps[-1] in range(5, EPOCHS * PER_EPOCH) and steps[-1] % 3, "not a step that is saved anyway"


SAVE_ALONE = """
import os, signal
import jax
from s2sjax.training.checkpoints import Checkpoints

def save_or_die(self, state, step, *rest, save=Checkpoints.save):
    if step == 6 and jax.process_index() == int(os.environ["DIES"]):
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, state, step, *rest)

Checkpoints.save = save_or_die
"""


@pytest.mark.exhaustive
def test_a_process_that_dies_at_a_save_is_named_and_not_the_checkpoint(pod, monkeypatch):
    monkeypatch.setenv("DIES", "1")
    pod.page.write_text(SAVE_ALONE + PAGE)
    try:
        code, _, err = pod.finish(2, 1, "died")
    finally:
        pod.page.write_text(PAGE)
    assert (code, err) == (128 + signal.SIGKILL, f"error: process 1 was ended by SIGKILL: {launch.AGAIN}\n")
    assert run.load(pod.folder / "died").checkpoints(read_only=True).steps() == [3]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_kept_with_the_examples_of_all_hosts(pod):
    """Each example is listed once, although the hosts share rows."""
    wild = ["--train.learning_rate", "1e38", "--train.clip_norm", "0", "--train.max_skipped", "1"]
    code, _, err = pod.finish(2, 3, "wild", "--train.mesh.tensor", "2", *wild)
    file = pod.folder / "wild" / "nonfinite.jsonl"
    assert code == 2 and err.count("1 non-finite steps in a row") == 1 and f"check the examples in {file}" in err
    (skipped,) = map(json.loads, file.read_text().splitlines())
    seen = [number for _, step, ids in pod.notes(pod.life) if step == skipped["step"] - 1 for number in ids]
    assert sorted(skipped["examples"]) == sorted(seen) and len(seen) == 10  # 120 // (6 + 6) rows, on both hosts


SLOW_TO_READ = """
import time
from s2sjax.data import pairs
from s2sjax.training import multihost

def slowly(data, read=pairs.read):
    time.sleep(40 if multihost.is_leader() else 0)
    return read(data)

pairs.read = slowly
"""


@pytest.mark.exhaustive
def test_the_others_wait_while_process_0_fetches_the_data(pod):
    """They wait longer than the half minute after which a collective of the devices times out."""
    pod.page.write_text(SLOW_TO_READ + PAGE)
    try:
        code, _, err = pod.finish(2, 1, "fetched", "--train.steps", "3")
    finally:
        pod.page.write_text(PAGE)
    assert (code, err) == (0, "")


@pytest.mark.slow
def test_a_mistake_is_told_once_and_ends_all_hosts(pod):
    code, _, err = pod.finish(2, 1, "never", "--train.mesh.fsdp", "3")
    assert code == 2 and "train.mesh splits fsdp 3" in err
    assert not (pod.folder / "never").exists()
    code, _, err = pod.finish(2, 1, "never", "--train.stepz", "3")
    assert code == 2 and err.count("there is no field --train.stepz") == 1


def test_launch_says_what_it_runs(call):
    example = "as in s2sjax launch -p 2 -d 4 -- train experiments/reverse.py"
    for arguments in (["launch"], ["launch", "--"], ["launch", "--", "decode", "runs/x"]):
        code, _, err = call(*arguments)
        assert code == 2 and err.startswith("error: launch runs train or evaluate") and example in err
    code, _, err = call("launch", "train", "experiments/reverse.py")
    assert code == 2 and "launch has no option train: write the command after --" in err
    code, _, err = call("launch", "-p", "0", "--", "train", "x.py")
    assert code == 2 and "'0' is not a whole number that is at least 1" in err


def test_without_anyone_to_meet_the_variables_are_named(call, monkeypatch):
    from s2sjax.training import multihost

    monkeypatch.setenv("JAX_PROCESS_ID", "first")
    with pytest.raises(Exception, match="JAX_PROCESS_ID is 'first': it must be a whole number"):
        multihost.initialize()
    monkeypatch.delenv("JAX_PROCESS_ID")
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: (_ for _ in ()).throw(ValueError("no one")))
    with pytest.raises(Exception, match=r"--distributed cannot reach the other processes \(no one\): set JAX_COORD"):
        multihost.initialize()
