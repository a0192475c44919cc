"""Attention: scores of one query against its keys, and what is made of them.

Letters: B batch, T queries, S positions of the memory, Q query width, M memory width, A width of a
hidden layer, N heads, D width of a head.

A score is split as a cell is: `prepare` turns the memory into keys once a sentence, `ask` turns a state into a query,
and `score` is a pure function of one query and its keys [S, ...]. Batch, positions and heads come by `vmap`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

Weights = Mapping[str, Array]


def masked_softmax(scores: Array, mask: Array) -> Array:
    """softmax over the positions where `mask` holds: [..., S]. A row without any gives zeros, with finite gradients."""
    alpha = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min))
    return jnp.where(mask, alpha, 0)


# ------------------------------------------------------------------------------ the scores


class Score(NamedTuple):
    """One row of the table of scores."""

    shapes: Callable[[int, int, int], dict[str, tuple[int, ...]]]  # (Q, M, A) -> shape of each weight
    prepare: Callable[[Weights, Array], Array]  # memory [..., M] -> keys, once a sentence
    ask: Callable[[Weights, Array], Array]  # state [..., Q] -> query, once a step
    score: Callable[[Weights, Array, Array], Array]  # one query and its keys [S, ...] -> [S]


def _dot(weights: Weights, query: Array, keys: Array) -> Array:
    """e_i = q . h_i (Luong et al. 2015)."""
    return keys @ query


def _scaled_dot(weights: Weights, query: Array, keys: Array) -> Array:
    """e_i = q . k_i / sqrt(D) (Vaswani et al. 2017)."""
    return keys @ query / query.shape[-1] ** 0.5


def _additive(weights: Weights, query: Array, keys: Array) -> Array:
    """e_i = v . tanh(W_1 h_i + W_2 s) (Bahdanau et al. 2014); the keys are W_1 h_i, the query is W_2 s."""
    return jnp.tanh(keys + query) @ weights["vector"]


def _as_it_is(weights: Weights, x: Array) -> Array:
    return x


def _through(name: str) -> Callable[[Weights, Array], Array]:
    return lambda weights, x: x @ weights[name]


SCORES = {
    "dot": Score(lambda q, m, a: {}, _as_it_is, _as_it_is, _dot),
    "scaled_dot": Score(lambda q, m, a: {}, _as_it_is, _as_it_is, _scaled_dot),
    # e_i = s W h_i (Luong et al. 2015): a dot with the keys W h_i.
    "general": Score(lambda q, m, a: {"memory": (m, q)}, _through("memory"), _as_it_is, _dot),
    "additive": Score(
        lambda q, m, a: {"memory": (m, a), "query": (q, a), "vector": (a,)},
        _through("memory"), _through("query"), _additive,
    ),
}  # fmt: skip


def attend(
    score: Score, weights: Weights, query: Array, keys: Array, values: Array, mask: Array
) -> tuple[Array, Array]:
    """One query: [Q], [S, ...], [S, M], [S] -> context [M] = sum_i alpha_i v_i, alpha [S] in float32."""
    scores = score.score(weights, query, keys)
    alpha = masked_softmax(scores.astype(at_least_float32(scores.dtype)), mask)
    return alpha.astype(values.dtype) @ values, alpha


def attend_batch(score: Score, weights: Weights, state: Array, keys: Array, values: Array, mask: Array):
    """A batch of states asks: state [B, Q], keys [B, S, ...] -> context [B, M], alpha [B, S]."""
    return jax.vmap(partial(attend, score, weights))(score.ask(weights, state), keys, values, mask)


def attend_all(score: Score, weights: Weights, states: Array, keys: Array, values: Array, mask: Array):
    """All states of a batch ask: states [B, T, Q] -> contexts [B, T, M], alpha [B, T, S]."""
    per_query = jax.vmap(partial(attend, score, weights), in_axes=(0, None, None, None))
    return jax.vmap(per_query)(score.ask(weights, states), keys, values, mask)


def at_least_float32(dtype):
    """Softmax, norms, logits and losses are computed in float32 at the least."""
    return jnp.promote_types(dtype, jnp.float32)


# ------------------------------------------------------------------------------ many heads


def multi_head(queries: Array, keys: Array, values: Array, mask: Array) -> Array:
    """The definition: scaled dot attention of every query and head by itself.

    queries [B, T, N, D], keys and values [B, S, N, D], mask [B, T, S] -> [B, T, N, D].
    """
    one = lambda *args: attend(SCORES["scaled_dot"], {}, *args)[0]
    per_query = jax.vmap(one, in_axes=(0, None, None, 0))  # [T, D], [S, D] -> [T, D]
    per_head = jax.vmap(per_query, in_axes=(1, 1, 1, None), out_axes=1)
    return jax.vmap(per_head)(queries, keys, values, mask)


def fused_multi_head(queries: Array, keys: Array, values: Array, lengths: Array, causal: bool = False) -> Array:
    """The same as `multi_head` in one fused kernel, for a memory whose padding stands at its end.

    lengths [B]: how many of the S positions are real; `causal`: query t sees positions 0..t.
    """
    if queries.dtype == jnp.float64:  # the kernels stop at float32
        real = jnp.arange(keys.shape[1]) < lengths[:, None, None]  # [B, 1, S]
        seen = jnp.tri(queries.shape[1], keys.shape[1], dtype=bool) if causal else True  # [T, S]
        return multi_head(queries, keys, values, jnp.broadcast_to(real & seen, (*queries.shape[:2], keys.shape[1])))
    attended = jax.nn.dot_product_attention(
        queries, keys, values,
        is_causal=causal,
        # An empty row must stay finite: it looks at one position, and is zeroed below.
        key_value_seq_lengths=jnp.maximum(lengths, 1).astype(jnp.int32),
        implementation=_kernel(queries),
    )  # fmt: skip
    return jnp.where((lengths > 0)[:, None, None, None], attended, 0)


def _kernel(queries: Array) -> Literal["cudnn", "xla"]:
    """cuDNN's flash attention where the device and the shapes allow it, XLA's elsewhere."""
    half = queries.dtype in (jnp.bfloat16, jnp.float16)
    width = queries.shape[-1]
    return "cudnn" if jax.default_backend() == "gpu" and half and width % 8 == 0 and width <= 128 else "xla"


def attend_heads(queries: Array, keys: Array, values: Array, mask: Array) -> tuple[Array, Array]:
    """Some queries that tell their weights: [B, K, N, D], [B, N, S, D], mask [B, K, S] -> [B, K, N, D], [B, N, K, S].

    Heads stand before positions, so that each head reads one block of memory: on a CPU four times faster than behind.
    Where each query has keys and values of its own, these are [B, N, K, S, D].
    """
    own = "k" if keys.ndim == 5 else ""
    scores = jnp.einsum(f"bknd,bn{own}sd->bnks", queries, keys, preferred_element_type=at_least_float32(queries.dtype))
    alpha = masked_softmax(scores / queries.shape[-1] ** 0.5, mask[:, None])
    return jnp.einsum(f"bnks,bn{own}sd->bnkd", alpha.astype(values.dtype), values).swapaxes(1, 2), alpha
