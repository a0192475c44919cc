"""Connectionist temporal classification (Graves et al. 2006): labels of a longer sequence, without an alignment.

An *alignment* gives each of T frames a label or a blank. Merging repeats and then dropping blanks gives the labels:

    HHHHHH-eeeelll-lll--oo---  ->  Hello

    p(labels) = sum over all alignments that give them of prod_t p_t(symbol of frame t)

The sum is over the paths of a lattice with the states  blank l_1 blank l_2 ... l_L blank  (U = 2L + 1). From frame to
frame a path stays, moves to the next state, or skips a blank between two different labels:

    alpha_t(u) = p_t(symbol_u) (alpha_{t-1}(u) + alpha_{t-1}(u-1) + [symbol_u != symbol_{u-2}] alpha_{t-1}(u-2))
    p(labels) = alpha_T(U-1) + alpha_T(U)

Everything is computed in logarithms, shifted at each frame so that the highest is 0: rounding errors stay small on many
frames. The gradient is exact: -dlog p / dlog p_t(v) is minus the posterior of symbol v at frame t, from alpha and its
mirror image beta. (`optax.ctc_loss` does not shift: its float32 gradients on 2,000 frames were off by 2e-3, these by
4e-6, and its losses near 0 came out negative, by 3e-11.)

A pair is *feasible* if T >= L + the number of equal neighbours among the labels, which need a blank between them.

Functions take one example, unless they say [B, ...]. Letters: B batch, T frames, L labels, V symbols with the blank,
U states. Arguments:
log_probs: normalised log-probabilities
frames: number of real frames
labels: symbols, any value after the last real one
count: number of real labels
blank: the symbol of the blank
"""

from collections.abc import Hashable, Iterable
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

BLANK = 0
LogProbs = Float[Array, "T V"]
Labels = Int[Array, " L"]
Count = Int[Array, ""] | int
S = TypeVar("S", bound=Hashable)


def collapse(symbols: Iterable[S], blank: Hashable = BLANK) -> list[S]:
    """Merges repeats, then drops blanks.

    >>> "".join(collapse("HHHHHH-eeeelll-lll--oo---", blank="-"))
    'Hello'
    """
    return [symbol for symbol, _ in groupby(symbols) if symbol != blank]


