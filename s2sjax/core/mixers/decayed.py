"""Sums of outer products that decay: linear attention, retention, state-space duality, gated linear attention.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T      y_t = S_t^T q_t

The state S is a matrix [K, V] for each head. In `DECAYED`, a_t is one number for each head: 1 for linear attention
(Katharopoulos et al. 2020), a constant for retention (Sun et al. 2023), a function of the input for state-space duality
(Dao and Gu 2024). In `GATED` it is a vector over the keys: gated linear attention (Yang et al. 2023).

With b_t = log a_1 + .. + log a_t within a chunk, and S_0 the state before it, all positions of a chunk at once are

    y_i = exp(b_i) S_0^T q_i  +  sum_{j <= i} exp(b_i - b_j) (q_i . k_j) v_j
    S_C = exp(b_C) S_0        +  sum_j exp(b_C - b_j) k_j v_j^T

Letters: B batch, M chunks, C positions of a chunk, N heads, G groups of heads that share queries and keys, R = N / G,
K key width, V value width.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from s2sjax.core.backend import device
from s2sjax.core.backend.matmul import at_least_float32
from s2sjax.core.mixers.forms import Inputs, Recurrence, Sight

MatrixState = Float[Array, "B N K V"]
FORGOTTEN = -30.0
"""log of the fastest decay in one position; faster ones count as this one. It leaves nothing that float32 can tell from
0, and keeps the sums b_t small, whose differences would lose digits"""
LEAST_LOG_DECAY = -5.0
"""log of the fastest decay of a key's feature in one position, in `GATED`; faster ones count as this one"""
BLOCK = 16
"""positions of the blocks of a chunk in `GATED`: exp(-LEAST_LOG_DECAY * BLOCK) is finite in float32"""


def einsum(formula: str, *operands: Array) -> Array:
    """A product in the dtype of the operands with a float32 result.

    It is rounded to that dtype first, so that the gradients are products of narrow operands too: see core/backend.
    """
    found = jnp.einsum(formula, *operands)
    return found.astype(at_least_float32(found.dtype))


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


def carried(
    state: MatrixState, through: Float[Array, "B M N #K"], update: Float[Array, "B M N K V"]
) -> tuple[Float[Array, "B M N K V"], MatrixState]:
    """The state before each chunk, and after the last: S -> through * S + update."""

    def one(state, now):
        through, update = now
        return through[..., None] * state + update, state

    last, states = lax.scan(
        one, state, (jnp.moveaxis(through, 1, 0), jnp.moveaxis(update, 1, 0)), unroll=device.scan_unroll()
    )
    return jnp.moveaxis(states, 0, 1), last


def bounded(log_decay: Array, dtype: Any, least: float = FORGOTTEN) -> Array:
    """The logarithms of the decays, none of which is faster than the least one."""
    return jnp.maximum(log_decay.astype(dtype), least)


# ---------------------------------------------------------------------------------- one decay a head


def _decayed_step(state: MatrixState, inputs: Inputs) -> tuple[MatrixState, Array]:
    decay = jnp.exp(bounded(inputs["log_decay"], state.dtype))[..., None, None]
    return read_and_write(decay * state, inputs["query"], inputs["key"], inputs["value"])


def _decayed_chunks(state: MatrixState, inputs: Inputs, sight: Sight) -> tuple[MatrixState, Array]:
    query, key, value = inputs["query"], inputs["key"], inputs["value"]
    dtype, groups = value.dtype, key.shape[3]
    grouped = lambda x, axis: x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])  # N -> G, R
    b = jnp.cumsum(bounded(inputs["log_decay"], state.dtype), axis=2)  # [B, M, C, N]
    weights = einsum("bmigk,bmjgk->bmgij", query, key)[:, :, :, None]  # [B, M, G, 1, C, C]
    weights = (weights * grouped(decay_between(b, sight), 2)).astype(dtype)
    own = einsum("bmgrij,bmjgrv->bmigrv", weights, grouped(value, 3))

    to_end = jnp.where(sight.after[..., None], jnp.exp(b[:, :, -1:] - b), 0)
    update = einsum("bmjgk,bmjgrv->bmgrkv", key, grouped((value * to_end[..., None]).astype(dtype), 3))
    through = jnp.where(sight.through[..., None], jnp.exp(b[:, :, -1]), 0)
    states, last = carried(state, through[..., None], update.reshape(*through.shape, *update.shape[-2:]))

    from_start = jnp.where(sight.before[..., None], jnp.exp(b), 0)
    past = einsum("bmigk,bmgrkv->bmigrv", query, grouped(states.astype(dtype), 2))
    return last, (own.reshape(value.shape) + past.reshape(value.shape) * from_start[..., None]).astype(dtype)


