"""The log: means are over tokens, not over batches; each step is written at most once."""

import contextlib
import errno
import itertools
import json
import os
import sys
import threading
import time

import pytest

from s2sjax.cli.main import _explain
from s2sjax.evaluate.prediction.progress_listener import count, counting
from s2sjax.files import replace_file
from s2sjax.training import heartbeat
from s2sjax.training.heartbeat import Heartbeat
from s2sjax.training.run_log import Log, remove_after, remove_samples_after


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch):
    """Stops the heartbeat of logs that a test does not close, which would print into the next test."""
    started: list[Log] = []
    start = Log.start
    monkeypatch.setattr(Log, "start", lambda self, *values: (started.append(self), start(self, *values))[1])
    yield
    for log in started:
        if log._heartbeat is not None:
            log._heartbeat.__exit__()


def numbers(total, weight, norm=1.0):
    return {"loss": (total, weight), "grad_norm": norm, "skipped": 0}


def test_the_mean_is_over_tokens_and_told_every_so_many_steps(tmp_path, capsys):
    log = Log(tmp_path, steps=3, every=2)
    log.start(0)
    log.step(1, numbers(30.0, 10.0))
    log.step(2, numbers(10.0, 30.0, norm=2.0))
    log.step(3, numbers(5.0, 1.0))
    log.close()
    first, last = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (first["step"], first["loss"], first["grad_norm"]) == (2, 1.0, 2.0)
    assert first["tokens_per_second"] == pytest.approx(40 / first["seconds"])
    assert (last["step"], last["loss"]) == (3, 5.0), "the last step is told though 3 is odd"
    told = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[:2] for line in told] == [["step 2/3", "loss 1"], ["step 3/3", "loss 5"]]


def test_time_set_aside_does_not_slow_the_steps(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    log = Log(tmp_path, steps=9, every=1)
    log.start(0)
    with log.timed("compile"):
        clock[0] += 50
    clock[0] += 2
    log.step(1, numbers(1.0, 10.0))
    log.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["seconds"], line["tokens_per_second"], line["compile_seconds"]) == (2, 5, 50)


def test_cutting_keeps_the_past_and_drops_the_future_and_torn_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "loss": 3.0}\n{"step": 3}\n{"step": 2, "score": "per"}\n{"st')
    remove_after(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2, "loss": 3.0}\n{"step": 2, "score": "per"}\n'
    remove_after(tmp_path / "absent.jsonl", 2)
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_samples_of_a_step_that_is_run_again_are_cut(tmp_path, capsys):
    for start in (0, 20):
        log = Log(tmp_path, steps=40, every=10)
        log.start(start)
        for step in (10, 20, 30, 40):
            if step > start:
                log.samples(step, [f"  b a  ->  {start}  ✓"])
        log.close()
    path = tmp_path / "samples.txt"
    blocks = [f"step {step}\n  b a  ->  {start}  ✓\n" for step, start in ((10, 0), (20, 0), (30, 20), (40, 20))]
    assert path.read_text() == "".join(blocks)
    assert capsys.readouterr().out.count("  b a  ->  20  ✓\n") == 2
    path.write_text("".join(blocks[:2]) + "step 3")
    remove_samples_after(path, 20)
    assert path.read_text() == "".join(blocks[:2]), "a heading that a kill tore apart"


def test_tensorboard_events_and_scores(tmp_path, capsys):
    log = Log(tmp_path, steps=5, every=1, names=("tensorboard",))
    log.start(0)
    log.step(1, numbers(1.0, 2.0))
    log.scores(1, "per", 12.5, {"exact": 70.0, "samples": ["a", "b"]})
    log.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert events.stat().st_size > 100
    assert "step 1  per 12.5  exact 70\n" in capsys.readouterr().out
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1])
    assert line == {"step": 1, "score": "per", "per": 12.5, "exact": 70.0, "samples": ["a", "b"]}


