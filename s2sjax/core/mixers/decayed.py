"""Sums of outer products that decay: linear attention, retention, state-space duality, gated linear attention.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T      y_t = S_t^T q_t

The state S is a matrix [K, V] for each head. In `DECAYED`, a_t is one number for each head: 1 for linear attention
(Katharopoulos et al. 2020), a constant for retention (Sun et al. 2023), a function of the input for state-space duality
(Dao and Gu 2024). In `GATED` it is a vector over the keys: gated linear attention (Yang et al. 2023).

With b_t = log a_1 + .. + log a_t within a chunk, and S_0 the state before it, all positions of a chunk at once are

    y_i = exp(b_i) S_0^T q_i  +  sum_{j <= i} exp(b_i - b_j) (q_i . k_j) v_j
    S_C = exp(b_C) S_0        +  sum_j exp(b_C - b_j) k_j v_j^T

Letters: M chunks, B batch, C positions of a chunk, N heads, G groups of heads that share queries and keys, K key width,
V value width.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from s2sjax.core.backend.matmul import at_least_float32
from s2sjax.core.mixers.chunks import MatrixState, carried, einsum, heads_first, positions_first, read
from s2sjax.core.mixers.forms import Inputs, Recurrence, Sight

FORGOTTEN = -30.0
"""log of the fastest decay in one position; faster ones count as this one. It leaves nothing that float32 can tell from
0, and keeps the sums b_t small, whose differences would lose digits"""
LEAST_LOG_DECAY = -5.0
"""log of the fastest decay of a key's feature in one position, in `GATED`; faster ones count as this one"""
BLOCK = 16
"""positions of the blocks of a chunk in `GATED`: exp(-LEAST_LOG_DECAY * BLOCK) is finite in float32"""


def matrix_start(inputs: Inputs) -> MatrixState:
    """A matrix of zeros for each head."""
    key, value = inputs["key"], inputs["value"]
    shape = (len(value), value.shape[2], key.shape[-1], value.shape[-1])
    return jnp.zeros(shape, at_least_float32(value.dtype))


