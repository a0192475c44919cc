"""Repeats long enough to be measured, compilation without a cache, and the ceilings of a device."""

import jax
import jax.numpy as jnp
import pytest

from s2sjax.bench import timing


class Clock:
    """Time passes only while work is done: `each` seconds per call."""

    def __init__(self, monkeypatch, each):
        self.now, self.each, self.calls = 0.0, each, []
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)

    def once(self, calls=1):
        self.calls.append(calls)
        self.now += calls * self.each


def test_a_repeat_is_long_enough(monkeypatch):
    short = Clock(monkeypatch, 1e-5)
    assert timing.seconds(short.once) == pytest.approx(1e-5)
    assert short.calls[-1] * short.each >= timing.SHORTEST > short.calls[-2] * short.each
    long = Clock(monkeypatch, 3.0)
    assert timing.seconds(long.once) == 3.0
    assert long.calls == [1]


def test_a_timing_is_a_median_with_its_spread(monkeypatch):
    found = timing.Timing.of([3.0, 1.0, 2.0, 2.5, 10.0])
    assert found == (2.5, 1.0, 10.0) and found.spread == 3.6
    clock = Clock(monkeypatch, 1.0)
    assert timing.measure(clock.once, 3) == (1.0, 1.0, 1.0)
    assert clock.calls == [1] * 4  # once to warm up


@pytest.mark.parametrize("on_cpu", [True, False])
def test_an_accelerator_is_waited_for_once_a_repeat(on_cpu, monkeypatch):
    done = []
    monkeypatch.setattr(timing.device, "on_cpu", lambda: on_cpu)
    timing.repeated(lambda: done.append("start"), lambda _: done.append("wait"))(3)
    assert done == (["start", "wait"] * 3 if on_cpu else ["start"] * 3 + ["wait"])


def test_a_program_is_compiled_without_the_cache(monkeypatch):
    seen = []
    listen = lambda event, **_: seen.append(event)
    jax.monitoring.register_event_listener(listen)
    options = jax.config
    before = options.jax_enable_compilation_cache
    program, span = timing.compile(jax.jit(lambda x: x @ x), jnp.ones((4, 4)))
    assert options.jax_enable_compilation_cache is before
    assert span > 0 and program(jnp.ones((4, 4)))[0, 0] == 4
    assert "/jax/compilation_cache/task_disabled_cache" in seen
    assert timing.peak_memory(program) >= 2 * 4 * 4 * 4


def test_ceilings_are_positive(monkeypatch):
    monkeypatch.setattr(timing, "LARGEST_PRODUCT", 1024)
    monkeypatch.setattr(timing, "LARGEST_COPY", (2**16, 2**16))
    found = timing.measure_ceilings(jnp.float32)
    assert found.flops > 0 and found.bytes > 0
