"""Attention between short sequences in one kernel forward and one backward, for training on a GPU.

Letters: B batch, T queries, S keys, N heads, D width of a head.

A flash attention reads its keys block after block, since the scores of long sequences do not fit on the chip. Those of
sentences do: a program here holds all T x S of them, of one head of one sentence. So nothing is saved for the backward
pass but the inputs: it computes the weights again, and with them all three gradients at once.

    e = q k^T / sqrt(D)     p = softmax(e)     o = p v
    dv = p^T do     dp = do v^T     de = p (dp - sum_s p dp)     dq = de k / sqrt(D)     dk = de^T q / sqrt(D)

`attention.multi_head` is the definition, and `device.attention_kernel` says when these are used. Of many devices, each
serves its own sentences and heads.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from s2sjax.core.fused import LEAST, LOWEST, by_sentence_and_head


class Static(NamedTuple):
    causal: bool
    interpret: bool = False


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend(queries: Array, keys: Array, values: Array, lengths: Array, static: Static) -> Array:
    """queries [B, T, N, D], keys and values [B, S, N, D], lengths [B] of them real -> [B, T, N, D].

    A query that sees nothing gets zeros.
    """
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
) -> list[Array]:
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


def _call(kernel, arrays: tuple[Array, ...], lengths: Array, outputs: list[Array], static: Static) -> list[Array]:
    """The kernel for each sentence and head: its references are [T or S, D], after the inputs comes the length [1]."""
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
    """The softmax over the first `length` keys, of a causal attention over those up to its query: float32 [T, S]."""
    scores = _product(q, k, 1, 1) * q.shape[-1] ** -0.5
    query, key = (lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
    seen = (key < length) & (key <= query) if causal else key < length
    scores = jnp.where(seen, scores, LOWEST)
    weights = jnp.where(seen, jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True)), 0)
    return weights / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1e-30)


def _product(x: Array, y: Array, x_axis: int = 1, y_axis: int = 0) -> Array:
    return lax.dot_general(x, y, (((x_axis,), (y_axis,)), ((), ())), preferred_element_type=jnp.float32)


def _rows(ref) -> tuple[tuple[Array, Array], Array]:
    """Where the elements of a tile are, and which of its rows exist: tiles have a power of two of them."""
    from jax.experimental import pallas as pl

    row = jnp.arange(max(LEAST, pl.next_power_of_2(ref.shape[0])))[:, None]
    column = jnp.arange(ref.shape[1])[None, :]
    return (row, column), (row < ref.shape[0]) & (column >= 0)


def _all(ref) -> Array:
    """[T or S, D], zeros in the rows that do not exist."""
    from jax.experimental.pallas import triton

    at, exists = _rows(ref)
    return triton.load(ref.at[at], mask=exists, other=0)


def _put(ref, value: Array) -> None:
    from jax.experimental.pallas import triton

    at, exists = _rows(ref)
    triton.store(ref.at[at], value.astype(ref.dtype), mask=exists)
