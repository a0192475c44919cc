"""The time of a run: every second of its wall clock is counted once, over all its starts."""

import json
import random

import pytest

from s2sjax.training import goodput
from s2sjax.training.goodput import Clock
from s2sjax.training.run_log import Log


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test advances."""
    now = [1000.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def let(seconds: float) -> float:
        now[0] += seconds
        return now[0]

    return let


def numbers(loss=1.0):
    return {"loss": (loss, 1.0), "grad_norm": 1.0, "skipped": 0}


def life(folder, let, begin, end, partial, *, killed=False, every=1):
    """One start: 4 s to start, 10 s of compilation, 2 s a step, 1 s for its batch. Returns what a save then stores."""
    log = Log(folder, steps=100, every=every, began=let(0))
    let(4)
    log.start(begin, partial)
    with log.timed("compile"):
        let(10)
    for step in range(begin + 1, end + 1):
        with log.clock.spent("input"):
            let(1)
        let(2)
        log.step(step, numbers())
    saved = json.loads(json.dumps(log.partial()))
    if not killed:
        with log.timed("save"):
            let(3)
        log.end()
        log.close()
    elif log._heartbeat is not None:
        log._heartbeat.__exit__()
    return saved


def test_every_second_belongs_to_one_kind_also_when_blocks_are_nested(clock):
    rng, made = random.Random(0), Clock(began=990.0)
    total = 10.0

    def work(depth):
        nonlocal total
        for _ in range(3):
            total += (seconds := rng.random())
            clock(seconds)
            with made.spent(rng.choice(["input", "save", "compile"]), unless=lambda: rng.random() < 0.5):
                if depth:
                    work(depth - 1)

    work(3)
    assert sum(made.seconds().values()) == pytest.approx(total)
    assert made.seconds()["start"] > 10


def test_a_wait_for_a_batch_during_a_step_is_part_of_the_step(clock):
    made = Clock()
    made.turn("steps")
    for computing in (True, False):
        with made.spent("input", unless=lambda computing=computing: computing):
            clock(5)
    assert made.seconds() == {"start": 0, "steps": 5, "input": 5}


def test_an_error_ends_its_block(clock):
    made = Clock()
    with pytest.raises(ZeroDivisionError), made.spent("save"):
        clock(2)
        1 / 0  # noqa: B018
    clock(1)
    assert made.seconds() == {"start": 1, "save": 2}


def test_a_whole_run_is_told_and_written(tmp_path, clock, capsys):
    life(tmp_path, clock, 0, 10, {})
    assert goodput.read(tmp_path) == {"steps": 20, "compile": 10, "input": 10, "save": 3, "start": 4}
    assert capsys.readouterr().out.splitlines()[-1] == (
        "steps took 43% of 47 s; compiling 21%, input 21%, saving 6%, starting 9%"
    )
    first, *_, last = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (first["seconds"], first["input_seconds"], first["compile_seconds"]) == (3, 1, 10)
    assert (last["seconds"], last["input_seconds"]) == (3, 1)


def test_steps_that_are_computed_again_are_time_of_the_restart(tmp_path, clock):
    """Killed after step 9 with a checkpoint of step 5, then killed before the next one, then stopped with a save."""
    saved = life(tmp_path, clock, 0, 5, {})
    before = goodput.read(tmp_path)
    life(tmp_path, clock, 5, 9, saved, killed=True)
    life(tmp_path, clock, 5, 7, saved, killed=True)
    life(tmp_path, clock, 5, 8, saved)
    found = goodput.read(tmp_path)
    assert sum(before.values()) == 4 + 10 + 5 * 3 + 3 and before["steps"] == 10
    assert (found["steps"], found["input"]) == (8 * 2, 8 * 1), "each step that counts is counted once"
    assert found["restart"] == 3 * 4 + (4 + 2) * 3, "three more starts, and six steps in vain"
    assert (found["start"], found["compile"], found["save"]) == (4, 40, 6)
    assert sum(found.values()) == 4 * (4 + 10) + (5 + 4 + 2 + 3) * 3 + 2 * 3
    assert sum(goodput.percentages(found).values()) == 100


def test_without_a_checkpoint_all_steps_were_in_vain(tmp_path, clock):
    life(tmp_path, clock, 0, 4, {}, killed=True)
    life(tmp_path, clock, 0, 4, {})
    found = goodput.read(tmp_path)
    assert (found["steps"], found["restart"]) == (8, 4 + 4 * 3)


def test_a_checkpoint_of_an_older_version_loses_nothing(tmp_path, clock):
    saved = life(tmp_path, clock, 0, 5, {})
    life(tmp_path, clock, 5, 6, {name: value for name, value in saved.items() if name != "time"})
    assert goodput.read(tmp_path)["steps"] == 12 and goodput.read(tmp_path)["restart"] == 4


def test_a_run_that_was_finished_before_says_and_counts_nothing(tmp_path, clock, capsys):
    saved = life(tmp_path, clock, 0, 5, {})
    before = (tmp_path / goodput.FILE).read_bytes()
    capsys.readouterr()
    life(tmp_path, clock, 5, 5, saved)
    assert capsys.readouterr().out == "" and (tmp_path / goodput.FILE).read_bytes() == before


def test_between_lines_the_time_is_written_every_ten_seconds(tmp_path, clock):
    life(tmp_path, clock, 0, 9, {}, killed=True, every=50)
    written = sum(goodput.read(tmp_path).values())
    assert 4 + 10 + 9 * 3 - 12 <= written <= 4 + 10 + 9 * 3


def test_percentages_add_up_to_100():
    assert goodput.percentages({}) == {} and goodput.percentages({"steps": 0.0}) == {}
    assert goodput.percentages({"steps": 1, "input": 1, "save": 1}) == {"steps": 34, "input": 33, "save": 33}
    rng = random.Random(0)
    for _ in range(200):
        seconds = {kind: rng.random() ** 8 for kind in goodput.KINDS}
        found = goodput.percentages(seconds)
        assert sum(found.values()) == 100
        assert all(abs(found[kind] - 100 * each / sum(seconds.values())) < 1 for kind, each in seconds.items())
    assert goodput.describe({}) == "steps took 0% of 0 s"


def test_a_damaged_file_is_that_of_no_run(tmp_path):
    (tmp_path / goodput.FILE).write_text("{")
    assert goodput.read(tmp_path) == {} == goodput.read(tmp_path / "none")