def test_on_a_terminal_one_line_lives(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    log = Log(None, steps=4, every=1)
    log.start(2)
    log.step(3, numbers(3.0, 2.0))
    log.print("hello [there]")
    log.step(4, numbers(2.0, 2.0))
    log.close()
    told = capsys.readouterr().out
    assert "hello [there]" in told and "4/4" in told and "loss 1 " in told
    assert not list(tmp_path.iterdir())


def test_another_process_neither_speaks_nor_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    log = Log(tmp_path, steps=1, every=1, names=("tensorboard",))
    log.start(0)
    log.step(1, numbers(1.0, 1.0))
    log.print("hello")
    log.scores(1, "per", 1.0)
    log.samples(1, ["  a  ->  b"])
    assert log.nonfinite(1, float("nan"), 1.0, [3]) == tmp_path / "nonfinite.jsonl"  # process 0 writes it
    log.close()
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------- by time, not by steps


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test advances."""
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def let(seconds: float) -> None:
        now[0] += seconds

    return let


@pytest.fixture
def beats(monkeypatch):
    """Heartbeats without threads: the test calls `beat()`."""
    made: list[Heartbeat] = []
    monkeypatch.setattr(Heartbeat, "__enter__", lambda self: made.append(self) or self)
    monkeypatch.setattr(Heartbeat, "__exit__", lambda *_: None)
    return made


def test_after_ten_seconds_of_silence_a_line_says_what_is_going_on(tmp_path, clock, beats, capsys):
    log = Log(tmp_path, steps=200, every=50)
    log.start(0)
    told = lambda: beats[0].beat() and capsys.readouterr().out
    with log.timed("compile"):
        clock(9)
        assert told() == ""
        clock(1)
        assert told() == "step 0/200  compiling the train step: 10 s so far\n"
        clock(9)
        assert told() == "", "it has just spoken"
    clock(6)
    assert told() == "step 0/200  running: 6 s so far\n", "a step may take longer than ten seconds"
    clock(6)
    log.step(1, numbers(30.0, 10.0))
    log.step(2, numbers(10.0, 30.0))
    clock(4)
    assert told() == "step 2/200  loss 1  2 tokens/s  26 min left\n"
    with log.timed("evaluate"):
        clock(10)
        log.count(40, 100)
        assert told() == "step 2/200  evaluating dev: 40 of 100, 15 s left\n"
    clock(7)
    log.print("a line")
    clock(7)
    assert told() == "a line\n", "a line of any kind ends the silence"
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["time.json"], "they are printed, and nothing else"


def test_metrics_do_not_depend_on_heartbeats(tmp_path, clock, beats, capsys):
    written = []
    for name, beating in (("quiet", False), ("loud", True)):
        log = Log(tmp_path / name, steps=4, every=2)
        log.start(0)
        for step in range(1, 5):
            clock(20)
            if beating:
                beats[-1].beat()
            log.step(step, numbers(step, 3.0))
        log.close()
        written.append((tmp_path / name / "metrics.jsonl").read_text())
    assert written[0] == written[1] and capsys.readouterr().out.count("left\n") == 2


def test_the_heartbeat_has_a_thread_that_ends(monkeypatch):
    said, ticks = threading.Event(), itertools.count(step=heartbeat.SILENCE)
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    with Heartbeat(lambda text: said.set(), lambda: "at work") as beating:
        assert said.wait(60)
    assert not beating._thread.is_alive()


def test_a_closed_pipe_ends_the_heartbeat_without_a_traceback(monkeypatch):
    said, ticks = threading.Event(), itertools.count(step=heartbeat.SILENCE)
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))

    def say(text: str) -> None:
        said.set()
        raise BrokenPipeError

    with Heartbeat(say, lambda: "at work") as beating:
        assert said.wait(60)
        beating._thread.join(60)
        assert not beating._thread.is_alive()


def test_work_outside_of_the_loop_is_told_too(clock, beats, capsys):
    with heartbeat.working("evaluating test") as work, counting(work.count):
        clock(20)
        beats[0].beat()
        count(1000, 5000)
        clock(20)
        beats[0].beat()
    told = ["evaluating test: 20 s so far", "evaluating test: 1,000 of 5,000, 3 min left"]
    assert capsys.readouterr().out.splitlines() == told
    count(1, 2)  # without effect outside of `counting`


def test_on_a_terminal_the_bar_says_what_is_going_on(clock, beats, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    log = Log(None, steps=4, every=2)
    log.start(0)
    shown = lambda: log._live.tasks[0].description
    with log.timed("compile"):
        assert shown() == "compiling the train step"
        clock(12)
        beats[0].beat()
        assert shown() == "compiling the train step: 12 s so far"
    assert shown() == ""
    clock(10)
    log.step(1, numbers(6.0, 2.0))
    beats[0].beat()
    assert shown() == "loss 3  0 tokens/s", "before the first line of log_every"
    with log.timed("evaluate"):
        clock(3)
        log.count(30, 60)
        assert shown() == "evaluating dev: 30 of 60, 3 s left"
    log.close()
    with heartbeat.working("evaluating test") as work:
        work.count(3, 5)
    assert "evaluating test" in capsys.readouterr().out


def test_another_process_has_no_heartbeat(monkeypatch, beats):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    log = Log(None, steps=1, every=1)
    log.start(0)
    with log.timed("compile"), heartbeat.working("reading the data"):
        log.count(1, 2)
    log.close()
    assert beats == []


def test_a_full_disk_is_told_with_the_file_and_what_was_written_stays(tmp_path, capsys):
    def fill(name):
        """Makes every write to the file fail as on a full disk."""
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to("/dev/full")

    log = Log(tmp_path, steps=3, every=1)
    log.start(0)
    writes = {
        "metrics.jsonl": lambda: log.step(1, numbers(1.0, 2.0)),
        "samples.txt": lambda: log.samples(1, ["  a  ->  b"]),
        "nonfinite.jsonl": lambda: log.nonfinite(1, 1.0, 1.0, [3]),
    }
    for name, write in writes.items():
        fill(name)
        with pytest.raises(OSError) as caught:
            write()
        assert _explain(caught.value) == (
            f"{tmp_path / name}: No space left on device: free some space, and run the same command again"
        )
    (tmp_path / "config.json").write_text("before")
    fill(".config.json.partial")
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'config.json'}'"):
        replace_file(tmp_path / "config.json", "after")
    assert (tmp_path / "config.json").read_text() == "before"


def test_events_that_cannot_be_written_do_not_hide_what_ended_the_run(tmp_path, monkeypatch, capsys):
    def full(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = Log(tmp_path, steps=3, every=1, names=("tensorboard",))
    log.start(0)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError), contextlib.closing(log):
        patch.setattr("tensorboardX.SummaryWriter.close", full)
        1 / 0  # noqa: B018
    told = "tensorboard: No space left on device: the training goes on without it\n"
    assert capsys.readouterr().out == told


def test_a_run_goes_on_when_its_events_cannot_be_written(tmp_path, monkeypatch):
    """The thread of tensorboardX ends at the first error, and its queue is no longer emptied."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ended = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: ended.set())
    log = Log(tmp_path, steps=100, every=1, names=("tensorboard",))
    log.start(0)
    log.step(1, numbers(1.0, 1.0))
    while not log._feeds[0]._lines.empty():  # then the events are open
        time.sleep(0.01)
    monkeypatch.setattr("tensorboardX.event_file_writer.EventsWriter.write_event", full)
    log.step(2, numbers(1.0, 1.0))
    assert ended.wait(60)
    for step in range(3, 20):
        log.step(step, numbers(1.0, 1.0))
    log.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 19
