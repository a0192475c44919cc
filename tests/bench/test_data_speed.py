"""The benchmark of the input pipeline prints the throughput of each pipeline and of the step."""

import re

import pytest

from s2sjax import config
from s2sjax.bench import data_speed


@pytest.mark.slow
def test_the_pipeline_feeds_a_step_several_times(capsys, monkeypatch):
    monkeypatch.setattr(data_speed, "SECONDS", 0.3)
    tiny = config.Transformer(width=16, heads=2, feedforward=16, encoder_layers=1, decoder_layers=1)
    data_speed.bench(1, tiny, pairs=400)
    out = capsys.readouterr().out
    for name in ("prepare, once", "raw", "raw, packed", "prepared", "prepared, packed", "step of Transformer 16"):
        assert re.search(rf"^{name} +[\d,.]+ +[\d,.]+", out, re.M), out
    assert re.search(r"^the slowest pipeline can feed [\d,.]+ such steps: ", out, re.M)
