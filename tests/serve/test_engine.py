"""Waiting requests are batched, and each gets its own answers or its own error."""

import threading

import pytest

from s2sjax.errors import UserError
from s2sjax.serve import engine
from s2sjax.serve.engine import Busy, Engine, Stopped


class Recorded:
    """An engine that doubles numbers and refuses 13. Each batch waits for a `step`, or until all are released."""

    def __init__(self, *sizes: int, waiting: int = 100):
        self.batches: list[list[int]] = []
        self.free, self.begun, self.gate = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
        self.engine = Engine(self.answer, sizes or (8,), waiting)
        self.engine.start()

    def answer(self, items):
        self.batches.append(list(items))
        self.begun.release()
        assert self.free.is_set() or self.gate.acquire(timeout=10)
        if 13 in items:
            raise UserError("13 is not allowed")
        return lambda: [2 * item for item in items]

    def hold(self):
        """Keeps the thread busy, so that later requests wait."""
        first = self.engine.submit([0])
        assert self.begun.acquire(timeout=10)
        return first

    def step(self):
        """Ends a batch, and waits for the next one to start."""
        self.gate.release()
        assert self.begun.acquire(timeout=10)

    def let_go(self):
        self.free.set()
        self.gate.release()


@pytest.fixture
def recorded():
    found = Recorded()
    yield found
    found.let_go()
    found.engine.close()


def test_what_waits_together_is_one_batch(recorded):
    first = recorded.hold()
    later = [recorded.engine.submit(items) for items in ([1, 2], [3], [], [4, 5, 6, 7, 8, 9, 10])]
    called = recorded.engine.call(lambda: threading.current_thread().name)
    recorded.let_go()
    assert [future.result(10) for future in (first, *later)] == [[0], [2, 4], [6], [], [8, 10, 12, 14, 16, 18, 20]]
    assert recorded.batches == [[0], [1, 3, 4, 2, 5, 6, 7, 8], [9, 10]]  # in turns
    assert called.result(10) == "engine"
    assert (recorded.engine.requests, recorded.engine.items, recorded.engine.batches) == (6, 11, 3)


def test_a_small_request_waits_for_one_slice_of_a_large_one(monkeypatch):
    """While others arrive, a large request gets one turn at a time, and new requests are decoded between two turns."""
    monkeypatch.setattr(engine, "QUIET", 1e9)
    recorded = Recorded(1, 4, 16, waiting=2000)
    recorded.engine.turn = 4
    recorded.hold()
    large = recorded.engine.submit(range(100, 1100))
    small = [recorded.engine.submit([number]) for number in (1, 2)]
    recorded.step()
    assert recorded.batches[-1] == [100, 1, 2, 101]  # all are new
    recorded.step()
    assert [future.result(10) for future in small] == [[2], [4]]
    assert recorded.batches[-1] == [102, 103, 104, 105]
    small = [recorded.engine.submit([number]) for number in range(1, 13)]
    recorded.step()
    assert recorded.batches[-1] == list(range(1, 13))  # only the new ones, however large the turn
    late = recorded.engine.submit([50])
    recorded.step()
    assert recorded.batches[-1] == [106, 50, 107, 108]  # then it is the turn of the large one
    recorded.let_go()
    assert [future.result(10) for future in small] == [[2 * number] for number in range(1, 13)]
    assert late.result(10) == [100] and large.result(10) == [2 * number for number in range(100, 1100)]
    assert {len(batch) for batch in recorded.batches[5:]} == {4, 3}  # 991 lines
    recorded.engine.close()


def test_alone_a_large_request_gets_whole_programs(monkeypatch):
    monkeypatch.setattr(engine, "QUIET", 0)
    recorded = Recorded(1, 4, 16)
    recorded.engine.turn = 4
    recorded.hold()
    large = recorded.engine.submit(range(100, 132))
    recorded.let_go()
    assert len(large.result(10)) == 32 and [len(batch) for batch in recorded.batches] == [1, 16, 16]
    recorded.engine.close()


def test_many_small_requests_fill_programs():
    many = Recorded(1, 4, 16)
    many.engine.turn = 4
    many.hold()
    futures = [many.engine.submit([number]) for number in range(20, 51)]
    many.let_go()
    assert [future.result(10) for future in futures] == [[2 * number] for number in range(20, 51)]
    # 31 are 16, which fill a program, then 15, with one row of padding
    assert [len(batch) for batch in many.batches] == [1, 16, 15]
    many.engine.close()


@pytest.mark.parametrize(
    ("count", "taken"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (7, 4), (8, 8), (15, 15), (99, 16)]
)
def test_at_most_half_of_a_program_is_padding(recorded, count, taken):
    assert Engine(recorded.answer, (1, 4, 16), 100)._fit(count) == taken
    assert recorded.engine._fit(count) == min(count, 8)  # one size: there is no smaller program


def test_where_many_wait_the_next_batch_begins_before_the_last_is_answered():
    """The device computes while answers are prepared. If fewer wait, an answer does not wait for the next batch."""
    events = []

    def begin(items):
        events.append(("begin", items[0]))
        return lambda: (events.append(("finish", items[0])), items)[1]

    found = Engine(begin, (1, 4), 100)
    futures = [found.submit([number]) for number in range(10)]
    found.start()
    assert [future.result(10) for future in futures] == [[number] for number in range(10)]
    found.close()
    assert events == [
        ("begin", 0), ("begin", 4), ("finish", 0), ("finish", 4), ("begin", 8), ("finish", 8),
    ]  # fmt: skip


def test_what_nobody_waits_for_is_not_decoded():
    recorded = Recorded(1, 4)
    recorded.hold()
    given_up, other = recorded.engine.submit([1] * 50), recorded.engine.submit([2])
    assert given_up.cancel()
    recorded.let_go()
    assert other.result(10) == [4] and recorded.batches == [[0], [2]]
    recorded.engine.close()


def test_a_request_that_is_refused_spoils_no_other(recorded):
    recorded.hold()
    good, bad = recorded.engine.submit([1]), recorded.engine.submit([13])
    recorded.let_go()
    assert good.result(10) == [2]
    with pytest.raises(UserError, match="13 is not allowed"):
        bad.result(10)
    assert recorded.engine.submit([5]).result(10) == [10]


def test_a_mistake_of_ours_is_printed_and_the_engine_goes_on(recorded, capfd):
    recorded.let_go()
    with pytest.raises(ZeroDivisionError):
        recorded.engine.call(lambda: 1 // 0).result(10)
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert recorded.engine.submit([5]).result(10) == [10]


def test_too_much_is_refused_and_a_stop_ends_what_waits():
    recorded = Recorded(waiting=3)
    first = recorded.hold()
    waiting = recorded.engine.submit([1, 2])
    with pytest.raises(Busy):
        recorded.engine.submit([3, 4])
    recorded.engine.close(patience=0)
    with pytest.raises(Stopped):
        waiting.result(10)
    with pytest.raises(Stopped):
        recorded.engine.submit([1])
    recorded.let_go()
    assert first.result(10) == [0]
