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

from s2sjax.core import device, fused, short
from s2sjax.core.products import at_least_float32, product
from s2sjax.core.tables import Table

Weights = Mapping[str, Array]


def masked_softmax(scores: Array, mask: Array) -> Array:
    """softmax over the positions where `mask` is True: [..., S]. An all-masked row gives zeros and finite gradients."""
    alpha = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min))
    return jnp.where(mask, alpha, 0)


# ------------------------------------------------------------------------------ the scores


class Score(NamedTuple):
    """One row of the table of scores. Products with matrices belong in `prepare` and `query`, not in `score`."""

    shapes: Callable[[int, int, int], dict[str, tuple[int, ...]]]  # (Q, M, A) -> shape of each weight
    prepare: Callable[[Weights, Array], Array]  # memory [..., M] -> keys, once per sentence
    query: Callable[[Weights, Array], Array]  # state [..., Q] -> query, once per step
    score: Callable[[Weights, Array, Array], Array]  # one query and its keys [S, ...] -> [S]
    equal_widths: bool = False  # it requires Q = M


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
    "dot": Score(lambda q, m, a: {}, _identity, _identity, _dot, True),
    "scaled_dot": Score(lambda q, m, a: {}, _identity, _identity, _scaled_dot, True),
    # e_i = s W h_i (Luong et al. 2015): a dot with the keys W h_i.
    "general": Score(lambda q, m, a: {"memory": (m, q)}, _matmul("memory"), _identity, _dot),
    "additive": Score(
        lambda q, m, a: {"memory": (m, a), "query": (q, a), "vector": (a,)},
        _matmul("memory"), _matmul("query"), _additive,
    ),
    # e_i = cos(s, h_i) (Graves et al. 2014): a dot of unit vectors.
    "cosine": Score(lambda q, m, a: {}, _unit, _unit, _dot, True),
})  # fmt: skip


def add_coverage(weights: Weights, keys: Array, coverage: Array) -> Array:
    """Keys of the additive score with coverage: e_i = v . tanh(W_1 h_i + W_2 s + w_c cov_i).

    keys [..., S, A], coverage [..., S] = the sum of all alpha so far -> [..., S, A]. Tu et al. 2016, See et al. 2017.
    """
    return keys + coverage[..., None].astype(keys.dtype) * weights["coverage"]


def attend(
    score: Score,
    weights: Weights,
    query: Array,
    keys: Array,
    values: Array,
    mask: Array,
    *,
    bias: Array | None = None,
    window: Array | None = None,
) -> tuple[Array, Array]:
    """One query: [Q], [S, ...], [S, M], [S] -> context [M] = sum_i alpha_i v_i, alpha [S] in float32.

    bias [S] is added to the scores. window [S] scales the weights (see core/local.py): alpha = softmax(e) window,
    the softmax over the positions where it is above 0.
    """
    scores = score.score(weights, query, keys)
    scores = scores.astype(at_least_float32(scores.dtype))
    scores = scores if bias is None else scores + bias
    alpha = masked_softmax(scores, mask) if window is None else masked_softmax(scores, mask & (window > 0)) * window
    return alpha.astype(values.dtype) @ values, alpha


# In the following `options` are the keywords of `attend`, with the axes of the queries in front.


def attend_batch(score: Score, weights: Weights, state: Array, keys: Array, values: Array, mask: Array, **options):
    """One query per sentence: state [B, Q], keys [B, S, ...] -> context [B, M], alpha [B, S]."""
    return jax.vmap(partial(attend, score, weights))(score.query(weights, state), keys, values, mask, **options)


def attend_all(score: Score, weights: Weights, states: Array, keys: Array, values: Array, mask: Array, **options):
    """All queries of each sentence: states [B, T, Q] -> contexts [B, T, M], alpha [B, T, S]."""
    per_query = jax.vmap(partial(attend, score, weights), in_axes=(0, None, None, None))
    return jax.vmap(per_query)(score.query(weights, states), keys, values, mask, **options)


def pool(score: Score, weights: Weights, queries: Array, memory: Array, mask: Array) -> tuple[Array, Array]:
    """Learned queries, the same for every memory: [P, Q], [B, S, M], mask [B, S] -> [B, P, M], alpha [B, P, S].

    Yang et al. 2016, Lin et al. 2017: a sentence of any length as P vectors. An empty sentence gives zeros.
    """
    states = jnp.broadcast_to(queries, (len(memory), *queries.shape))
    return attend_all(score, weights, states, score.prepare(weights, memory), memory, mask)


# ------------------------------------------------------------------------------ many heads