def read_and_write(state: MatrixState, query: Array, key: Array, value: Array) -> tuple[MatrixState, Array]:
    """S + k v^T, and the result read by q: query and key [B, G, K], value [B, N, V] -> state, y [B, N, V]."""
    exact = state.dtype
    query, key = (jnp.repeat(part, value.shape[1] // part.shape[1], axis=1).astype(exact) for part in (query, key))
    state = state + key[..., None] * value.astype(exact)[..., None, :]
    return state, jnp.einsum("bnk,bnkv->bnv", query, state).astype(value.dtype)


def bounded(log_decay: Array, dtype: Any, least: float = FORGOTTEN) -> Array:
    """The logarithms of the decays, none of which is faster than the least one."""
    return jnp.maximum(log_decay.astype(dtype), least)


# ---------------------------------------------------------------------------------- one decay a head


def _decayed_step(state: MatrixState, inputs: Inputs) -> tuple[MatrixState, Array]:
    decay = jnp.exp(bounded(inputs["log_decay"], state.dtype))[..., None, None]
    return read_and_write(decay * state, inputs["query"], inputs["key"], inputs["value"])


def _decayed_chunks(state: MatrixState, inputs: Inputs, sight: Sight) -> tuple[MatrixState, Array]:
    key, value = heads_first(inputs["key"]), heads_first(inputs["value"])
    dtype, groups, heads = value.dtype, key.shape[2], value.shape[2]
    b = jnp.cumsum(bounded(heads_first(inputs["log_decay"]), state.dtype), axis=3)  # [M, B, N, C]

    to_end = jnp.where(sight.after[:, :, None], jnp.exp(b[..., -1:] - b), 0)[..., None]
    late = (value * to_end).astype(dtype).reshape(*value.shape[:2], groups, heads // groups, *value.shape[3:])
    update = jnp.einsum("mbgjk,mbgrjv->mbgrkv", key, late)
    through = jnp.where(sight.through[:, :, None], jnp.exp(b[..., -1]), 0)[..., None]
    states, last = carried(state, through, update.reshape(*through.shape[:3], *update.shape[-2:]))

    from_start = jnp.where(sight.before[:, :, None], jnp.exp(b), 0)
    return last, read(inputs["query"], inputs["key"], inputs["value"], b, -b, from_start, states, sight.pairs)


DECAYED = Recurrence(matrix_start, _decayed_step, {"key": 0, "log_decay": 0}, _decayed_chunks)
"""inputs: query, key [B, T, G, K], value [B, T, N, V], log_decay [B, T, N], where G divides N"""

# -------------------------------------------------------------------------- one decay for each key feature


def _gated_step(state: MatrixState, inputs: Inputs) -> tuple[MatrixState, Array]:
    decay = jnp.exp(bounded(inputs["log_decay"], state.dtype, LEAST_LOG_DECAY))[..., None]
    return read_and_write(decay * state, inputs["query"], inputs["key"], inputs["value"])


def _gated_chunks(state: MatrixState, inputs: Inputs, sight: Sight) -> tuple[MatrixState, Array]:
    query, key, value = (heads_first(inputs[name]) for name in ("query", "key", "value"))
    dtype = value.dtype
    b = jnp.cumsum(bounded(heads_first(inputs["log_decay"]), state.dtype, LEAST_LOG_DECAY), axis=3)  # [M, B, N, C, K]
    weights = jnp.where(sight.pairs[:, :, None], _gated_weights(query, key, b), 0).astype(dtype)
    own = einsum("mbnij,mbnjv->mbniv", weights, value)

    to_end = jnp.where(sight.after[:, :, None, :, None], jnp.exp(b[..., -1:, :] - b), 0)
    update = jnp.einsum("mbnjk,mbnjv->mbnkv", (key * to_end).astype(dtype), value)
    through = jnp.where(sight.through[:, :, None, None], jnp.exp(b[..., -1, :]), 0)
    states, last = carried(state, through, update)

    from_start = jnp.where(sight.before[:, :, None, :, None], jnp.exp(b), 0)
    past = einsum("mbnik,mbnkv->mbniv", (query * from_start).astype(dtype), states)
    return last, positions_first((own + past).astype(dtype))


@jax.custom_vjp
def _gated_weights(
    query: Float[Array, "M B N C K"], key: Float[Array, "M B N C K"], b: Float[Array, "M B N C K"]
) -> Float[Array, "M B N C C"]:
    """w_ij = sum_k q_ik k_jk exp(b_ik - b_jk) for j <= i; finite, but arbitrary, for j > i.

    exp(b_i) and exp(-b_j) apart would overflow. So the queries are taken in blocks, and both are counted from the
    middle r of the block: exp(b_i - r) exp(r - b_j). Within the block, both are between the root of
    exp(LEAST_LOG_DECAY * BLOCK) and its inverse, which leaves room for small and large queries and keys.

    The gradient of b is q * dq - k * dk, since w depends on b only through q exp(b) and k exp(-b).
    """
    rows = []
    for block in _blocks(query.shape[3]):
        near, far = _scales(b, block)
        found = einsum("mbnik,mbnjk->mbnij", *_scaled(query, key, near, far))
        rows.append(jnp.pad(found, ((0, 0),) * 4 + ((0, query.shape[3] - block.stop),)))
    return jnp.concatenate(rows, axis=3)


def _blocks(size: int) -> list[slice]:
    return [slice(first, min(first + BLOCK, size)) for first in range(0, size, BLOCK)]


def _scales(b: Array, block: slice) -> tuple[Array, Array]:
    """exp(b_i - r) for the block, and exp(r - b_j) for all positions up to its end."""
    middle = (block.start + block.stop) // 2
    r = b[..., middle : middle + 1, :]
    return jnp.exp(b[..., block, :] - r), jnp.exp(r - b[..., : block.stop, :])


def _scaled(query: Array, key: Array, near: Array, far: Array) -> tuple[Array, Array]:
    end, size = far.shape[-2], near.shape[-2]
    return (query[..., end - size : end, :] * near).astype(query.dtype), (key[..., :end, :] * far).astype(key.dtype)


def _gated_weights_backward(saved: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array, Array]:
    query, key, b = saved
    blocks = _blocks(query.shape[3])
    d_query, d_keys = [], []
    for block in blocks:
        near, far = _scales(b, block)
        scaled_query, scaled_key = _scaled(query, key, near, far)
        narrow = gradient[..., block, : block.stop].astype(query.dtype)
        d_query.append(near * einsum("mbnij,mbnjk->mbnik", narrow, scaled_key))
        d_keys.append(far * einsum("mbnij,mbnik->mbnjk", narrow, scaled_query))
    # Each block of keys is read by the queries of its own block and of those after it.
    of_blocks = [functools.reduce(jnp.add, (d[..., block, :] for d in d_keys[i:])) for i, block in enumerate(blocks)]
    dq, dk = jnp.concatenate(d_query, axis=3), jnp.concatenate(of_blocks, axis=3)
    return dq.astype(query.dtype), dk.astype(key.dtype), query * dq - key * dk


_gated_weights.defvjp(lambda *inputs: (_gated_weights(*inputs), inputs), _gated_weights_backward)

GATED = Recurrence(matrix_start, _gated_step, {"key": 0, "log_decay": 0}, _gated_chunks)
"""inputs: query, key, log_decay [B, T, N, K], value [B, T, N, V]"""
