"""Prefix beam search for CTC (Graves 2012; Hannun et al. 2014): the most probable labels, not the best alignment.

Each of K prefixes keeps two sums over its alignments with the frames so far: those that end in a blank and those that
end in its last label. Only after a blank can the same label follow as a new one.

    blank_t(y) = p_t(blank) (blank_{t-1}(y) + label_{t-1}(y))
    label_t(y) = p_t(c) label_{t-1}(y)  +  p_t(c) (blank_{t-1}(x) + [c is not the last of x] label_{t-1}(x)),  y = x c

If a prefix is reached both from itself and from a shorter one in the beam, the sums are added. After each frame the K
prefixes with the best score are kept:

    score(y) = log p(y | frames) + weight log p_LM(y) + bonus |y|

A beam wide enough for all prefixes is exact. The whole search runs on the device, in one scan that is vmapped over a
batch: a step costs K^2 L comparisons and one top-k of K V candidates.

Letters: T frames, V symbols with the blank, K prefixes, L maximum number of labels, C states of the language model.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from s2sjax.core.chains.ctc import BLANK, Count, LogProbs


class LanguageModel(NamedTuple):
    """A deterministic automaton that starts in state 0: an n-gram (ngram_language_model.py) or any finite grammar.

    A symbol with log-probability -inf is forbidden.
    """

    log_probs: Float[Array | np.ndarray, "C V"]  # of the next label; the column of the blank is the end of the labels
    following: Int[Array | np.ndarray, "C V"]  # the state after a label


class Found(NamedTuple):
    """The prefixes in the beam after the last frame, best first."""

    labels: Int[Array, "K L"]  # padded with -1
    length: Int[Array, " K"]
    log_prob: Float[Array, " K"]  # log p(labels | frames): a lower bound, without alignments through dropped prefixes
    score: Float[Array, " K"]  # -inf for an empty entry


class _Beam(NamedTuple):
    labels: Int[Array, "K L"]
    length: Int[Array, " K"]
    blank: Float[Array, " K"]  # log of the sum over alignments that end in a blank
    label: Float[Array, " K"]  # log of the sum over alignments that end in the last label
    state: Int[Array, " K"]  # state of the language model
    prior: Float[Array, " K"]  # weight log p_LM + bonus |y|


def prefix_search(
    log_probs: LogProbs,
    frames: Count,
    width: int,
    room: int,
    model: LanguageModel | None = None,
    weight: float | Float[Array, ""] = 1.0,
    bonus: float = 0.0,
    blank: int = BLANK,
) -> Found:
    """Searches for the most probable labels of the first `frames` frames.

    `width` is the beam K, `room` the maximum number of labels L, `weight` that of the language model and `bonus` the
    reward per label.
    """
    dtype = log_probs.dtype
    model = None if model is None else LanguageModel(*map(jnp.asarray, model))
    nothing = jnp.full(width, -jnp.inf, dtype)
    beam = _Beam(
        jnp.full((width, room), -1), jnp.zeros(width, int), nothing.at[0].set(0), nothing, jnp.zeros(width, int),
        jnp.zeros(width, dtype),
    )  # fmt: skip

    def step(beam: _Beam, inputs):
        t, now = inputs
        new = _step(beam, now, model, weight, bonus, blank)
        return _Beam(*(jnp.where(t < frames, a, b) for a, b in zip(new, beam))), None

    beam, _ = lax.scan(step, beam, (jnp.arange(len(log_probs)), log_probs))
    log_prob = jnp.logaddexp(beam.blank, beam.label)
    score = log_prob + beam.prior
    if model is not None:
        score = score + _weighted(weight, model.log_probs[beam.state, blank].astype(dtype))
    score, order = lax.top_k(score, width)
    return Found(beam.labels[order], beam.length[order], log_prob[order], score)


def _step(beam: _Beam, now: Array, model, weight, bonus, blank: int) -> _Beam:
    """Advances the beam by one frame with log-probabilities now [V]."""
    (K, L), V = beam.labels.shape, len(now)
    symbols = jnp.arange(V)
    last = jnp.take_along_axis(beam.labels, jnp.maximum(beam.length - 1, 0)[:, None], axis=1)[:, 0]  # [K], -1: none
    both = jnp.logaddexp(beam.blank, beam.label)

    same = symbols[None] == last[:, None]  # [K, V]
    grown = jnp.where(same, beam.blank[:, None], both[:, None]) + now[None]
    grown = jnp.where((symbols == blank)[None] | (beam.length[:, None] == L), -jnp.inf, grown)
    extended = beam.prior[:, None] + jnp.zeros((K, V), now.dtype)
    if model is not None:
        extended = extended + _weighted(weight, model.log_probs[beam.state].astype(now.dtype))
    extended = extended + bonus

    # If prefix i grows into prefix j of the beam, j takes the sum.
    child = _is_child(beam, jnp.isfinite(both))  # [K, K]: j is i plus one label
    merged = jnp.where(child, grown[:, jnp.maximum(last, 0)], -jnp.inf).max(axis=0)  # [K]: j has at most one parent
    taken = jnp.any(child[:, :, None] & same[None], axis=1)  # [K, V]
    grown = jnp.where(taken, -jnp.inf, grown)
    stay_blank = both + now[blank]
    stay_label = jnp.logaddexp(jnp.where(last < 0, -jnp.inf, beam.label + now[last]), merged)

    stay = jnp.logaddexp(stay_blank, stay_label) + beam.prior
    score = jnp.where(jnp.isfinite(grown), grown + extended, -jnp.inf)
    _, chosen = lax.top_k(jnp.concatenate([stay, score.reshape(-1)]), K)
    grows = chosen >= K
    source = jnp.where(grows, (chosen - K) // V, chosen)
    symbol = jnp.where(grows, (chosen - K) % V, 0)
    written = grows[:, None] & (jnp.arange(L)[None] == beam.length[source][:, None])
    state = beam.state[source]
    if model is not None:
        state = jnp.where(grows, model.following[state, symbol], state)
    return _Beam(
        labels=jnp.where(written, symbol[:, None], beam.labels[source]),
        length=beam.length[source] + grows,
        blank=jnp.where(grows, -jnp.inf, stay_blank[source]),
        label=jnp.where(grows, grown[source, symbol], stay_label[source]),
        state=state,
        prior=jnp.where(grows, extended[source, symbol], beam.prior[source]),
    )


def _weighted(weight: float | Array, log_probs: Array) -> Array:
    """weight * log_probs, and 0 for a weight of 0: 0 times the -inf of a forbidden symbol is NaN."""
    return jnp.where(weight == 0, 0, weight * log_probs)


def _is_child(beam: _Beam, alive: Bool[Array, " K"]) -> Bool[Array, "K K"]:
    """Whether prefix j is prefix i plus one label, at [i, j]."""
    place = jnp.arange(beam.labels.shape[1])[None, None]
    equal = (beam.labels[:, None] == beam.labels[None]) | (place >= beam.length[:, None, None])  # [K, K, L]
    longer = beam.length[None] == beam.length[:, None] + 1
    return jnp.all(equal, axis=2) & longer & alive[:, None] & alive[None]
