"""The mLSTM: a matrix state with exponential gates, kept finite by a stabilizer (Beck et al. 2024, xLSTM).

    C_t = f_t C_{t-1} + i_t k_t v_t^T      n_t = f_t n_{t-1} + i_t k_t      y_t = C_t^T q_t / max(|n_t . q_t|, 1)

i_t = exp(.) has no bound. So C and n are stored divided by exp(m_t), where m_t = max(log f_t + m_{t-1}, log i_t) is the
largest logarithm of any factor in them, and the 1 becomes exp(-m_t). n is the last column of the state, for v = 1.

Within a chunk, with b_t = log f_1 + .. + log f_t, position j has the factor exp(b_i - b_j + log i_j) in y_i, and m_i is
the largest of these exponents and of b_i + m_0.

Letters: M chunks, B batch, C positions of a chunk, N heads, K key width, V value width.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from s2sjax.core.backend import device
from s2sjax.core.mixers.chunks import attend, carried, einsum, heads_first, positions_first
from s2sjax.core.mixers.decayed import matrix_start, read_and_write
from s2sjax.core.mixers.forms import Inputs, Recurrence, Sight

NEVER = -1e30
"""the logarithm of a gate that is closed; -inf would give nan in differences"""
LEAST, MOST = -80.0, 40.0
"""bounds of m in exp(-m). Below the first, exp(-m) would overflow, and y is 0 in float32 either way. Above the second,
the square of exp(-m), by which gradients are divided, would be 0, and n . q is rounded by more than exp(-m) anyway"""


class StabilizedState(NamedTuple):
    """C and n, divided by exp(m)."""

    matrix: Float[Array, "B N K V1"]  # C, and n as the last column: V1 = V + 1
    m: Float[Array, "B N"]


def _start(inputs: Inputs) -> StabilizedState:
    matrix = matrix_start({**inputs, "value": _with_one(inputs["value"])})
    return StabilizedState(matrix, jnp.full(matrix.shape[:2], NEVER, matrix.dtype))


def _with_one(value: Array) -> Array:
    return jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)


def _normalized(read: Float[Array, "... V1"], m: Float[Array, "..."]) -> Float[Array, "... V"]:
    least = jnp.exp(-jnp.clip(m, LEAST, MOST))[..., None]
    return read[..., :-1] / jnp.maximum(jnp.abs(read[..., -1:]), least)


def _step(state: StabilizedState, inputs: Inputs) -> tuple[StabilizedState, Array]:
    matrix, before = state
    log_forget, log_input = (inputs[name].astype(before.dtype) for name in ("log_forget", "log_input"))
    m = jnp.maximum(log_forget + before, log_input)
    kept, written = jnp.exp(log_forget + before - m), jnp.exp(log_input - m)
    values = _with_one(inputs["value"]).astype(before.dtype) * written[..., None]
    matrix, read = read_and_write(kept[..., None, None] * matrix, inputs["query"], inputs["key"], values)
    return StabilizedState(matrix, m), _normalized(read, m).astype(inputs["value"].dtype)


def _chunks(state: StabilizedState, inputs: Inputs, sight: Sight) -> tuple[StabilizedState, Array]:
    query, key, value = (heads_first(inputs[name]) for name in ("query", "key", "value"))
    value, dtype, exact = _with_one(value), value.dtype, state.m.dtype
    b = jnp.cumsum(heads_first(inputs["log_forget"].astype(exact)), axis=3)  # [M, B, N, C]
    source = heads_first(inputs["log_input"].astype(exact)) - b  # of position j, without b_i

    # The states between chunks, each divided by the exponential of its m.
    end = jnp.where(sight.through[:, :, None], b[..., -1], NEVER)  # [M, B, N]
    exponent = jnp.where(sight.after[:, :, None], b[..., -1:] + source, NEVER)
    largest = exponent.max(-1)  # [M, B, N]

    def one(m, now):
        end, largest = now
        return jnp.maximum(end + m, largest), m

    last_m, m = lax.scan(one, state.m, (end, largest), unroll=device.scan_unroll())
    after = jnp.concatenate([m[1:], last_m[None]])
    written = jnp.where(sight.after[:, :, None], jnp.exp(exponent - after[..., None]), 0)[..., None]
    update = jnp.einsum("mbnjk,mbnjv->mbnkv", key, (value * written).astype(dtype))
    matrices, last = carried(state.matrix, jnp.exp(end + m - after)[..., None], update)

    # Each position: the exponents of what it sees, and their largest.
    exponents = jnp.where(sight.pairs[:, :, None], b[..., :, None] + source[..., None, :], NEVER)
    past = jnp.where(sight.before[:, :, None], b + m[..., None], NEVER)  # [M, B, N, C]
    m = jnp.maximum(exponents.max(-1), past)
    own = attend(query, key, value, b - m, source, sight.pairs)
    of_state = einsum("mbnik,mbnkv->mbniv", query, matrices)
    read = _normalized(own + jnp.exp(past - m)[..., None] * of_state, m).astype(dtype)
    return StabilizedState(last, last_m), positions_first(read)


MLSTM = Recurrence(_start, _step, {"key": 0, "log_forget": 0, "log_input": NEVER}, _chunks)
"""inputs: query, key [B, T, N, K], value [B, T, N, V], log_forget, log_input [B, T, N]"""
