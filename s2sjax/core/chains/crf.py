"""A linear-chain conditional random field (Lafferty et al. 2001) on the scores of a tagger (Huang et al. 2015).

    s(y) = start[y_1] + end[y_n] + sum_t e_t[y_t] + sum_{t>1} transition[y_{t-1}, y_t]
    p(y) = exp(s(y)) / Z,   Z = sum over all K^n sequences y of exp(s(y))

The functions take one sentence: `vmap` them. The first n of its S positions are real. A sentence with n = 0 has one
sequence of tags, the empty one, with score 0.

Letters: S positions, K tags. Arguments:
weights: transition [K, K] from row to column, start [K], end [K]
emissions: the tagger's scores
tags: the sequence y, any value at padding
mask: True for real positions
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

Weights = Mapping[str, Array]
Emissions = Float[Array, "S K"]
Tags = Int[Array, " S"]
Mask = Bool[Array, " S"]


def score(weights: Weights, emissions: Emissions, tags: Tags, mask: Mask) -> Float[Array, ""]:
    """The score s(y)."""
    emitted = jnp.take_along_axis(emissions, tags[:, None], axis=1)[:, 0]
    moved = weights["transition"][tags[:-1], tags[1:]]  # [S - 1]
    last = tags[jnp.maximum(mask.sum() - 1, 0)]
    inside = jnp.sum(jnp.where(mask, emitted, 0)) + jnp.sum(jnp.where(mask[1:], moved, 0))
    return jnp.where(mask[0], inside + weights["start"][tags[0]] + weights["end"][last], 0)


def log_partition(weights: Weights, emissions: Emissions, mask: Mask) -> Float[Array, ""]:
    """The log-partition function log Z.

    alpha_1 = start + e_1;  alpha_t[j] = e_t[j] + log sum_i exp(alpha_{t-1}[i] + transition[i, j])
    """

    def step(alpha: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        emitted, real = inputs
        after = jax.nn.logsumexp(alpha[:, None] + weights["transition"], axis=0) + emitted  # [K]
        return jnp.where(real, after, alpha), None

    alpha, _ = lax.scan(step, weights["start"] + emissions[0], (emissions[1:], mask[1:]))
    return jnp.where(mask[0], jax.nn.logsumexp(alpha + weights["end"]), 0)


def log_likelihood(weights: Weights, emissions: Emissions, tags: Tags, mask: Mask) -> Float[Array, ""]:
    """The log-likelihood log p(y) = s(y) - log Z."""
    return score(weights, emissions, tags, mask) - log_partition(weights, emissions, mask)


def viterbi(weights: Weights, emissions: Emissions, mask: Mask) -> tuple[Tags, Float[Array, ""]]:
    """The best sequence and its score. Ties go to lower tags.

    delta_t[j] = e_t[j] + max_i (delta_{t-1}[i] + transition[i, j]); following each argmax i back from the end gives the
    sequence.

    >>> weights = {"transition": jnp.zeros((2, 2)), "start": jnp.zeros(2), "end": jnp.zeros(2)}
    >>> viterbi(weights, jnp.array([[0.0, 1.0], [2.0, 0.0]]), jnp.array([True, True]))
    (Array([1, 0], dtype=int32), Array(3., dtype=float32))
    """

    def step(delta: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        emitted, real = inputs
        moved = delta[:, None] + weights["transition"]  # [K, K]
        after = jnp.max(moved, axis=0) + emitted
        # At padding a tag points to itself, so that the last real tag is unchanged.
        before = jnp.where(real, jnp.argmax(moved, axis=0), jnp.arange(len(delta)))
        return jnp.where(real, after, delta), before

    delta, before = lax.scan(step, weights["start"] + emissions[0], (emissions[1:], mask[1:]))
    final = delta + weights["end"]
    last = jnp.argmax(final)
    first, rest = lax.scan(lambda tag, before: (before[tag], tag), last, before, reverse=True)
    tags = jnp.concatenate([first[None], rest])
    return jnp.where(mask, tags, 0), jnp.where(mask[0], final[last], 0)
