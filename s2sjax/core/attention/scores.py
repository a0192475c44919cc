"""Attention: scores of a query against its keys, and the weighted sum of the values.

Letters: B batch, T queries, S positions of the memory, P learned queries, Q query width, M memory width, A width of a
hidden layer.

A score has parts, like a cell: `prepare` turns the memory into keys once per sentence, `query` turns a state into a
query, and `score` is a pure function of one query and its keys [S, ...]. Batch, positions and heads come from `vmap`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from s2sjax.core.backend.matmul import at_least_float32, product
from s2sjax.core.tables import Table

Weights = Mapping[str, Any]
"""arrays, or what stands for a matrix in `x @ matrix`, such as a `Quantised`"""


def masked_softmax(scores: Float[Array, "... S"], mask: Bool[Array, "... S"]) -> Float[Array, "... S"]:
    """Softmax over the positions where the mask is True, and 0 elsewhere.

    A fully masked row gives zeros, with finite gradients.

    >>> masked_softmax(jnp.array([[1.0, 1.0, 5.0], [1.0, 1.0, 5.0]]), jnp.array([[True, True, False], [False] * 3]))
    Array([[0.5, 0.5, 0. ],
           [0. , 0. , 0. ]], dtype=float32)
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
    return jnp.tanh(keys + query[None]) @ weights["vector"]


def unit(x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """x / |x|. Vectors shorter than 1e-6 give zeros, with zero gradients: (3, 4) -> (0.6, 0.8), (0, 0) -> (0, 0)."""
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


def add_coverage(
    weights: Weights, keys: Float[Array, "... S A"], coverage: Float[Array, "... S"]
) -> Float[Array, "... S A"]:
    """Adds coverage to the keys of the additive score: e_i = v . tanh(W_1 h_i + W_2 s + w_c cov_i).

    `coverage` is the sum of the attention weights so far, w_c [A] the weight "coverage". Tu et al. 2016, See et al.
    2017.
    """
    return keys + coverage[..., None].astype(keys.dtype) * jax.lax.broadcast_to_rank(weights["coverage"], keys.ndim)


def attend(
    score: AttentionScore,
    weights: Weights,
    query: Float[Array, "..."],
    keys: Float[Array, "S ..."],
    values: Float[Array, "S M"],
    mask: Bool[Array, " S"],
    *,
    bias: Float[Array, " S"] | None = None,
    window: Float[Array, " S"] | None = None,
) -> tuple[Float[Array, " M"], Float[Array, " S"]]:
    """Attention of one query -> context = sum_i alpha_i v_i, weights alpha in at least float32.

    query: made by `score.query`
    keys: made by `score.prepare`
    mask: True for real positions
    bias: added to the scores
    window: multiplies the weights (local_window.py); the softmax is over the positions where it is above 0

    >>> keys = jnp.eye(2)
    >>> context, alpha = attend(SCORES["dot"], {}, jnp.array([9.0, 0.0]), keys, keys, jnp.array([True, True]))
    >>> alpha.round(3)  # nearly all weight is on the key that points where the query does
    Array([1., 0.], dtype=float32)
    """
    scores = score.score(weights, query, keys)
    scores = scores.astype(at_least_float32(scores.dtype))
    scores = scores if bias is None else scores + bias
    alpha = masked_softmax(scores, mask) if window is None else masked_softmax(scores, mask & (window > 0)) * window
    return alpha.astype(values.dtype) @ values, alpha


def attend_batch(
    score: AttentionScore,
    weights: Weights,
    state: Float[Array, "B Q"],
    keys: Float[Array, "B S ..."],
    values: Float[Array, "B S M"],
    mask: Bool[Array, "B S"],
    **options,
) -> tuple[Float[Array, "B M"], Float[Array, "B S"]]:
    """Attention of one state per sentence -> context, weights alpha. The options of `attend` have an axis B."""
    return jax.vmap(partial(attend, score, weights))(score.query(weights, state), keys, values, mask, **options)


def attend_all(
    score: AttentionScore,
    weights: Weights,
    states: Float[Array, "B T Q"],
    keys: Float[Array, "B S ..."],
    values: Float[Array, "B S M"],
    mask: Bool[Array, "B S"],
    **options,
) -> tuple[Float[Array, "B T M"], Float[Array, "B T S"]]:
    """Attention of all states of each sentence -> contexts, weights alpha. The options of `attend` have axes B, T."""
    per_query = jax.vmap(partial(attend, score, weights), in_axes=(0, None, None, None))
    return jax.vmap(per_query)(score.query(weights, states), keys, values, mask, **options)


def pool(
    score: AttentionScore,
    weights: Weights,
    queries: Float[Array, "P Q"],
    memory: Float[Array, "B S M"],
    mask: Bool[Array, "B S"],
) -> tuple[Float[Array, "B P M"], Float[Array, "B P S"]]:
    """Pools each memory with P learned queries, which all sentences share -> vectors, weights alpha.

    A sentence of any length becomes P vectors; an empty one gives zeros. Yang et al. 2016, Lin et al. 2017.
    """
    states = jnp.broadcast_to(queries, (len(memory), *queries.shape))
    return attend_all(score, weights, states, score.prepare(weights, memory), memory, mask)
