"""A library that cannot run is left out of a benchmark with its reason, and ours is measured all the same."""

import sys
from types import SimpleNamespace

import jax
import pytest

from s2sjax import config
from s2sjax.bench import decode, peers, train


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
    spans, reasons = peers.alternate(lambda: None, others, 3, lambda once: once() or 1.0)
    assert spans == {"s2sjax": [1.0] * 3, "fine": [1.0] * 3}
    assert reasons == {
        "not installed": "No module named 'torch'",
        "no library": "Library libcublas.so.12 is not found",
        "no memory": "out of memory",
        "mute": "AssertionError",
    }
    with pytest.raises(RuntimeError, match="ours"):  # an error of ours is never hidden
        peers.alternate(failing("ours"), {}, 1, lambda once: 1.0)


@pytest.fixture
def tiny(monkeypatch):
    model = config.Transformer(width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1, dropout=0.0)
    monkeypatch.setattr(decode, "SIZES", {"small": decode.Size(model, 12, 4, 3, ((2, 2), (1, 3)), "float32")})
    monkeypatch.setattr(train, "SIZES", {"Transformer 8": (model, 12, 2, 6), "again": (model, 12, 2, 6)})
    monkeypatch.setattr(decode, "_ours", lambda *_: lambda: None)
    monkeypatch.setattr(train, "build_step", lambda *_: lambda: None)


def test_decoding_is_measured_without_the_others(tiny, monkeypatch, capsys):
    monkeypatch.setattr(decode, "_transformers", lambda *_: missing())
    broken = failing("Library libcublas.so.12 is not found or cannot be loaded")
    monkeypatch.setattr(decode, "_ctranslate2", lambda *_, kind: broken)
    decode.bench("small", rounds=1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["small:", "tokens/s", *["beam", "s2sjax", *["transformers",
        "ctranslate2", "ctranslate2"]] * 2]  # fmt: skip
    assert "  transformers          left out: No module named 'torch'" in lines
    assert "  ctranslate2 int8      left out: Library libcublas.so.12 is not found or cannot be loaded" in lines


def test_training_is_measured_without_pytorch(tiny, monkeypatch, capsys):
    monkeypatch.setattr(train, "_torch_step", lambda *_: missing())
    train.bench(rounds=1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["on", "training", "Transformer", "PyTorch", "again"]
    assert lines[3] == "  PyTorch is left out: No module named 'torch'"


def test_pytorch_beside_ours(tiny, monkeypatch, capsys):
    monkeypatch.setattr(train, "_torch_step", lambda *_: lambda: None)
    train.bench(rounds=2)
    lines = capsys.readouterr().out.splitlines()
    assert [len(line.split()) for line in lines[2:]] == [6, 5] and all(line.endswith("x") for line in lines[2:])


def test_pytorch_does_the_work_where_jax_does(monkeypatch):
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert peers.torch_device() == "cpu"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(RuntimeError, match="PyTorch cannot use the GPU that s2sjax uses"):
        peers.torch_device()
    torch.cuda.is_available = lambda: True
    assert peers.torch_device() == "cuda"
