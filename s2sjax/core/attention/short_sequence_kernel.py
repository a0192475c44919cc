"""Attention between short sequences with one forward and one backward kernel, for training on a GPU.

Letters: B batch, T queries, S keys, N heads, D width of a head.

Flash attention reads its keys in blocks, because the scores of long sequences do not fit on the chip. The scores of
sentences do: each program here holds all T x S scores of one head of one sentence. Only the inputs are saved for the
backward pass, which recomputes the weights, and from them all gradients at once. A bias c, of relative positions, is
added to the scores; its gradient is de, summed over the sentences.

    e = q k^T / sqrt(D) + c     p = softmax(e)     o = p v
    dv = p^T do     dp = do v^T     de = p (dp - sum_s p dp)     dq = de k / sqrt(D)     dk = de^T q / sqrt(D)

`attention.multi_head` is the reference implementation; `device.attention_kernel` decides when these kernels are used.
On several devices, each computes its own sentences and heads.
"""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

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
    bias: Float[Array, "N T S"] | None = None,
) -> Float[Array, "B T N D"]:
    """Scaled dot-product attention to the first `lengths` keys. The result for a query that sees none is zero.

    bias: added to the scores of each sentence.
    """
    if bias is None:
        return _plain_forward(queries, keys, values, lengths, static)
    return _biased_forward(queries, keys, values, lengths, bias, static)


def _forward(queries: Array, keys: Array, values: Array, lengths: Array, static: Static, bias: Array | None = None):
    return attend(queries, keys, values, lengths, static, bias), (queries, keys, values, lengths, bias)


def _backward(static: Static, saved: tuple[Array, Array, Array, Array, Array | None], gradient: Array):
    *heads_and_lengths, bias = saved
    if bias is None:
        return *_plain_backward(*heads_and_lengths, gradient, static), None, None
    *gradients, d_scores = _biased_backward(*heads_and_lengths, gradient, bias, static)
    return *gradients, None, jnp.sum(d_scores, axis=0, dtype=jnp.float32).astype(bias.dtype)


attend.defvjp(_forward, _backward)


def _forward_kernel(
    queries: Array, keys: Array, values: Array, lengths: Array, bias: Array | None, static: Static
) -> Array:
    def kernel(queries, keys, values, lengths, *rest):
        *bias, attended = rest
        p = _weights(load_tile(queries), load_tile(keys), lengths[0], static.causal, *map(load_tile, bias))
        store_tile(attended, product(p.astype(values.dtype), load_tile(values)))

    [attended] = _call(kernel, (queries, keys, values), lengths, bias, [queries], static)
    return attended


_biased_forward = by_sentence_and_head("b t n d, b s n d, b s n d, b, n t s -> b t n d")(_forward_kernel)


@by_sentence_and_head("b t n d, b s n d, b s n d, b -> b t n d")
def _plain_forward(queries: Array, keys: Array, values: Array, lengths: Array, static: Static) -> Array:
    return _forward_kernel(queries, keys, values, lengths, None, static)


def _backward_kernel(
    queries: Array, keys: Array, values: Array, lengths: Array, gradient: Array, bias: Array | None, static: Static
) -> Sequence[Array]:
    """The gradients of queries, keys and values, and with a bias those of the scores [B, N, T, S]."""
    scale = queries.shape[-1] ** -0.5

    def kernel(queries, keys, values, gradient, lengths, *rest):
        bias, (d_queries, d_keys, d_values, *d_scores) = rest[: len(rest) - outputs], rest[len(rest) - outputs :]
        q, k, d_out = load_tile(queries), load_tile(keys), load_tile(gradient)
        p = _weights(q, k, lengths[0], static.causal, *map(load_tile, bias))
        store_tile(d_values, product(p.astype(q.dtype), d_out, 0, 0))
        d_p = product(d_out, load_tile(values), 1, 1)
        d_e = p * (d_p - jnp.sum(p * d_p, axis=1, keepdims=True))
        for ref in d_scores:
            store_tile(ref, d_e)
        d_e = (d_e * scale).astype(q.dtype)
        store_tile(d_queries, product(d_e, k))
        store_tile(d_keys, product(d_e, q, 0, 0))

    found: list[Array | jax.ShapeDtypeStruct] = [queries, keys, values]
    if bias is not None:
        found.append(jax.ShapeDtypeStruct((len(queries), *bias.shape[-3:]), queries.dtype))
    outputs = len(found)
    return _call(kernel, (queries, keys, values, gradient), lengths, bias, found, static)


