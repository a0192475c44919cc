"""Every token of a text counts once, for all numbers of streams and sizes of windows."""

import math

import numpy as np
import pytest

from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.evaluate.prediction import perplexity
from s2sjax.evaluate.prediction.perplexity import LineNats


def counting(_, inputs, targets, seen):
    """A model whose nats encode the target, the token before it, and the number of tokens read before in its row."""
    real = inputs != PAD
    place = np.cumsum(real, axis=1) - 1 + (0 if len(seen) == 0 else seen[:, None])
    found = np.where(real, targets * 1e6 + inputs * 1e3 + place, 0)
    return found, () if len(seen) == 0 else seen + real.sum(1)


def told(ids, found):
    before = [EOS, *ids[:-1]]
    assert [int(nats // 1e6) for nats in found] == ids.tolist()
    assert [int(nats // 1e3) % 1000 for nats in found] == before
    return [int(nats) % 1000 for nats in found]


@pytest.mark.parametrize("total", [1, 2, 7, 12])
@pytest.mark.parametrize("streams, context", [(1, 0), (1, 3), (2, 0), (3, 2), (3, 20)])
def test_streams_read_on_and_count_every_token_once(total, streams, context, monkeypatch):
    monkeypatch.setattr(perplexity, "TOKENS", 6)  # several segments
    ids, streams = np.arange(10, 10 + total), min(streams, total)
    found = perplexity.by_streams(counting, None, np.zeros(streams, int), ids, streams, context)
    length = -(-total // streams)
    assert told(ids, found) == [i % length + min(i // length * length, context) for i in range(total)]


@pytest.mark.parametrize("total", [1, 3, 4, 5, 11, 12, 13])
@pytest.mark.parametrize("steps, context", [(4, 0), (4, 1), (4, 3), (1, 0)])
def test_windows_overlap_and_count_every_token_once(total, steps, context, monkeypatch):
    monkeypatch.setattr(perplexity, "TOKENS", 2 * steps)  # two windows at once
    ids = np.arange(10, 10 + total)
    seen = told(ids, perplexity.by_windows(counting, None, ids, steps, context))
    assert all(before >= min(i, context) for i, before in enumerate(seen)) and max(seen) < steps


def test_perplexity_of_a_uniform_model_is_the_number_of_words():
    lines = [LineNats(3 * math.log(50), 3), LineNats(math.log(50), 1)]
    found = perplexity.results(lines, True, "unit:characters")
    assert list(found) == ["bpc", "perplexity", "nats"]
    assert found["perplexity"].value == pytest.approx(50) and found["bpc"].value == pytest.approx(math.log2(50))
    assert [sum(part) for part in zip(*found["nats"].terms)] == [pytest.approx(4 * math.log(50)), 4]
    assert list(perplexity.results(lines, False, "")) == ["perplexity", "nats"]
    assert perplexity.results([LineNats(1e5, 1)], False, "")["perplexity"].value == math.inf


def test_nats_of_lines():
    found = perplexity.by_line(np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 1, 3, 4]))
    assert found == [LineNats(1, 1), LineNats(6, 2), LineNats(8, 1)]
    assert [str(one) for one in found[:2]] == ["1.0000 nats, 1 token", "6.0000 nats, 2 tokens"]
