"""The benchmark of sweeps: its programs, output, files and speedups."""

import csv
import json
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from s2sjax import config
from s2sjax.bench import peers, sweep_speed, timing
from s2sjax.core.backend import device

LUONG = config.Luong(width=8, embedding_size=4, layers=1, dropout=0.1)
CASE = sweep_speed.Case(LUONG, config.Train(label_smoothing=0.1), (9, 12), (5, 4), 3, (1, 2))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(sweep_speed, "SIZES", {"small": {"Luong 8": CASE, "Luong 9": CASE}})
    monkeypatch.setattr(timing, "measure_ceilings", lambda dtype: timing.Ceilings(1e9, 1e9))
    monkeypatch.setattr(peers, "remarks", lambda size: [])


class Fake:
    """A trainer whose steps take the given seconds, one after the other, on a clock of its own."""

    memory, compile_seconds, tokens = 2**30, 7.0, 100

    def __init__(self, clock, *spans):
        self.clock, self.spans, self.steps = clock, list(spans), []

    def __call__(self, steps=1):
        self.steps.append(steps)
        self.clock.now += steps * (self.spans.pop(0) if len(self.spans) > 1 else self.spans[0])


@pytest.fixture
def trainers(monkeypatch):
    """Alone, and 4 together; 16 do not fit in memory. The first call finds the steps of a round of 0.3 s."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    for module in (peers, timing):
        monkeypatch.setattr(module, "time", clock)
    found = {0: Fake(clock, 0.1), 4: Fake(clock, 0.15, 0.1, 0.2, 0.8)}

    def make(case, members):
        if members == 16:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes")
        return found[members]

    monkeypatch.setattr(sweep_speed, "Trainer", make)
    return found


def test_alone_and_together(tiny, trainers, call, tmp_path):
    """The speedup of M members: M times the seconds alone, divided by those together, the median of all rounds."""
    given = "--only", "8", "--rounds", 3, "--members", "4,16", "--dtype", "float32", "--out", tmp_path / "new"
    code, out, err = call("bench", "sweep", *given)
    assert (code, err) == (0, "")
    first, heading, case, alone, together, left_out, wrote = out.splitlines()
    assert first.startswith("small: training steps alone and in a sweep, on ") and "jax " in first
    assert re.split(" {2,}", heading.strip()) == [
        "ms/step", "spread", "tokens/s", "MFU", "memory", "compile s", "each training is faster by",
    ]  # fmt: skip
    assert case == "Luong 8, float32"
    row = re.split(" {2,}", alone.strip())
    assert row[:4] == ["alone", "100", "0%", "1.00k"] and row[-3:] == ["1.1 GB", "7.0", "-"]
    row = re.split(" {2,}", together.strip())
    assert row[:4] == ["4 together", "200", "350%", "500"] and row[-3:] == ["1.1 GB", "7.0", "2.00x"]
    assert left_out == "  16 together is left out: it does not fit in the memory of this device"
    assert (trainers[0].steps[1:], trainers[4].steps[1:]) == ([3] * 3, [2] * 3)
    assert wrote == f"wrote {tmp_path / 'new' / 'sweep.csv'}, {tmp_path / 'new' / 'sweep.json'}"
    found = json.loads((tmp_path / "new" / "sweep.json").read_text())
    assert {"date", "command", "device", "versions"} <= found["environment"].keys()
    one, four = found["rows"]
    assert (one["size"], one["model"], one["members"], four["members"]) == ("small", "Luong 8", 0, 4)
    assert four["flops"] == 4 * one["flops"] > 0
    assert four["utilisation"] == pytest.approx(four["flops"] / 0.2 / 1e9)
    with open(tmp_path / "new" / "sweep.csv", encoding="utf-8") as file:
        line, _ = csv.DictReader(file)
    assert line.keys() == one.keys() and line["ratio"] == ""


@pytest.mark.slow
def test_a_member_does_the_steps_of_a_run(tiny, monkeypatch):
    """The programs are those of `train` and `sweep`: same options, and equal parameters after some steps."""
    given, compile_with = [], device.compile_with
    monkeypatch.setattr(
        device, "compile_with", lambda lowered, options, note: (given.append(options), compile_with(lowered, None))[1]
    )
    alone, together = sweep_speed.Trainer(CASE, 0), sweep_speed.Trainer(CASE, 2)
    alone(2), together(2)
    assert together.memory > alone.memory > 0 and alone.compile_seconds > 0
    assert given == [device.compiler_options()] * 2 and alone._state.step == 3
    assert [*together._state.step] == [3, 3]
    for one, several in zip(jax.tree.leaves(alone._state.params), jax.tree.leaves(together._state.params)):
        np.testing.assert_allclose(several[0], one, atol=1e-6)
        assert not np.allclose(several[1], one, atol=1e-6)
    batches = [sweep_speed.make_batch(CASE, member) for member in (0, 1)]
    assert together.tokens > alone.tokens > 0 and not np.array_equal(*(batch["source"] for batch in batches))


def test_what_cannot_be_measured_is_refused_before_any_work(tiny, call, monkeypatch):
    monkeypatch.setattr(sweep_speed, "measure", None)
    choices = "choose from Luong 8; Luong 9"
    assert call("bench", "sweep", "--only", "x")[2] == f"error: --only 'x' matches no model: {choices}\n"
    assert "--members" in call("bench", "sweep", "--members", "0")[2]
    assert call("bench", "sweep", "--dtype", "float16")[2].startswith("error: Train.dtype is 'float16': ")
    for option, owners in (("--members", "sweep"), ("--dtype", "layers and sweep")):
        value = {"--members": "2", "--dtype": "float32"}[option]
        error = f"error: {option} is an option of bench {owners}: leave it out\n"
        assert call("bench", "train", option, value) == (2, "", error)
