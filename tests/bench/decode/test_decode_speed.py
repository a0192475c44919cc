"""The benchmark of decoding: its runs, output, files and ratios."""

import json
import re

import pytest

from s2sjax import config
from s2sjax.bench import peers
from s2sjax.bench.decode import decode_peers, decode_speed
from s2sjax.bench.decode.decode_speed import Size
from s2sjax.core.backend.quantization import Quantised

TINY = config.Transformer(width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1, dropout=0.0)
SIZE = Size(TINY, 12, 4, 3, {"beam 2, batch 2": (2, 2), "greedy, batch 3": (1, 3)}, "float32")


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(decode_speed, "SIZES", {"small": SIZE})
    monkeypatch.setattr(peers, "remarks", lambda size: [])


def missing(*_):
    raise ImportError("No module named 'torch'")


@pytest.mark.slow
def test_ours_in_both_precisions_without_the_others(tiny, call, tmp_path, monkeypatch):
    monkeypatch.setattr(decode_peers, "PEERS", {"transformers": missing, "ctranslate2": lambda *_: missing})
    code, out, err = call("bench", "decode", "--only", "GREEDY", "--rounds", 2, "--out", tmp_path)
    assert (code, err) == (0, "")
    first, _, search, *rows = out.splitlines()
    assert first.startswith("small: Transformer 8, 1+1, 12 words, 4 -> 3 tokens, float32, on ")
    assert search == "greedy, batch 3"
    assert [line.split("  ")[1] for line in rows[:2]] == ["s2sjax", "s2sjax int8"]
    assert rows[2:] == [
        "  transformers is left out: No module named 'torch'",
        "  ctranslate2 is left out: No module named 'torch'",
        f"wrote {tmp_path / 'decode.csv'}, {tmp_path / 'decode.json'}",
    ]
    found = json.loads((tmp_path / "decode.json").read_text())
    ours, int8 = found["rows"]
    assert ours["ratio"] is None and int8["ratio_int8"] is None
    assert ours["ratio_int8"] > 0 and int8["ratio"] > 0 and int8["compile_seconds"] > 0
    assert "jax" in found["environment"]["versions"]


def test_ratios_to_both_of_ours(tiny, monkeypatch, capsys):
    spans = {"trained": 2.0, "int8": 1.0}
    monkeypatch.setattr(decode_speed, "Decoder", lambda s, beam, source, kind: lambda: spans[kind])
    monkeypatch.setattr(decode_peers, "PEERS", {"transformers": lambda *_: lambda: 5.0, "ctranslate2": missing})
    monkeypatch.setattr(peers, "seconds", lambda once: once())
    decode_speed.bench("small", 3)
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [re.split(" {2,}", line.strip()) for line in lines[:5]] == [
        ["beam 2, batch 2"],
        ["s2sjax", "3.00", "2,000", "0%", "-", "-", "-", "2.00x"],
        ["s2sjax int8", "6.00", "1,000", "0%", "-", "-", "0.50x", "-"],
        ["transformers", "1.20", "5,000", "0%", "-", "-", "2.50x", "5.00x"],
        ["ctranslate2 is left out: No module named 'torch'"],
    ]


@pytest.mark.slow
def test_int8_is_that_of_decode():
    source = decode_speed.np.full((2, 4), 5, "int32")
    decoder = decode_speed.Decoder(SIZE, 2, source, "int8")
    assert any(isinstance(leaf, Quantised) for leaf in decode_speed.jax.tree.leaves(
        decoder._arguments[0], is_leaf=lambda leaf: isinstance(leaf, Quantised)
    ))  # fmt: skip
    decoder()