def multi_head(queries: Array, keys: Array, values: Array, mask: Array, bias: Array | None = None) -> Array:
    """Reference implementation: scaled dot-product attention of every query and head separately.

    queries [B, T, N, D], keys and values [B, S, N, D], mask [B, T, S], bias [B or 1, N, T, S] -> [B, T, N, D].
    """
    if bias is not None:
        bias = jnp.broadcast_to(bias, (len(queries), *bias.shape[1:]))
    one = lambda *args, **options: attend(SCORES["scaled_dot"], {}, *args, **options)[0]
    per_query = jax.vmap(one, in_axes=(0, None, None, 0))  # [T, D], [S, D] -> [T, D]
    per_head = jax.vmap(per_query, in_axes=(1, 1, 1, None), out_axes=1)
    return jax.vmap(per_head)(queries, keys, values, mask, bias=bias)


def fused_multi_head(
    queries: Array, keys: Array, values: Array, lengths: Array, causal: bool = False, bias: Array | None = None
) -> Array:
    """The same as `multi_head` in one fused kernel, for a memory with its padding at the end.

    lengths [B]: how many of the S positions are real; `causal`: query t sees positions 0..t; bias [B or 1, N, T, S].
    For rows with several sequences, `lengths` is a mask [B, T, S] instead: see `same_segment`.
    """
    if lengths.ndim == 3:
        return _masked_multi_head(queries, keys, values, lengths, causal, bias)
    if queries.dtype == jnp.float64:  # the kernels do not support float64
        real = jnp.arange(keys.shape[1]) < lengths[:, None, None]  # [B, 1, S]
        seen = jnp.tri(queries.shape[1], keys.shape[1], dtype=bool) if causal else True  # [T, S]
        mask = jnp.broadcast_to(real & seen, (*queries.shape[:2], keys.shape[1]))
        return multi_head(queries, keys, values, mask, bias)
    # XLA's is the only one that takes a bias here: cuDNN's gradient of one fails for odd lengths.
    kernel = device.attention_kernel(queries, keys) if bias is None else "xla"
    if kernel == "short":
        return short.attend(queries, keys, values, lengths, short.Static(causal))
    # An empty row must stay finite: it attends to one position, whose value is zero. XLA sets it where values are made.
    values = jnp.where((lengths > 0)[:, None, None, None], values, 0)
    return jax.nn.dot_product_attention(
        queries, keys, values, bias,
        is_causal=causal,
        key_value_seq_lengths=jnp.maximum(lengths, 1).astype(jnp.int32),
        implementation=kernel,
    )  # fmt: skip


def same_segment(queries: Array, keys: Array) -> Array:
    """Segments [B, T] and [B, S] -> mask [B, T, S]: a query sees its own segment. Padding, 0, sees padding."""
    return queries[:, :, None] == keys[:, None, :]


def _masked_multi_head(
    queries: Array, keys: Array, values: Array, mask: Array, causal: bool, bias: Array | None
) -> Array:
    mask = mask & jnp.tri(queries.shape[1], keys.shape[1], dtype=bool) if causal else mask
    if queries.dtype == jnp.float64:
        return multi_head(queries, keys, values, mask, bias)
    # XLA's kernel: cuDNN's takes lengths or a full bias, and the bias would cost more than it saves. A query that sees
    # nothing attends uniformly to everything, which is finite, and is set to zero.
    attended = jax.nn.dot_product_attention(queries, keys, values, bias, mask=mask[:, None], implementation="xla")
    return jnp.where(mask.any(-1)[..., None, None], attended, 0)


def attend_heads(
    queries: Array, keys: Array, values: Array, mask: Array, bias: Array | None = None
) -> tuple[Array, Array]:
    """A few queries, with their weights: [B, K, N, D], [B, N, S, D], mask [B, K, S] -> [B, K, N, D], [B, N, K, S].

    Heads come before positions, so that each head reads one block of memory: on a CPU this is four times faster.
    If each query has its own keys and values, these are [B, N, K, S, D]. bias: added to the scores [B, N, K, S].
    """
    own = "k" if keys.ndim == 5 else ""
    # Keys first: XLA's CPU compiler would transpose the second operand.
    scores = jnp.einsum(f"bn{own}sd,bknd->bnks", keys, queries, preferred_element_type=at_least_float32(queries.dtype))
    scores = scores / queries.shape[-1] ** 0.5
    alpha = masked_softmax(scores if bias is None else scores + bias, mask[:, None])
    if bias is None and not own and fused.fits(queries):  # the weights are computed only where they are used
        return fused.attend(queries, keys, values, mask), alpha
    return jnp.einsum(f"bnks,bn{own}sd->bnkd", alpha.astype(values.dtype), values).swapaxes(1, 2), alpha
