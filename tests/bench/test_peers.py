"""Comparison with other libraries: one that cannot run is left out with the reason; ours is measured anyway."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from s2sjax.bench import peers
from s2sjax.cli import arguments
from s2sjax.cli.start_jax import start_jax
from s2sjax.errors import UserError


def failing(message, error=RuntimeError, after=0):
    """A peer that raises at its call number `after`."""
    calls = []

    def once():
        calls.append(None)
        if len(calls) > after:
            raise error(message)

    return once


def missing():
    raise ImportError("No module named 'torch'")


def test_whatever_goes_wrong_in_a_peer():
    others = {
        "not installed": missing,
        "no library": lambda: failing("Library libcublas.so.12 is not found\nTraceback"),
        "no memory": lambda: failing("out of memory", MemoryError, after=2),
        "mute": lambda: failing("", AssertionError),
        "fine": lambda: lambda: None,
    }
    spans, reasons, _ = peers.alternate(lambda: None, others, 3, lambda once: once() or 1.0)
    assert spans == {"s2sjax": [1.0] * 3, "fine": [1.0] * 3}
    assert reasons == {
        "not installed": "No module named 'torch'",
        "no library": "Library libcublas.so.12 is not found",
        "no memory": "out of memory",
        "mute": "AssertionError",
    }
    with pytest.raises(RuntimeError, match="ours"):  # an error of ours is never hidden
        peers.alternate(failing("ours"), {}, 1, lambda once: 1.0)


def test_the_ratio_is_the_median_over_the_rounds():
    assert peers.ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == 2.0


def test_some_of_the_cases():
    cases = {"Luong 256": 1, "RNNsearch 256": 2, "Transformer 256, 3+3": 3}
    assert peers.select(cases, []) == cases
    assert list(peers.select(cases, ["luong", "3+3"])) == ["Luong 256", "Transformer 256, 3+3"]
    with pytest.raises(UserError) as caught:
        peers.select(cases, ["luong", "lstm"])
    assert str(caught.value) == (
        "--only 'lstm' matches no model: choose from Luong 256; RNNsearch 256; Transformer 256, 3+3"
    )


def test_pytorch_does_the_work_where_jax_does(monkeypatch):
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert peers.torch_device() == "cpu"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(RuntimeError, match="PyTorch cannot use the GPU that s2sjax uses"):
        peers.torch_device()
    torch.cuda.is_available = lambda: True
    assert peers.torch_device() == "cuda"


def test_what_the_user_of_a_cpu_should_know(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.9, 0.0, 0.0))
    assert peers.remarks("small") == []
    assert peers.remarks("base") == ["base is for accelerators: on a CPU it takes very long"]
    monkeypatch.setattr(os, "getloadavg", lambda: (5.73, 0.0, 0.0))
    assert peers.remarks("small") == ["the load of this machine is 5.7 on 2 cores: measure again when it is idle"]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert peers.remarks("base") == []


def test_memory_is_left_to_pytorch_and_given_back_by_it(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE")
    start_jax()
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in os.environ
    start_jax(shares_device=True)
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    done = []
    torch = SimpleNamespace(
        compiler=SimpleNamespace(reset=lambda: done.append("reset")),
        cuda=SimpleNamespace(empty_cache=lambda: done.append("empty")),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    peers.free()
    assert done == ["reset", "empty"]


def test_the_makefile_runs_every_benchmark_with_options_that_exist():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"s2sjax (bench .*?) 2>&1", makefile)
    assert len(commands) == 5
    for size in ("small", "base"):
        for command in commands:
            known, rest = arguments.parse(command.replace("$(1)", size).replace("$(2)", "runs/bench").split())
            assert known.name == "bench" and not rest, rest