def frames_needed(labels: Int[Array, "*shape L"], count: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
    """The minimum number of frames of an alignment. Labels l l m need 4: l blank l m."""
    L = labels.shape[-1]
    place = lax.broadcast_to_rank(jnp.arange(1, L), labels.ndim)
    repeats = (labels[..., 1:] == labels[..., :-1]) & (place < count[..., None])
    return count + jnp.sum(repeats, axis=-1)


def feasible(
    frames: Int[Array, "*shape"], labels: Int[Array, "*shape L"], count: Int[Array, "*shape"]
) -> Bool[Array, "*shape"]:
    """Whether an alignment exists."""
    return frames >= frames_needed(labels, count)


# -------------------------------------------------------------------------------------- lattice


class Lattice(NamedTuple):
    """The states  blank l_1 blank ... l_L blank  of one example."""

    symbols: Int[Array, " U"]
    emit: Float[Array, "T U"]  # log p_t(symbol_u); -inf for states after the last real label
    skip: Bool[Array, " U"]  # whether a path may come from u - 2
    final: Bool[Array, " U"]  # whether a path may end here


def make_lattice(log_probs: LogProbs, labels: Labels, count: Count, blank: int) -> Lattice:
    """Builds the lattice of one example."""
    U = 2 * len(labels) + 1
    state = jnp.arange(U)
    symbols = jnp.full(U, blank, labels.dtype).at[1::2].set(labels)
    emit = jnp.where(state < 2 * count + 1, log_probs[:, symbols], -jnp.inf)  # [T, U]
    two_before = jnp.concatenate([jnp.full(2, blank, labels.dtype), symbols])[:U]
    return Lattice(symbols, emit, (symbols != blank) & (symbols != two_before), abs(2 * count - 0.5 - state) < 1)


def _forward(lattice: Lattice, frames: Count) -> tuple[Array, Array]:
    """Computes log alpha [T, U], each frame shifted by a constant, and log p(labels)."""

    def step(alpha, inputs):
        t, emit = inputs
        one, two = (jnp.pad(alpha, (n, 0), constant_values=-jnp.inf)[: len(alpha)] for n in (1, 2))
        two = jnp.where(lattice.skip, two, -jnp.inf)
        new, shift = _shifted(emit + jnp.logaddexp(jnp.logaddexp(alpha, one), two))
        new = jnp.where(t < frames, new, alpha)
        return new, (new, jnp.where(t < frames, shift, 0))

    T, U = lattice.emit.shape
    start = jnp.where(jnp.arange(U) == 0, 0.0, -jnp.inf).astype(lattice.emit.dtype)  # a blank before the first frame
    last, (alpha, shifts) = lax.scan(step, start, (jnp.arange(T), lattice.emit))
    return alpha, jnp.sum(shifts) + jax.nn.logsumexp(jnp.where(lattice.final, last, -jnp.inf))


def _backward(lattice: Lattice, frames: Count) -> Array:
    """Computes log beta [T, U], of the frames after t given the state at t; each frame shifted by a constant."""

    def step(after, inputs):
        t, emit = inputs
        beta = jnp.where(t == frames - 1, jnp.where(lattice.final, 0.0, -jnp.inf).astype(emit.dtype), after)
        here, _ = _shifted(beta + emit)
        one, two = (jnp.pad(here, (0, n), constant_values=-jnp.inf)[n:] for n in (1, 2))
        two = jnp.where(jnp.pad(lattice.skip, (0, 2))[2:], two, -jnp.inf)
        return jnp.logaddexp(jnp.logaddexp(here, one), two), beta

    T, U = lattice.emit.shape
    start = jnp.full(U, -jnp.inf, lattice.emit.dtype)
    return lax.scan(step, start, (jnp.arange(T), lattice.emit), reverse=True)[1]


def _shifted(log_values: Array) -> tuple[Array, Array]:
    """(values - highest, highest); if all are -inf, they stay -inf."""
    highest = jnp.max(log_values)
    return log_values - jnp.where(jnp.isneginf(highest), 0, highest), highest


def _posteriors(lattice: Lattice, alpha: Array, frames: Count) -> Array:
    """Posteriors p(state u at frame t | labels) [T, U]; zeros after the last frame, or if there is no path."""
    gamma = jnp.exp(jax.vmap(_shifted)(alpha + _backward(lattice, frames))[0])
    gamma = gamma / jnp.maximum(jnp.sum(gamma, axis=1, keepdims=True), 1)  # the highest is 1, or all are 0
    return jnp.where(jnp.arange(len(gamma))[:, None] < frames, gamma, 0)


# ----------------------------------------------------------------------------------------- loss


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def negative_log_likelihood(
    log_probs: LogProbs, frames: Count, labels: Labels, count: Count, blank: int = BLANK
) -> Float[Array, ""]:
    """-log p(labels) of one example. Never negative; infinite if the pair is not feasible.

    A sum of probabilities may round to more than 1. The true loss is never below 0, so clipping it at 0 only reduces
    the error. The gradient is always finite, and 0 if the pair is not feasible.
    """
    return _nll_forward(log_probs, frames, labels, count, blank)[0]


def _nll_forward(log_probs, frames, labels, count, blank):
    lattice = make_lattice(log_probs, labels, count, blank)
    alpha, log_prob = _forward(lattice, frames)
    return jnp.maximum(-log_prob, 0), (lattice, alpha, frames, log_probs)


def _nll_backward(blank, saved, gradient):
    lattice, alpha, frames, log_probs = saved
    return -gradient * _by_symbol(lattice, _posteriors(lattice, alpha, frames), log_probs), None, None, None


def _by_symbol(lattice: Lattice, states: Array, log_probs: Array) -> Array:
    """Sums states by symbol, [T, U] -> [T, V], as a one-hot product: the order of a scatter's sum is not fixed."""
    one_hot = jax.nn.one_hot(lattice.symbols, log_probs.shape[1], dtype=states.dtype)
    return jnp.matmul(states, one_hot, precision=lax.Precision.HIGHEST)


negative_log_likelihood.defvjp(_nll_forward, _nll_backward)


def ctc_loss(
    logits: Float[Array, "B T V"],
    frames: Int[Array, " B"],
    labels: Int[Array, "B L"],
    count: Int[Array, " B"],
    blank: int = BLANK,
) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
    """(sum, weight) pairs of a batch, from scores of the symbols that are not normalised.

    loss         -log p(labels), over the feasible rows with frames
    infeasible   number of infeasible rows, of those with frames or labels: they have no loss and no gradient

    >>> logits = jnp.zeros((1, 2, 3))  # two frames, symbols blank a b, all of probability 1/3
    >>> total, number = ctc_loss(logits, jnp.array([2]), jnp.array([[1]]), jnp.array([1]))["loss"]
    >>> print(f"{9 * jnp.exp(-total):.3f}")  # three of nine alignments give a: a blank, blank a, a a
    3.000
    """
    frames, labels, count = map(jnp.asarray, (frames, labels, count))
    log_probs = jax.nn.log_softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
    each = jax.vmap(partial(negative_log_likelihood, blank=blank))(log_probs, frames, labels, count)  # [B]
    possible, real = feasible(frames, labels, count), (frames > 0) | (count > 0)
    total = lambda mask: jnp.sum(mask).astype(each.dtype)
    return {
        "loss": (jnp.sum(jnp.where(possible & real, each, 0)), total(possible & real)),
        "infeasible": (total(~possible & real), total(real)),
    }


# ----------------------------------------------------------------------------------- alignments


def posteriors(
    log_probs: LogProbs, frames: Count, labels: Labels, count: Count, blank: int = BLANK
) -> Float[Array, "T V"]:
    """p(symbol v at frame t | labels); zeros after the last frame, or if the pair is not feasible."""
    lattice = make_lattice(log_probs, labels, count, blank)
    return _by_symbol(lattice, _posteriors(lattice, _forward(lattice, frames)[0], frames), log_probs)


def align(
    log_probs: LogProbs, frames: Count, labels: Labels, count: Count, blank: int = BLANK
) -> tuple[Int[Array, " T"], Float[Array, ""]]:
    """The most probable alignment of the labels (Viterbi): its states and its log-probability.

    State u is a blank if it is even, and label (u - 1) / 2 if it is odd; -1 after the last frame. Ties go to the path
    that is further along at each earlier frame. The log-probability is -inf if the pair is not feasible.
    """
    lattice = make_lattice(log_probs, labels, count, blank)
    T, U = lattice.emit.shape

    def step(best, inputs):
        t, emit = inputs
        one, two = (jnp.pad(best, (n, 0), constant_values=-jnp.inf)[:U] for n in (1, 2))
        came = jnp.stack([best, one, jnp.where(lattice.skip, two, -jnp.inf)])  # [3, U]
        new = jnp.where(t < frames, emit + jnp.max(came, axis=0), best)
        return new, jnp.argmax(came, axis=0)

    start = jnp.where(jnp.arange(U) == 0, 0.0, -jnp.inf).astype(log_probs.dtype)
    best, moves = lax.scan(step, start, (jnp.arange(T), lattice.emit))
    best = jnp.where(lattice.final, best, -jnp.inf)

    def back(state, inputs):
        t, moves = inputs
        return jnp.where(t < frames, state - moves[state], state), jnp.where(t < frames, state, -1)

    _, states = lax.scan(back, jnp.argmax(best), (jnp.arange(T), moves), reverse=True)
    return states, jnp.max(best)


def greedy(
    log_probs: LogProbs, frames: Count, blank: int = BLANK
) -> tuple[Int[Array, " T"], Int[Array, ""], Float[Array, ""]]:
    """The labels of the most probable alignment -> labels, their count, log p of the alignment.

    Labels are padded with -1. Other labels may be more probable, as a sum over alignments: see ctc_prefix_search.py.
    """
    real = jnp.arange(len(log_probs)) < frames
    best = jnp.where(real, jnp.argmax(log_probs, axis=-1), blank)
    first = jnp.concatenate([jnp.ones(1, bool), best[1:] != best[:-1]]) & (best != blank)
    places = jnp.where(first, jnp.cumsum(first) - 1, len(best))  # a place out of range is dropped
    labels = jnp.full(len(best), -1, best.dtype).at[places].set(best, mode="drop")
    return labels, jnp.sum(first), jnp.sum(jnp.where(real, jnp.max(log_probs, axis=-1), 0))
