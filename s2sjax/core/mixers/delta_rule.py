"""The delta rule: a write first removes what the key reads, so that a state of K rows can replace what it holds.

    S_t = a_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T      y_t = S_t^T q_t

Schlag et al. 2021, where a_t = 1; with a decay a_t, Yang et al. 2024 (Gated DeltaNet). With |k_t| = 1 and beta_t in
[0, 1], a write moves what k_t reads towards v_t: u_t = beta_t (v_t - a_t S_{t-1}^T k_t) is the error, and
S_t = a_t S_{t-1} + k_t u_t^T.

Within a chunk, the errors u_i depend on those before them. With b_t as in decayed.py they solve a triangular system,

    u_i + sum_{j < i} A_ij u_j = beta_i (v_i - exp(b_i) S_0^T k_i)      A_ij = beta_i exp(b_i - b_j) k_i . k_j

whose inverse depends on no state, and is computed for all chunks at once (Yang et al. 2024, "Parallelizing linear
transformers with the delta rule").

Letters: M chunks, B batch, C positions of a chunk, N heads, K key width, V value width.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from s2sjax.core.mixers.chunks import (
    MatrixState,
    carried,
    differences,
    einsum,
    exponentials,
    heads_first,
    read,
)
from s2sjax.core.mixers.decayed import bounded, matrix_start, read_and_write
from s2sjax.core.mixers.forms import Inputs, Recurrence, Sight


def _step(state: MatrixState, inputs: Inputs) -> tuple[MatrixState, Array]:
    exact = state.dtype
    key, value, beta = inputs["key"], inputs["value"], inputs["beta"].astype(exact)
    state = jnp.exp(bounded(inputs["log_decay"], exact))[..., None, None] * state
    read = jnp.einsum("bnk,bnkv->bnv", key.astype(exact), state)
    state, y = read_and_write(state, inputs["query"], key, beta[..., None] * (value.astype(exact) - read))
    return state, y.astype(value.dtype)


def _chunks(state: MatrixState, inputs: Inputs, sight: Sight) -> tuple[MatrixState, Array]:
    key, value = heads_first(inputs["key"]), heads_first(inputs["value"])
    dtype, exact = value.dtype, state.dtype
    beta = heads_first(inputs["beta"].astype(exact))[..., None]  # [M, B, N, C, 1]
    b = jnp.cumsum(bounded(heads_first(inputs["log_decay"]), exact), axis=3)  # [M, B, N, C]
    written = (beta * key).astype(dtype)
    overlap = exponentials(differences(b), sight.pairs) * einsum("mbnik,mbnjk->mbnij", written, key)
    solve = unit_triangular_inverse(overlap).astype(dtype)
    from_start = jnp.where(sight.before[:, :, None], jnp.exp(b), 0)  # [M, B, N, C]
    of_values = einsum("mbnij,mbnjv->mbniv", solve, (beta * value).astype(dtype))
    of_state = jnp.einsum("mbnij,mbnjk->mbnik", solve, (from_start[..., None] * written).astype(dtype))

    # The errors are of_values - of_state S. A state takes up their products with the keys.
    to_end = jnp.where(sight.after[:, :, None], jnp.exp(b[..., -1:] - b), 0)[..., None]
    late = (key * to_end).astype(dtype)
    update = jnp.einsum("mbnjk,mbnjv->mbnkv", late, of_values.astype(dtype))
    erase = jnp.einsum("mbnjk,mbnjl->mbnkl", late, of_state)
    through = jnp.where(sight.through[:, :, None], jnp.exp(b[..., -1]), 0)[..., None]
    states, last = carried(state, through, update, erase)

    error = (of_values - einsum("mbnik,mbnkv->mbniv", of_state, states)).astype(dtype)
    errors = jnp.moveaxis(error, (0, 2), (1, 3))  # [B, M, C, N, V]
    return last, read(inputs["query"], inputs["key"], errors, b, -b, from_start, states, sight.pairs)


@jax.custom_jvp
def unit_triangular_inverse(matrix: Float[Array, "*shape C C"]) -> Float[Array, "*shape C C"]:
    """(I + L)^-1, where L is the part of a matrix below its diagonal.

    In log2 C rounds of small products, which any device runs in parallel: the inverse of [[P, 0], [Q, R]] is
    [[P', 0], [-R' Q P', R']] with the inverses P' and R' of the blocks, which are known from the round before.

    >>> unit_triangular_inverse(jnp.array([[0.0, 0.0], [3.0, 0.0]]))
    Array([[ 1.,  0.],
           [-3.,  1.]], dtype=float32)
    """
    size = matrix.shape[-1]
    whole = 1 << (size - 1).bit_length()
    lead = ((0, 0),) * (matrix.ndim - 2)
    lower = jnp.pad(jnp.tril(matrix, -1), (*lead, (0, whole - size), (0, whole - size)))
    inverse = jnp.ones((*matrix.shape[:-2], whole, 1, 1), matrix.dtype)  # of the diagonal blocks
    width = 1
    while width < whole:
        count = whole // (2 * width)
        blocks = lower.reshape(*matrix.shape[:-2], count, 2, width, count, 2, width)
        below = jnp.stack([blocks[..., i, 1, :, i, 0, :] for i in range(count)], axis=-3)
        pairs = inverse.reshape(*matrix.shape[:-2], count, 2, width, width)
        upper, right = pairs[..., 0, :, :], pairs[..., 1, :, :]
        left = -jnp.matmul(jnp.matmul(right, below, precision="highest"), upper, precision="highest")
        top = jnp.concatenate([upper, jnp.zeros_like(upper)], axis=-1)
        inverse = jnp.concatenate([top, jnp.concatenate([left, right], axis=-1)], axis=-2)
        width *= 2
    return inverse[..., 0, :size, :size]


@unit_triangular_inverse.defjvp
def _inverse_derivative(matrices: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """d (I + L)^-1 = -(I + L)^-1 dL (I + L)^-1, which costs two products instead of those of every round."""
    inverse = unit_triangular_inverse(*matrices)
    moved = jnp.matmul(inverse, jnp.tril(tangents[0], -1), precision="highest")
    return inverse, -jnp.matmul(moved, inverse, precision="highest")


DELTA = Recurrence(matrix_start, _step, {"beta": 0, "log_decay": 0}, _chunks)
"""inputs: query, key [B, T, N, K], value [B, T, N, V], beta, log_decay [B, T, N]"""
