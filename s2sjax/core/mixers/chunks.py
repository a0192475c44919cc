"""What recurrences with a matrix state compute in chunks: products within a chunk, and the states between chunks.

Within a chunk, each position reads those before it as in attention, but without a softmax:

    y_i = sum_{j <= i} w_ij v_j      w_ij = exp(r_i + c_j) q_i . k_j

Between chunks, the state is a matrix S [K, V] for each head, with a decay g and a matrix E for the delta rule:

    S_{m+1} = g_m S_m - E_m S_m + U_m

Both have gradients of their own. XLA would sum the gradients of r and c over the rows and columns of C x C matrices,
but sum_j w_ij dw_ij = y_i . dy_i and sum_i w_ij dw_ij = v_j . dv_j. And the gradients of the states are the same
recurrence in the other direction: L_m = g_m L_{m+1} - E_m^T L_{m+1} + dS_m. So these functions have no forward-mode
derivatives, such as `jax.jvp`; a scan over positions has both.

Letters: M chunks, B batch, C positions of a chunk, N heads, G groups of heads that share queries and keys, R = N / G,
K key width, V value width. Chunks come first, since a scan runs over them, and heads before positions, since they are
the batch of the products.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from s2sjax.core.backend import device
from s2sjax.core.backend.matmul import at_least_float32
from s2sjax.core.mixers import chunk_kernels

MatrixState = Float[Array, "B N K V"]


def heads_first(x: Float[Array, "B M C N *rest"]) -> Float[Array, "M B N C *rest"]:
    """The layout of the products within chunks."""
    return jnp.moveaxis(x, (1, 3), (0, 2))


def positions_first(x: Float[Array, "M B N C V"]) -> Float[Array, "B M C N V"]:
    """The inverse of `heads_first`.

    The barrier makes XLA write this layout to memory. Otherwise it would be part of many loops that read short pieces.
    """
    x = jnp.moveaxis(x, (0, 2), (1, 3))
    return lax.optimization_barrier(x.reshape(*x.shape[:3], -1)).reshape(x.shape)


def einsum(formula: str, *operands: Array) -> Array:
    """A product in the dtype of the operands with a float32 result.

    It is rounded to that dtype first, so that the gradients are products of narrow operands too: see core/backend.
    """
    found = jnp.einsum(formula, *operands)
    return found.astype(at_least_float32(found.dtype))


# ------------------------------------------------------------------------------------ within a chunk


@jax.custom_vjp
def attend(
    query: Float[Array, "M B G C K"],
    key: Float[Array, "M B G C K"],
    value: Float[Array, "M B N C V"],
    row: Float[Array, "M B N C"],
    column: Float[Array, "M B N C"],
    pairs: Bool[Array, "#M #B C C"],
) -> Float[Array, "M B N C V"]:
    """y_i above, in float32, over the positions j that i sees."""
    weights, _ = _weights(query, key, row, column, pairs, value.dtype)
    return einsum("mbnij,mbnjv->mbniv", weights, value)


def _weights(query: Array, key: Array, row: Array, column: Array, pairs: Array, dtype) -> tuple[Array, Array]:
    """w, and its factors exp(r_i + c_j): [M, B, N, C, C]."""
    scores = einsum("mbgik,mbgjk->mbgij", query, key)
    factors = exponentials(row[..., :, None] + column[..., None, :], pairs)
    weights = _grouped(factors, scores.shape[2]) * scores[:, :, :, None]
    return weights.reshape(factors.shape).astype(dtype), factors


def _grouped(x: Float[Array, "M B N *rest"], groups: int) -> Float[Array, "M B G R *rest"]:
    return x.reshape(*x.shape[:2], groups, -1, *x.shape[3:])


def exponentials(x: Float[Array, "M B N C C"], pairs: Bool[Array, "#M #B C C"]) -> Float[Array, "M B N C C"]:
    """exp(x_ij) where position i sees position j, else 0."""
    return jnp.exp(jnp.where(pairs[:, :, None], x, -jnp.inf))


def _attend_forward(query, key, value, row, column, pairs):
    y = attend(query, key, value, row, column, pairs)
    return y, (query, key, value, row, column, pairs, y.astype(value.dtype))


def _attend_backward(saved, gradient):
    query, key, value, row, column, pairs, y = saved
    dtype = value.dtype
    weights, factors = _weights(query, key, row, column, pairs, dtype)
    narrow = gradient.astype(dtype)
    d_value = einsum("mbnij,mbniv->mbnjv", weights, narrow)
    d_weights = factors * einsum("mbniv,mbnjv->mbnij", narrow, value)
    d_scores = jnp.sum(_grouped(d_weights, key.shape[2]), axis=3).astype(dtype)
    d_query = jnp.einsum("mbgij,mbgjk->mbgik", d_scores, key)
    d_key = jnp.einsum("mbgij,mbgik->mbgjk", d_scores, query)
    d_row, d_column = jnp.sum(gradient * y, axis=-1), jnp.sum(value * d_value, axis=-1)
    return d_query, d_key, d_value.astype(dtype), d_row, d_column, None


attend.defvjp(_attend_forward, _attend_backward)


@jax.custom_vjp
def differences(b: Float[Array, "*shape C"]) -> Float[Array, "*shape C C"]:
    """b_i - b_j.

    The gradient is sum_j (d_ij - d_ji), one sum over rows instead of two sums in different directions.
    """
    return b[..., :, None] - b[..., None, :]


differences.defvjp(lambda b: (differences(b), None), lambda _, gradient: (jnp.sum(gradient - gradient.mT, axis=-1),))


def read(
    query: Float[Array, "B M C G K"],
    key: Float[Array, "B M C G K"],
    value: Float[Array, "B M C N V"],
    row: Float[Array, "M B N C"],
    column: Float[Array, "M B N C"],
    from_start: Float[Array, "M B N C"],
    states: Float[Array, "M B N K V"],
    pairs: Bool[Array, "#M #B C C"],
) -> Float[Array, "B M C N V"]:
    """y_i above, plus what position i reads from the state before its chunk: s_i S^T q_i, for s = from_start."""
    if chunk_kernels.fits(key, value):
        batch_first = lambda x: jnp.swapaxes(x, 0, 1)
        if key.shape[3] < value.shape[3]:
            query, key = query[:, :, :, 0], key[:, :, :, 0]
        shape = (value.shape[1], len(value))
        pairs = (
            pairs[0, 0] if pairs.shape[:2] == (1, 1) else batch_first(jnp.broadcast_to(pairs, shape + pairs.shape[2:]))
        )
        rows = map(batch_first, (row, column, from_start))
        return chunk_kernels.read(value, query, key, *rows, batch_first(states), pairs.astype(jnp.int8))
    dtype = value.dtype
    query, key, value = map(heads_first, (query, key, value))
    own = attend(query, key, value, row, column, pairs)
    past = einsum("mbgik,mbgrkv->mbgriv", query, _grouped(states, query.shape[2])).reshape(own.shape)
    return positions_first((own + past * from_start[..., None]).astype(dtype))


# -------------------------------------------------------------------------------------- between chunks


@jax.custom_vjp
def carried(
    state: MatrixState,
    through: Float[Array, "M B N #K"],
    update: Float[Array, "M B N K V"],
    erase: Float[Array, "M B N K K"] | None = None,
) -> tuple[Float[Array, "M B N K V"], MatrixState]:
    """The state S before each chunk, in the dtype of U, and the state after the last, for g, U and E above."""
    return _carried(state, through, update, erase)


def _carried(state, through, update, erase, reverse: bool = False):
    def one(state, now):
        through, update, erase = now
        before = state.astype(update.dtype)
        state = through[..., None] * state + update
        return (state if erase is None else state - einsum("bnkl,bnlv->bnkv", erase, before)), before

    last, states = lax.scan(one, state, (through, update, erase), reverse=reverse, unroll=device.scan_unroll())
    return states, last


def _carried_forward(state, through, update, erase):
    states, last = _carried(state, through, update, erase)
    return (states, last), (through, erase, states)


def _carried_backward(saved, gradients):
    through, erase, states = saved
    d_states, d_last = gradients
    transposed = None if erase is None else erase.mT
    d_update, d_state = _carried(d_last, through, d_states, transposed, reverse=True)
    d_through = jnp.sum(d_update.astype(through.dtype) * states, axis=-1)
    if through.shape[-1] == 1:
        d_through = jnp.sum(d_through, axis=-1, keepdims=True)
    d_erase = None if erase is None else -jnp.einsum("mbnkv,mbnlv->mbnkl", d_update, states)
    return d_state, d_through, d_update, d_erase


carried.defvjp(_carried_forward, _carried_backward)
