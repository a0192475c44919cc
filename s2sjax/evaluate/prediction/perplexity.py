"""The negative log-likelihood of every token of a text, in nats, and the metrics derived from it.

    perplexity = exp(sum of nats / tokens)        bits per character = sum of nats / (tokens * ln 2)

A model that keeps a state reads the text from beginning to end, in one stream or in several parallel streams. A model
without a state reads overlapping windows. In both cases each token counts once, and line ends are tokens.

Letters: R rows of a batch, T tokens of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.evaluate.metrics.corpus_metrics import MetricResult
from s2sjax.evaluate.prediction.progress_listener import count

Tree = Any
Nats = Callable[[Tree, np.ndarray, np.ndarray, Tree], tuple[Any, Tree]]
"""compiled function nats(params, inputs [R, T], targets [R, T], carry) -> nats [R, T], carry"""
TOKENS = 2048
"""number of tokens that are evaluated at once: their logits have to fit in memory"""


class LineNats(NamedTuple):
    """The negative log-likelihood of a line and its number of tokens, including the line end."""

    nats: float
    tokens: int

    def __str__(self) -> str:
        return f"{self.nats:.4f} nats, {self.tokens} token{'s' if self.tokens > 1 else ''}"


def by_streams(nats: Nats, params: Tree, carry: Tree, ids: np.ndarray, streams: int, context: int) -> np.ndarray:
    """Computes the nats of each token by parallel streams: ids [total] -> float64 [total].

    Stream r reads the r-th part of the text, preceded by `context` tokens of the part before, which do not count.
    carry: initial carry of `streams` rows.
    """
    length = -(-len(ids) // streams)
    begin = np.arange(streams)[:, None] * length  # [R, 1]
    steps = max(1, min(TOKENS // streams, length + context))
    parts = []
    for first in range(-context, length, steps):
        within = first + np.arange(steps)
        place = begin + within  # [R, T]
        real = (place >= 0) & (place < len(ids)) & (within < length)
        each, carry = nats(params, *_batch(ids, place, real), carry)
        parts.append((place, real & (within >= 0), each))
    return _fetched(parts, len(ids))


def by_windows(nats: Nats, params: Tree, ids: np.ndarray, steps: int, context: int) -> np.ndarray:
    """Computes the nats of each token by overlapping windows: ids [total] -> float64 [total].

    A window has `steps` tokens. Its first `context` tokens do not count, except in the first window.
    """
    stride = steps - context
    windows = 1 + -(-max(len(ids) - steps, 0) // stride)
    ends = np.minimum(steps + stride * np.arange(windows), len(ids))
    begins = np.maximum(ends - steps, 0)
    counted = np.concatenate([[0], ends[:-1]])  # the first token of each window that counts
    rows = max(1, TOKENS // steps)
    parts = []
    for first in range(0, len(ends), rows):
        chosen = np.arange(first, first + rows)
        there, chosen = chosen < len(ends), np.minimum(chosen, len(ends) - 1)
        place = begins[chosen][:, None] + np.arange(steps)  # [R, T]
        real = there[:, None] & (place < ends[chosen][:, None])
        each, _ = nats(params, *_batch(ids, place, real), ())
        parts.append((place, real & (place >= counted[chosen][:, None]), each))
    return _fetched(parts, len(ids))


def _fetched(parts: Sequence[tuple[np.ndarray, np.ndarray, Any]], total: int) -> np.ndarray:
    """Gathers the nats of all tokens from (positions, mask of those that count, nats).

    Called after all batches are dispatched, so that the device never waits for the host.
    """
    found, done = np.zeros(total), 0
    for place, counts, each in parts:
        found[place[counts]] = np.asarray(jax.device_get(each), np.float64)[counts]
        done += int(counts.sum())
        count(done, total)
    return found


def _batch(ids: np.ndarray, place: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets [R, T]: the targets are the tokens at `place`, the inputs those before; the first is <eos>."""
    before = np.where(place == 0, EOS, ids.take(place - 1, mode="clip"))
    return tuple(np.where(real, x, PAD).astype(np.int32) for x in (before, ids.take(place, mode="clip")))  # type: ignore[return-value]


def by_line(nats: np.ndarray, offsets: np.ndarray) -> list[LineNats]:
    """Sums the nats of each line n, whose tokens are offsets[n] to offsets[n + 1]."""
    sums = np.add.reduceat(nats, offsets[:-1])
    return [LineNats(float(total), int(tokens)) for total, tokens in zip(sums, np.diff(offsets))]


def results(lines: Sequence[LineNats], characters: bool, signature: str) -> dict[str, MetricResult]:
    """Perplexity and cross-entropy of a text; for texts of characters, also bits per character, which come first.

    A perplexity is not a ratio of sums, so `s2sjax compare` tests its logarithm, the cross-entropy, instead.
    """
    mean = sum(line.nats for line in lines) / max(sum(line.tokens for line in lines), 1)
    terms = [(line.nats, float(line.tokens)) for line in lines]
    bits = [(total / math.log(2), tokens) for total, tokens in terms]
    perplexity = math.exp(mean) if mean < 700 else math.inf
    common: Any = {"higher_is_better": False, "signature": signature, "examples": len(lines)}
    found = [
        MetricResult("bpc", mean / math.log(2), label="bits per character", format="{:.4f}", terms=bits, **common),
        MetricResult("perplexity", perplexity, label="perplexity", format="{:.2f}", **common),
        MetricResult("nats", mean, label="nats per token", format="{:.4f}", terms=terms, **common),
    ]
    return {result.name: result for result in (found if characters else found[1:])}
