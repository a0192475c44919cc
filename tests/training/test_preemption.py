"""A signal is recorded wherever it arrives, and never escapes as an internal exception."""

import signal
import sys
from itertools import count

import pytest

from s2sjax.training import preemption
from s2sjax.training.preemption import Preemption


def signalled_at(end: int, numbers: tuple[int, ...], watched: Preemption):
    """Calls watched.interruptible(work); the signals arrive at instruction `end` of preemption.py, or of work.

    Returns (result, interrupted, whether the signals were sent).
    """
    instructions, sent = count(), []

    def work():
        return "score"

    def arrive():
        for number in numbers:
            signal.raise_signal(number)

    def trace(frame, event, _):
        if frame.f_code.co_filename not in (preemption.__file__, __file__) or frame.f_code is arrive.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(instructions) == end:
            sent.append(frame.f_code.co_name)
            arrive()
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        result, interrupted = watched.interruptible(work)
    finally:
        sys.settrace(former)
    return result, interrupted, bool(sent)


@pytest.mark.parametrize(
    "numbers", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGINT)], ids=["SIGTERM", "SIGINT", "both"]
)
def test_a_signal_at_any_instruction_of_an_interruptible_block_is_noted(numbers):
    """Before the block, in it, or between its end and the end of the call: the state can then be saved."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    outcomes = []
    try:
        with Preemption() as watched:  # Python 3.12 reports no instructions the first time it traces a function
            signalled_at(-1, numbers, watched)
        for end in count():
            with Preemption() as watched:
                result, interrupted, sent = signalled_at(end, numbers, watched)
                assert watched.reached(1) is sent, "it is noted"
                assert result == (None if interrupted else "score")
                assert interrupted <= sent
            outcomes.append(interrupted)
            if not sent:
                break
    finally:
        signal.signal(signal.SIGINT, former)
    assert True in outcomes[:-1] and False in outcomes[:-1], "it came in the block, and after it"


def test_a_block_is_not_begun_after_a_signal():
    with Preemption() as watched:
        signal.raise_signal(signal.SIGTERM)
        assert watched.interruptible(lambda: pytest.fail("it was begun")) == (None, True)


def test_an_error_of_the_block_is_its_own_and_the_signal_after_it_is_only_noted():
    with Preemption() as watched:
        with pytest.raises(ZeroDivisionError):
            watched.interruptible(lambda: 1 / 0)
        signal.raise_signal(signal.SIGTERM)
        assert watched.reached(1)
