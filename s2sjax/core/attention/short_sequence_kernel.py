"""Attention between short sequences with one forward and one backward kernel, for training on a GPU.

Letters: B batch, T queries, S keys, N heads, D width of a head.

Flash attention reads its keys in blocks, because the scores of long sequences do not fit on the chip. The scores of
sentences do: each program here holds all T x S scores of one head of one sentence. Only the inputs are saved for the
backward pass, which recomputes the weights, and from them all three gradients at once.

    e = q k^T / sqrt(D)     p = softmax(e)     o = p v
    dv = p^T do     dp = do v^T     de = p (dp - sum_s p dp)     dq = de k / sqrt(D)     dk = de^T q / sqrt(D)

`attention.multi_head` is the reference implementation; `device.attention_kernel` decides when these kernels are used.
On several devices, each computes its own sentences and heads.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from s2sjax.core.attention.decode_kernel import LOWEST, MIN_TILE_ROWS, by_sentence_and_head


class Static(NamedTuple):
    """The static argument of the kernels: whether attention is causal, and whether to interpret them (for tests)."""

    causal: bool
    interpret: bool = False


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend(
    queries: Float[Array, "B T N D"],
    keys: Float[Array, "B S N D"],
    values: Float[Array, "B S N D"],
    lengths: Int[Array, " B"],
    static: Static,
) -> Float[Array, "B T N D"]:
    """Scaled dot-product attention to the first `lengths` keys. The result for a query that sees none is zero."""
    return _forward_kernel(queries, keys, values, lengths, static)


def _forward(queries: Array, keys: Array, values: Array, lengths: Array, static: Static):
    return attend(queries, keys, values, lengths, static), (queries, keys, values, lengths)


def _backward(static: Static, saved: tuple[Array, Array, Array, Array], gradient: Array):
    return *_backward_kernel(*saved, gradient, static), None


attend.defvjp(_forward, _backward)


@by_sentence_and_head("b t n d, b s n d, b s n d, b -> b t n d")
def _forward_kernel(queries: Array, keys: Array, values: Array, lengths: Array, static: Static) -> Array:
    def kernel(queries, keys, values, lengths, attended):
        p = _weights(_all(queries), _all(keys), lengths[0], static.causal)
        _put(attended, _product(p.astype(values.dtype), _all(values)))

    [attended] = _call(kernel, (queries, keys, values), lengths, [queries], static)
    return attended


@by_sentence_and_head("b t n d, b s n d, b s n d, b, b t n d -> b t n d, b s n d, b s n d")
def _backward_kernel(
    queries: Array, keys: Array, values: Array, lengths: Array, gradient: Array, static: Static
) -> Sequence[Array]:
    scale = queries.shape[-1] ** -0.5

    def kernel(queries, keys, values, gradient, lengths, d_queries, d_keys, d_values):
        q, k, d_out = _all(queries), _all(keys), _all(gradient)
        p = _weights(q, k, lengths[0], static.causal)
        _put(d_values, _product(p.astype(q.dtype), d_out, 0, 0))
        d_p = _product(d_out, _all(values), 1, 1)
        d_e = (p * (d_p - jnp.sum(p * d_p, axis=1, keepdims=True)) * scale).astype(q.dtype)
        _put(d_queries, _product(d_e, k))
        _put(d_keys, _product(d_e, q, 0, 0))

    return _call(kernel, (queries, keys, values, gradient), lengths, [queries, keys, values], static)


def _call(kernel, arrays: tuple[Array, ...], lengths: Array, outputs: list[Array], static: Static) -> Sequence[Array]:
    """Runs the kernel for each sentence and head. Its references are [T or S, D]; the length [1] follows the inputs."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    sentences, _, heads, width = arrays[0].shape
    spec = lambda array: pl.BlockSpec((None, array.shape[1], None, width), lambda b, n: (b, 0, n, 0))
    longest = max(array.shape[1] for array in arrays)
    return pl.pallas_call(
        kernel,
        grid=(sentences, heads),
        in_specs=[*map(spec, arrays), pl.BlockSpec((1,), lambda b, n: (b,))],
        out_specs=[*map(spec, outputs)],
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in outputs],
        compiler_params=triton.CompilerParams(num_warps=4 if longest <= 64 else 8, num_stages=1),
        interpret=static.interpret,
    )(*arrays, lengths.astype(jnp.int32))


def _weights(q: Array, k: Array, length: Array, causal: bool) -> Array:
    """The attention weights over the first `length` keys, if causal only up to the query: float32 [T, S]."""
    scores = _product(q, k, 1, 1) * q.shape[-1] ** -0.5
    query, key = (lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
    seen = (key < length) & (key <= query) if causal else key < length
    scores = jnp.where(seen, scores, LOWEST)
    weights = jnp.where(seen, jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True)), 0)
    return weights / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1e-30)


def _product(x: Array, y: Array, x_axis: int = 1, y_axis: int = 0) -> Array:
    return lax.dot_general(x, y, (((x_axis,), (y_axis,)), ((), ())), preferred_element_type=jnp.float32)


def _rows(ref) -> tuple[tuple[Array, Array], Array]:
    """The indices of a tile's elements, and whether they exist: the number of rows of a tile is a power of two."""
    from jax.experimental import pallas as pl

    row = jnp.arange(max(MIN_TILE_ROWS, pl.next_power_of_2(ref.shape[0])))[:, None]
    column = jnp.arange(ref.shape[1])[None, :]
    return (row, column), (row < ref.shape[0]) & (column >= 0)


def _all(ref) -> Array:
    """Loads [T or S, D] into a tile, with zeros in the rows that do not exist."""
    from jax.experimental.pallas import triton

    at, exists = _rows(ref)
    return triton.load(ref.at[at], mask=exists, other=0)


def _put(ref, value: Array) -> None:
    """Stores the rows of a tile that exist."""
    from jax.experimental.pallas import triton

    at, exists = _rows(ref)
    triton.store(ref.at[at], value.astype(ref.dtype), mask=exists)