_biased_backward = by_sentence_and_head(
    "b t n d, b s n d, b s n d, b, b t n d, n t s -> b t n d, b s n d, b s n d, b n t s"
)(_backward_kernel)


@by_sentence_and_head("b t n d, b s n d, b s n d, b, b t n d -> b t n d, b s n d, b s n d")
def _plain_backward(
    queries: Array, keys: Array, values: Array, lengths: Array, gradient: Array, static: Static
) -> Sequence[Array]:
    return _backward_kernel(queries, keys, values, lengths, gradient, None, static)


def _call(
    kernel, arrays: tuple[Array, ...], lengths: Array, bias: Array | None, outputs: Sequence[Any], static: Static
) -> Sequence[Array]:
    """Runs the kernel for each sentence and head.

    Its references are those of the arrays, [T or S, D], of the length, [1], of the bias, [T, S], and of the outputs.
    Under `vmap`, each sentence has a bias of its own.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    sentences, _, heads, width = arrays[0].shape
    of_heads = lambda array: pl.BlockSpec((None, array.shape[1], None, width), lambda b, n: (b, 0, n, 0))
    of_each = lambda scores: pl.BlockSpec((None, None, *scores.shape[2:]), lambda b, n: (b, n, 0, 0))
    of_all = lambda scores: pl.BlockSpec((None, *scores.shape[1:]), lambda b, n: (n, 0, 0))
    given = [] if bias is None else [bias]
    longest = max(array.shape[1] for array in arrays)
    return pl.pallas_call(
        kernel,
        grid=(sentences, heads),
        in_specs=[
            *map(of_heads, arrays),
            pl.BlockSpec((1,), lambda b, n: (b,)),
            *((of_all if scores.ndim == 3 else of_each)(scores) for scores in given),
        ],
        out_specs=[*map(of_heads, outputs[:3]), *map(of_each, outputs[3:])],
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in outputs],
        compiler_params=triton.CompilerParams(num_warps=4 if longest <= 64 else 8, num_stages=1),
        interpret=static.interpret,
    )(*arrays, lengths.astype(jnp.int32), *given)


def _weights(q: Array, k: Array, length: Array, causal: bool, bias: Array | float = 0.0) -> Array:
    """The attention weights over the first `length` keys, if causal only up to the query: float32 [T, S]."""
    scores = product(q, k, 1, 1) * q.shape[-1] ** -0.5 + bias
    query, key = (lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
    seen = (key < length) & (key <= query) if causal else key < length
    scores = jnp.where(seen, scores, LOWEST)
    weights = jnp.where(seen, jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True)), 0)
    return weights / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1e-30)


def product(x: Array, y: Array, x_axis: int = 1, y_axis: int = 0) -> Array:
    return lax.dot_general(x, y, (((x_axis,), (y_axis,)), ((), ())), preferred_element_type=jnp.float32)


def _tile(ref) -> tuple[tuple[Array, ...], Array]:
    """The indices of a tile's elements, and whether they exist: the sizes of a tile are powers of two."""
    from jax.experimental import pallas as pl

    along = lambda axis: tuple(slice(None) if each == axis else None for each in range(ref.ndim))
    places = (jnp.arange(max(MIN_TILE_ROWS, pl.next_power_of_2(size))) for size in ref.shape)
    at = tuple(place[along(axis)] for axis, place in enumerate(places))
    return at, reduce(jnp.logical_and, (place < size for place, size in zip(at, ref.shape)))


def load_tile(ref) -> Array:
    """Loads a matrix or a vector into a tile, with zeros where it has no elements."""
    from jax.experimental.pallas import triton

    at, exists = _tile(ref)
    return triton.load(ref.at[at], mask=exists, other=0)


def store_tile(ref, value: Array) -> None:
    """Stores the elements of a tile that exist."""
    from jax.experimental.pallas import triton

    at, exists = _tile(ref)
    triton.store(ref.at[at], value.astype(ref.dtype), mask=exists)
