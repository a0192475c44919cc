"""Attention: scores of a query against its keys, and the weighted sum of the values.

Letters: B batch, T queries, S positions of the memory, P learned queries, Q query width, M memory width, A width of a
hidden layer, N heads, D width of a head.

A score has parts, like a cell: `prepare` turns the memory into keys once per sentence, `query` turns a state into a
query, and `score` is a pure function of one query and its keys [S, ...]. Batch, positions and heads come from `vmap`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2sjax.core.backend.matmul import at_least_float32, product
from s2sjax.core.tables import Table

Weights = Mapping[str, Array]


def masked_softmax(scores: Array, mask: Array) -> Array:
    """Softmax of scores [..., S] over the positions where mask [..., S] is True, and 0 elsewhere.

    A fully masked row gives zeros, with finite gradients.
    """
    alpha = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min))
    return jnp.where(mask, alpha, 0)


# ------------------------------------------------------------------------------ the scores


class AttentionScore(NamedTuple):
    """A score function, as listed in `SCORES`. Matrix products belong in `prepare` and `query`, not in `score`."""

    shapes: Callable[[int, int, int], dict[str, tuple[int, ...]]]  # (Q, M, A) -> shape of each weight
    prepare: Callable[[Weights, Array], Array]  # memory [..., M] -> keys, once per sentence
    query: Callable[[Weights, Array], Array]  # state [..., Q] -> query, once per step
    score: Callable[[Weights, Array, Array], Array]  # one query and its keys [S, ...] -> [S]
    equal_widths: bool = False  # whether Q = M is required


def _dot(weights: Weights, query: Array, keys: Array) -> Array:
    """e_i = q . h_i (Luong et al. 2015)."""
    return keys @ query


def _scaled_dot(weights: Weights, query: Array, keys: Array) -> Array:
    """e_i = q . k_i / sqrt(D) (Vaswani et al. 2017)."""
    return keys @ query / query.shape[-1] ** 0.5


def _additive(weights: Weights, query: Array, keys: Array) -> Array:
    """e_i = v . tanh(W_1 h_i + W_2 s) (Bahdanau et al. 2014); the keys are W_1 h_i, the query is W_2 s."""
    return jnp.tanh(keys + query) @ weights["vector"]


def unit(x: Array) -> Array:
    """x / |x|: [..., D]. Vectors shorter than 1e-6 give zeros, with zero gradients.

    Example: (3, 4) -> (0.6, 0.8); (0, 0) -> (0, 0).
    """
    exact = x.astype(at_least_float32(x.dtype))
    square = jnp.sum(exact**2, axis=-1, keepdims=True)
    long = square > 1e-12
    return jnp.where(long, exact * jax.lax.rsqrt(jnp.where(long, square, 1)), 0).astype(x.dtype)


def _identity(weights: Weights, x: Array) -> Array:
    return x


def _unit(weights: Weights, x: Array) -> Array:
    return unit(x)


def _matmul(name: str) -> Callable[[Weights, Array], Array]:
    return lambda weights, x: product(x, weights[name])


SCORES = Table({
    "dot": AttentionScore(lambda q, m, a: {}, _identity, _identity, _dot, True),
    "scaled_dot": AttentionScore(lambda q, m, a: {}, _identity, _identity, _scaled_dot, True),
    # e_i = s W h_i (Luong et al. 2015): a dot with the keys W h_i.
    "general": AttentionScore(lambda q, m, a: {"memory": (m, q)}, _matmul("memory"), _identity, _dot),
    "additive": AttentionScore(
        lambda q, m, a: {"memory": (m, a), "query": (q, a), "vector": (a,)},
        _matmul("memory"), _matmul("query"), _additive,
    ),
    # e_i = cos(s, h_i) (Graves et al. 2014): a dot of unit vectors.
    "cosine": AttentionScore(lambda q, m, a: {}, _unit, _unit, _dot, True),
})  # fmt: skip


def add_coverage(weights: Weights, keys: Array, coverage: Array) -> Array:
    """Adds coverage to the keys of the additive score: e_i = v . tanh(W_1 h_i + W_2 s + w_c cov_i).

    keys [..., S, A], coverage [..., S]: the sum of the attention weights so far -> [..., S, A]. w_c [A] is the weight
    "coverage". Tu et al. 2016, See et al. 2017.
    """
    return keys + coverage[..., None].astype(keys.dtype) * weights["coverage"]


def attend(
    score: AttentionScore,
    weights: Weights,
    query: Array,
    keys: Array,
    values: Array,
    mask: Array,
    *,
    bias: Array | None = None,
    window: Array | None = None,
) -> tuple[Array, Array]:
    """Attention of one query -> context [M] = sum_i alpha_i v_i, weights alpha [S] in at least float32.

    query: [Q] or [A], made by `score.query`
    keys: [S, ...] made by `score.prepare`
    values: [S, M]
    mask: [S] True for real positions
    bias: [S] added to the scores
    window: [S] multiplies the weights (local_window.py); the softmax is over the positions where it is above 0
    """
    scores = score.score(weights, query, keys)
    scores = scores.astype(at_least_float32(scores.dtype))
    scores = scores if bias is None else scores + bias
    alpha = masked_softmax(scores, mask) if window is None else masked_softmax(scores, mask & (window > 0)) * window
    return alpha.astype(values.dtype) @ values, alpha


def attend_batch(
    score: AttentionScore, weights: Weights, state: Array, keys: Array, values: Array, mask: Array, **options
):
    """Attention of one state [B, Q] per sentence -> context [B, M], weights alpha [B, S].

    The other arguments and the options are those of `attend`, with an axis B in front.
    """
    return jax.vmap(partial(attend, score, weights))(score.query(weights, state), keys, values, mask, **options)


def attend_all(
    score: AttentionScore, weights: Weights, states: Array, keys: Array, values: Array, mask: Array, **options
):
    """Attention of all states [B, T, Q] of each sentence -> contexts [B, T, M], weights alpha [B, T, S].

    The other arguments are those of `attend` with an axis B in front, the options with axes B, T.
    """
    per_query = jax.vmap(partial(attend, score, weights), in_axes=(0, None, None, None))
    return jax.vmap(per_query)(score.query(weights, states), keys, values, mask, **options)


def pool(score: AttentionScore, weights: Weights, queries: Array, memory: Array, mask: Array) -> tuple[Array, Array]:
    """Pools each memory with P learned queries -> [B, P, M], weights alpha [B, P, S].

    queries [P, Q], shared by all sentences; memory [B, S, M]; mask [B, S], True for real positions. A sentence of any
    length becomes P vectors; an empty one gives zeros. Yang et al. 2016, Lin et al. 2017.
    """
    states = jnp.broadcast_to(queries, (len(memory), *queries.shape))
    return attend_all(score, weights, states, score.prepare(weights, memory), memory, mask)
