"""Measurement of times, compile times and the ceilings of a device, for all benchmarks.

A repeat calls the work often enough to last some milliseconds, and then waits for the device. A timing is the median of
several repeats, with the fastest and the slowest. Compilation is never part of it.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

from s2sjax.core.backend import device

SHORTEST = 0.02
"""minimum duration of a repeat in seconds"""
LARGEST_COPY = 2**30, 2**28
"""size of the copied array in bytes, on an accelerator and on a CPU: more than any cache holds"""
LARGEST_PRODUCT = 16_384
"""number of rows of the matrices of the largest product"""

Once = Callable[..., object]
"""once(calls=1) does the work `calls` times, one after the other, and waits until all of it is done"""


class Timing(NamedTuple):
    """The seconds per call: the median of all repeats, the fastest and the slowest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, spans: Sequence[float]) -> "Timing":
        return cls(statistics.median(spans), min(spans), max(spans))

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median."""
        return (self.high - self.low) / self.median

    def fields(self) -> dict[str, float]:
        """The timing as fields of a row."""
        return {"seconds": self.median, "fastest": self.low, "slowest": self.high, "spread": self.spread}


def repeated(start: Callable[[], Any], wait: Callable[[Any], object] = jax.block_until_ready) -> Once:
    """Makes a `Once` of `start`, which begins the work, and `wait`, which waits for its result.

    An accelerator gets all calls of a repeat at once, as in training, and works while Python prepares the next call. A
    CPU would run several calls at the same time, so that each call waits there.
    """

    def once(calls: int = 1) -> None:
        for call in range(calls):
            result = start()
            if device.on_cpu() or call == calls - 1:
                wait(result)

    return once


def seconds(once: Once) -> float:
    """Measures the seconds per call in one repeat. A repeat that is too short is repeated with more calls."""
    calls = 1
    while True:
        begin = time.perf_counter()
        once(calls)
        span = time.perf_counter() - begin
        if span >= SHORTEST:
            return span / calls
        calls = math.ceil(calls * min(100, 1.2 * SHORTEST / max(span, 1e-9)))


def measure(once: Once, repeats: int = 5) -> Timing:
    """Measures the timing of work, after a warm-up call."""
    once()
    return Timing.of([seconds(once) for _ in range(repeats)])


# ---------------------------------------------------------------------------------- compilation


def compile(function: Any, *arguments: Any) -> tuple[Any, float]:
    """Compiles a jitted function as `train` does, without a cache. Returns the program and the seconds.

    arguments: arrays or their shapes.
    """
    with without_cache():
        begin = time.perf_counter()
        program = device.compile_with(function.lower(*arguments), device.compiler_options())
        return program, time.perf_counter() - begin


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Disables the compilation cache. JAX reads the option only once, and again after a reset."""
    options: Any = jax.config
    enabled = options.jax_enable_compilation_cache

    def use(cache: bool) -> None:
        options.update("jax_enable_compilation_cache", cache)
        compilation_cache.reset_cache()

    use(False)
    try:
        yield
    finally:
        use(enabled)


def peak_memory(program: Any) -> int | None:
    """The bytes that a program needs: arguments, results and temporary arrays. None if the backend does not say."""
    analysis = program.memory_analysis()
    if analysis is None:
        return None
    arrays = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return int(arrays + analysis.temp_size_in_bytes)


# ------------------------------------------------------------------------------------- ceilings


class Ceilings(NamedTuple):
    """The highest rates that this device reaches."""

    flops: float
    """FLOP/s of a large matrix product"""
    bytes: float
    """bytes/s of a large copy, read and written"""


def measure_ceilings(dtype: Any) -> Ceilings:
    """Measures the rates of products of square matrices of this type, and of copies."""
    return Ceilings(_product_rate(dtype), _copy_rate())


def _product_rate(dtype: Any) -> float:
    """The FLOP/s of a matrix product. Doubles the matrices until a product takes long enough to keep the device busy.

    Matrices are random, because a GPU multiplies constants up to 15% faster: they draw less power.
    """
    best, size = 0.0, 1024
    while size <= LARGEST_PRODUCT:
        matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)
        product = jax.jit(jnp.dot)
        span = measure(repeated(partial(product, matrix, matrix)), 3).low
        best = max(best, 2 * size**3 / span)
        if span > SHORTEST:
            break
        size *= 2
    return best


def _copy_rate() -> float:
    """The bytes/s of the faster of two programs: a plain copy, and a loop that reads and writes."""
    size = LARGEST_COPY[device.on_cpu()]
    array = jnp.ones(size // 4, jnp.float32)
    ways = jax.jit(jnp.copy), jax.jit(jnp.negative)
    return max(2 * size / measure(repeated(partial(way, array)), 3).low for way in ways)
