"""Attention of one query a prefix in one kernel, for a GPU that writes one token at a time.

Letters: B batch, K prefixes of a sentence, N heads, D width of a head, S keys, L places of a cache.

XLA makes five to eight kernels of such an attention, each of them shorter than its start. A program of these reads its
keys and values block after block, as far as there are any, and keeps a running softmax (Milakov and Gimelshein 2018):
of the scores e so far the highest m, the sum z of exp(e - m), and a = sum exp(e - m) v. A block with scores e' and
values v' makes of them
    m' = max(m, e')        z' = z exp(m - m') + sum exp(e' - m')        a' = a exp(m - m') + sum exp(e' - m') v'
and at the end a / z is the context. `attention.attend_heads` is the definition. Of many devices, each serves its own
sentences and heads. Sizes of blocks and numbers of warps are those that were fastest on an H200. Pallas is imported
inside the functions, since other devices never need it.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning

from s2sjax.core import device

LOWEST = -1e30
LEAST = 16
"""rows and columns that a matrix unit takes at least: where there are fewer queries, it is given the last one again"""


def fits(heads: Array) -> bool:
    """Whether the device and the shapes allow it: [..., D]."""
    return device.runs_triton(device.target()) and heads.dtype != jnp.float64 and heads.shape[-1] in (16, 32, 64, 128)


def by_sentence_and_head(rule: str) -> Callable[[Callable], Callable]:
    """A kernel for arrays that begin with the sentences b; its last argument is static.

    On many devices, each has its own b and n of the rule. Under `vmap`, the arrays of all its calls are one batch.
    """

    def decorate(function: Callable) -> Callable:
        arrays = rule.partition("->")[0].count(",") + 1

        def partition(static, mesh, arguments, results):
            sharding = lambda shape: shape.sharding
            here = lambda *shards: function(*shards, static)
            return mesh, here, jax.tree.map(sharding, results), jax.tree.map(sharding, arguments)

        spread = custom_partitioning(function, static_argnums=(arrays,))
        whole = tuple(dict.fromkeys(letter for letter in rule if letter in "ktsdl"))  # as they come, says Shardy
        spread.def_partition(partition, sharding_rule=rule, need_replication_factors=whole)

        @wraps(function)
        def kernel(*arguments, **keywords):
            given = signature(function).bind(*arguments, **keywords)
            given.apply_defaults()
            *operands, static = given.args
            one = custom_vmap(lambda *operands: spread(*operands, static))

            @one.def_vmap
            def many(size, mapped, *operands):
                each = (x if own else jnp.broadcast_to(x, (size, *x.shape)) for x, own in zip(operands, mapped))
                found = kernel(*(x.reshape(-1, *x.shape[2:]) for x in each), static)
                found = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), found)
                return found, jax.tree.map(lambda x: True, found)

            return one(*operands)

        return kernel

    return decorate


# ------------------------------------------------------------------- a memory that all prefixes share


@by_sentence_and_head("b k n d, b n s d, b n s d, b k s -> b k n d")
def attend(queries: Array, keys: Array, values: Array, mask: Array, interpret: bool = False) -> Array:
    """What queries [B, K, N, D] take from keys and values [B, N, S, D] where mask [B, K, S] holds: [B, K, N, D].

    One program serves one head of a sentence. A query that sees nothing gets zeros.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    sentences, prefixes, heads, width = queries.shape
    length = keys.shape[2]
    exact = lax.Precision.HIGHEST if queries.dtype == jnp.float32 else None
    product = lambda x, y: jnp.dot(x, y, precision=exact, preferred_element_type=jnp.float32)

    def kernel(queries, keys, values, mask, attended):
        row = jnp.minimum(jnp.arange(max(LEAST, pl.next_power_of_2(prefixes))), prefixes - 1)
        query = queries[row, :]

        def more(place, running):
            at = jnp.minimum(place, length - 1)
            seen = mask[row[:, None], at[None, :]] & (place < length)[None, :]  # [K, J]
            scores = product(query, keys[at, :].T) * width**-0.5
            read = lambda weights: product(weights.astype(values.dtype), values[at, :])
            return _after(running, scores, seen, read)

        zeros = jnp.zeros(row.shape, jnp.float32)
        nothing = Running(zeros + LOWEST, zeros, jnp.zeros(query.shape, jnp.float32))
        _, total, weighted = _blocks(64, length, length, more, nothing)
        attended[row, :] = (weighted / jnp.maximum(total, 1e-30)[:, None]).astype(attended.dtype)

    one = pl.BlockSpec((None, prefixes, None, width), lambda b, n: (b, 0, n, 0))
    memory = pl.BlockSpec((None, None, length, width), lambda b, n: (b, n, 0, 0))
    return pl.pallas_call(
        kernel,
        grid=(sentences, heads),
        in_specs=[one, memory, memory, pl.BlockSpec((None, prefixes, length), lambda b, n: (b, 0, 0))],
        out_specs=one,
        out_shape=jax.ShapeDtypeStruct(queries.shape, values.dtype),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
    )(queries, keys, values, mask)