def decay_between(b: Float[Array, "B M C N"], sight: Sight) -> Float[Array, "B M N C C"]:
    """exp(b_i - b_j) where position i sees position j, else 0."""
    b = jnp.moveaxis(b, 3, 2)
    return jnp.exp(jnp.where(sight.pairs[:, :, None], b[..., :, None] - b[..., None, :], -jnp.inf))


DECAYED = Recurrence(matrix_start, _decayed_step, {"key": 0, "log_decay": 0}, _decayed_chunks)
"""inputs: query, key [B, T, G, K], value [B, T, N, V], log_decay [B, T, N], where G divides N"""

# -------------------------------------------------------------------------- one decay for each key feature


def _gated_step(state: MatrixState, inputs: Inputs) -> tuple[MatrixState, Array]:
    decay = jnp.exp(bounded(inputs["log_decay"], state.dtype, LEAST_LOG_DECAY))[..., None]
    return read_and_write(decay * state, inputs["query"], inputs["key"], inputs["value"])


def _gated_chunks(state: MatrixState, inputs: Inputs, sight: Sight) -> tuple[MatrixState, Array]:
    query, key, value = inputs["query"], inputs["key"], inputs["value"]
    dtype = value.dtype
    b = jnp.cumsum(bounded(inputs["log_decay"], state.dtype, LEAST_LOG_DECAY), axis=2)  # [B, M, C, N, K]
    weights = jnp.where(sight.pairs[:, :, None], _gated_weights(query, key, b), 0).astype(dtype)
    own = einsum("bmnij,bmjnv->bminv", weights, value)

    to_end = jnp.where(sight.after[..., None, None], jnp.exp(b[:, :, -1:] - b), 0)
    update = einsum("bmjnk,bmjnv->bmnkv", (key * to_end).astype(dtype), value)
    through = jnp.where(sight.through[..., None, None], jnp.exp(b[:, :, -1]), 0)
    states, last = carried(state, through, update)

    from_start = jnp.where(sight.before[..., None, None], jnp.exp(b), 0)
    past = einsum("bmink,bmnkv->bminv", (query * from_start).astype(dtype), states.astype(dtype))
    return last, (own + past).astype(dtype)


def _gated_weights(query: Array, key: Array, b: Array) -> Float[Array, "B M N C C"]:
    """sum_k q_ik k_jk exp(b_ik - b_jk) for j <= i; finite, but arbitrary, for j > i.

    exp(b_i) and exp(-b_j) apart would overflow. So the queries are taken in blocks, and both are counted from the
    middle r of the block: exp(b_i - r) exp(r - b_j). Within the block, both are between the root of
    exp(LEAST_LOG_DECAY * BLOCK) and its inverse, which leaves room for small and large queries and keys.
    """
    size = b.shape[2]
    rows = []
    for first in range(0, size, BLOCK):
        block = slice(first, min(first + BLOCK, size))
        middle = (first + block.stop) // 2
        r = b[:, :, middle : middle + 1]
        near = jnp.exp(b[:, :, block] - r)
        far = jnp.exp(r - b[:, :, : block.stop])
        scaled = (query[:, :, block] * near).astype(query.dtype), (key[:, :, : block.stop] * far).astype(key.dtype)
        found = einsum("bmink,bmjnk->bmnij", *scaled)
        rows.append(jnp.pad(found, ((0, 0),) * 4 + ((0, size - block.stop),)))
    return jnp.concatenate(rows, axis=3)


GATED = Recurrence(matrix_start, _gated_step, {"key": 0, "log_decay": 0}, _gated_chunks)
"""inputs: query, key, log_decay [B, T, N, K], value [B, T, N, V]"""
