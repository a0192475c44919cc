"""Ours beside other libraries, alternating in one run. A library that cannot run is left out, with its reason."""

from collections.abc import Callable, Mapping

import jax

Once = Callable[[], object]
"""does the work once, and waits until it is done"""


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
