"""Alternating measurements of s2sjax and other libraries. A library that cannot run is left out, with the reason."""

import contextlib
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax

from s2sjax.errors import UserError

Once = Any
"""once(calls=1) does the work and waits until it is done; it can have compile_seconds, and memory in bytes"""
Case = TypeVar("Case")


def select(cases: Mapping[str, Case], only: Sequence[str], what: str = "model") -> dict[str, Case]:
    """The cases whose names contain one of `only`, ignoring case; all cases if it is empty."""
    for part in only:
        if not any(part.lower() in name.lower() for name in cases):
            raise UserError(f"--only {part!r} matches no {what}: choose from {'; '.join(cases)}")
    return {name: case for name, case in cases.items() if not only or any(p.lower() in name.lower() for p in only)}


def alternate(
    ours: Once, peers: Mapping[str, Callable[[], Once]], rounds: int, seconds: Callable[[Once], float]
) -> tuple[dict[str, list[float]], dict[str, str], dict[str, Once]]:
    """Measures the seconds of each library in each round, s2sjax first. Returns them, why peers were left out, and all.

    A peer is built and run once before the first round. Any error in it (it is not installed, CUDA's libraries are not
    found, memory runs out) ends only its own measurement.
    """
    ours()
    running: dict[str, Once] = {"s2sjax": ours}
    reasons: dict[str, str] = {}
    for name, build in peers.items():
        try:
            once = build()
            once()
        except Exception as error:
            reasons[name] = reason(error)
        else:
            running[name] = once
    spans: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, once in running.items():
            if name in reasons:
                continue
            try:
                spans[name].append(seconds(once))
            except Exception as error:
                if name == "s2sjax":
                    raise
                reasons[name] = reason(error)
                del spans[name]
    return spans, reasons, running


def seconds(once: Once) -> float:
    begin = time.perf_counter()
    once()
    return time.perf_counter() - begin


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """The speed-up of ours: the median ratio over the rounds, in each of which the machine is in one state.

    Example: theirs 2, 9, 4 and ours 1, 3, 4 give 2.
    """
    return statistics.median(b / a for a, b in zip(ours, theirs))


def remarks(size: str) -> list[str]:
    """Notes for users of a CPU: other jobs slow some libraries more than others, and size base takes long."""
    if jax.default_backend() != "cpu":
        return []
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    found = [f"the load of this machine is {load:.1f} on {cores} cores: measure again when it is idle"]
    return found * (load > cores / 2) + ["base is for accelerators: on a CPU it takes very long"] * (size == "base")


def free() -> None:
    """Releases the memory and the compiled code of models and peers that are no longer referenced."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.compiler.reset()
        torch.cuda.empty_cache()


def reason(error: Exception) -> str:
    """The first line of an error's message, or its type if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def torch_device() -> str:
    """PyTorch's name of the device that JAX uses."""
    import torch

    if jax.default_backend() == "cpu":
        return "cpu"
    if jax.default_backend() == "gpu" and torch.cuda.is_available():
        return "cuda"
    raise RuntimeError(f"PyTorch cannot use the {jax.default_backend().upper()} that s2sjax uses")


@contextlib.contextmanager
def torch_memory(device: str) -> Iterator[dict[str, int]]:
    """Measures the additional bytes that are allocated inside, on a GPU: the peak, "bytes", and at the end, "held"."""
    import torch

    peak: dict[str, int] = {}
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    yield peak
    if device == "cuda":
        torch.cuda.synchronize()
        peak |= {
            "bytes": torch.cuda.max_memory_allocated() - before,
            "held": torch.cuda.memory_allocated() - before,
        }
