"""Ours beside other libraries, alternating in one run. A library that cannot run is left out, with its reason."""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax

from s2sjax.errors import UserError

Once = Callable[..., object]
"""does the work once, and waits until it is done"""
Case = TypeVar("Case")


def select(cases: Mapping[str, Case], only: Sequence[str], what: str = "model") -> dict[str, Case]:
    """The cases whose name contains one of `only`, in upper or lower case; all of them if it is empty."""
    for part in only:
        if not any(part.lower() in name.lower() for name in cases):
            raise UserError(f"--only {part!r} is in the name of no {what}: choose from {'; '.join(cases)}")
    return {name: case for name, case in cases.items() if not only or any(p.lower() in name.lower() for p in only)}


def alternate(
    ours: Once, peers: Mapping[str, Callable[[], Once]], rounds: int, seconds: Callable[[Once], float]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """The seconds of each library in each round, s2sjax first; and why others were left out, in one line each.

    A peer is built and run once before the first round. Whatever goes wrong in it (it is not installed, CUDA's
    libraries are not found, memory runs out) ends its own measurement only.
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
    return spans, reasons


def seconds(once: Once) -> float:
    begin = time.perf_counter()
    once()
    return time.perf_counter() - begin


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """How many times faster ours is: the median over the rounds, each of which had the machine in one state.

    Example: theirs 2, 9, 4 and ours 1, 3, 4 give 2.
    """
    return statistics.median(b / a for a, b in zip(ours, theirs))


def remarks(size: str) -> list[str]:
    """What the user of a CPU should know: other jobs slow some libraries more than others, and base takes long."""
    if jax.default_backend() != "cpu":
        return []
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    found = [f"the load of this machine is {load:.1f} on {cores} cores: measure again when it is idle"]
    return found * (load > cores / 2) + ["base is for accelerators: on a CPU it takes very long"] * (size == "base")


def free() -> None:
    """After a model and its peers are gone: gives their memory back to the device, and forgets compiled code."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.compiler.reset()
        torch.cuda.empty_cache()


def reason(error: Exception) -> str:
    """The first line of an error; the kind of error if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def torch_device() -> str:
    """The device on which PyTorch does the same work: that of JAX."""
    import torch

    if jax.default_backend() == "cpu":
        return "cpu"
    if jax.default_backend() == "gpu" and torch.cuda.is_available():
        return "cuda"
    raise RuntimeError(f"PyTorch cannot use the {jax.default_backend().upper()} that s2sjax uses")