# ------------------------------------------------------------------------- the cache of each prefix


def attend_and_write(
    qkv: Array, cache: tuple[Array, Array], beam_index: Array, position: Array, interpret: bool = False
) -> tuple[Array, tuple[Array, Array]]:
    """Each prefix attends to its own new key and to its cached ones; its new key and value are put into the cache.

    qkv: queries, keys and values [B, K, 3, N, D] -> [B, K, N, D]. The others as in s2sjax/core/kv_cache.py.
    """
    flat = (part.reshape(*part.shape[:2], -1, part.shape[-1]) for part in cache)
    attended, keys, values = _attend_and_write(qkv, *flat, beam_index, position, interpret)
    return attended, (keys.reshape(cache[0].shape), values.reshape(cache[1].shape))


@by_sentence_and_head("b k t n d, b n s d, b n s d, b k l, b -> b k n d, b n s d, b n s d")
def _attend_and_write(
    qkv: Array, keys: Array, values: Array, beam_index: Array, position: Array, interpret: bool
) -> list[Array]:
    """keys and values [B, N, L * K, D]. One program serves one head of a prefix."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    sentences, prefixes, _, heads, width = qkv.shape
    length = beam_index.shape[2]

    def kernel(query, key, value, keys, values, beam_index, position, attended, keys_out, values_out):
        here = position[0] % length
        scaled = query[:].astype(jnp.float32) * width**-0.5

        def more(place, running):
            seen = (place < position[0]) & (place < length) & (place != here)  # [J]
            row = place * prefixes + triton.load(beam_index.at[place], mask=seen, other=0)
            at = row[:, None], jnp.arange(width)[None, :]
            read = lambda part: triton.load(part.at[at], mask=seen[:, None], other=0).astype(jnp.float32)
            k, v = read(keys), read(values)
            scores = jnp.sum(k * scaled, axis=1)
            return _after(running, scores, seen, lambda weights: jnp.sum(weights[:, None] * v, axis=0))

        score = jnp.sum(key[:].astype(jnp.float32) * scaled)
        itself = Running(score, jnp.ones((), jnp.float32), value[:].astype(jnp.float32))
        _, total, weighted = _blocks(32, length, jnp.minimum(position[0], length), more, itself)
        attended[:] = (weighted / total).astype(attended.dtype)
        at = here * prefixes + pl.program_id(2)
        keys_out[at, :], values_out[at, :] = key[:], value[:]

    new = [
        pl.BlockSpec((None, None, None, None, width), lambda b, n, k, part=part: (b, k, part, n, 0))
        for part in range(3)
    ]
    memory = pl.BlockSpec((None, None, *keys.shape[2:]), lambda b, n, k: (b, n, 0, 0))
    of_prefix = pl.BlockSpec((None, None, length), lambda b, n, k: (b, k, 0))
    one = pl.BlockSpec((None, None, None, width), lambda b, n, k: (b, k, n, 0))
    shapes = [(sentences, prefixes, heads, width), keys.shape, values.shape]
    return pl.pallas_call(
        kernel,
        grid=(sentences, heads, prefixes),
        in_specs=[*new, memory, memory, of_prefix, pl.BlockSpec((1,), lambda b, n, k: (b,))],
        out_specs=[one, memory, memory],
        out_shape=[jax.ShapeDtypeStruct(shape, qkv.dtype) for shape in shapes],
        input_output_aliases={3: 1, 4: 2},
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=2),
        interpret=interpret,
    )(qkv, qkv, qkv, keys, values, beam_index.astype(jnp.int32), position.astype(jnp.int32))


# ----------------------------------------------------------------------------- the running softmax


class Running(NamedTuple):
    """m, z and a of the equations above, for one query or for some, [...]."""

    highest: Array  # [...]
    total: Array  # [...]
    weighted: Array  # [..., D]


def _after(running: Running, scores: Array, seen: Array, read: Callable[[Array], Array]) -> Running:
    """After one more block: its scores [..., J], which of them are seen, and read(weights [..., J]) -> [..., D]."""
    scores = jnp.where(seen, scores, LOWEST)
    highest = jnp.maximum(running.highest, jnp.max(scores, axis=-1))
    weights = jnp.where(seen, jnp.exp(scores - highest[..., None]), 0)
    shrink = jnp.exp(running.highest - highest)
    total = running.total * shrink + jnp.sum(weights, axis=-1)
    return Running(highest, total, running.weighted * shrink[..., None] + read(weights))


def _blocks(
    most: int, length: int, count: Array | int, more: Callable[[Array, Running], Running], running: Running
) -> Running:
    """more(places [J], running) for the first `count` of `length` places, at most `most` of them at once."""
    from jax.experimental import pallas as pl

    size = min(most, max(LEAST, pl.next_power_of_2(length)))
    one = lambda block, running: more(block * size + jnp.arange(size), running)
    return one(0, running) if length <= size else lax.fori_loop(0, pl.cdiv(count, size), one, running)
