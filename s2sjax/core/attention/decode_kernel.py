"""Attention of one query per prefix in one kernel, for decoding one token at a time on a GPU.

Letters: B batch, K prefixes of a sentence, N heads, D width of a head, S keys, L places of a cache, J keys of a block.

XLA compiles such an attention into five to eight kernels, each shorter than its launch. A program here reads its keys
and values in blocks and keeps a running softmax (Milakov and Gimelshein 2018): the highest score m so far, the sum z of
exp(e - m) over the scores e so far, and a = sum exp(e - m) v. A block with scores e' and values v' updates them to
    m' = max(m, e')        z' = z exp(m - m') + sum exp(e' - m')        a' = a exp(m - m') + sum exp(e' - m') v'
and the context is a / z. `attention.attend_heads` is the reference implementation. Each of several devices computes its
own sentences and heads. Block sizes and numbers of warps were the fastest on an H200. Pallas is imported inside the
functions, because other devices do not need it.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from s2sjax.core.backend import device

LOWEST = -1e30
MIN_TILE_ROWS = 16
"""minimum number of rows and columns of a matrix unit's tile; with fewer queries, the last one is repeated"""


def fits(heads: Array) -> bool:
    """Whether the device, and the dtype and width of heads [..., D], allow these kernels."""
    return device.runs_triton(device.target()) and heads.dtype != jnp.float64 and heads.shape[-1] in (16, 32, 64, 128)


def by_sentence_and_head(rule: str) -> Callable[[Callable], Callable]:
    """Decorates a kernel function(*arrays, static) so that it can be sharded over devices and vmapped.

    `rule` names the axes of arrays and results, as in einsum: "b k n d, b n s d -> b k n d". Each array begins with the
    sentences b, or all sentences share it. Each device runs the kernel on its own sentences b and heads n; the other
    axes are never sharded. Under `vmap`, the mapped axis is merged into b: a kernel for [B, ...] mapped over M runs
    once on [M B, ...], and gets shared arrays with an axis b.
    """
    names, _, of_results = rule.partition("->")
    axes, axes_of_results = ([array.split() for array in each.split(",")] for each in (names, of_results))
    arrays = len(axes)
    of_each = ", ".join(" ".join(array if array[0] == "b" else ["b", *array]) for array in axes) + " ->" + of_results
    unsharded = tuple(dict.fromkeys(letter for letter in rule if letter in "ktsdl"))  # Shardy wants this order

    def decorate(function: Callable) -> Callable:
        def partition(static, mesh, arguments, results):
            # All arrays are split as the first one is: a device has the same sentences and heads of each.
            split = {axis: part for axis, part in zip(axes[0], arguments[0].sharding.spec) if axis in "bn"}
            sharding = lambda array: NamedSharding(mesh, PartitionSpec(*(split.get(axis) for axis in array)))
            found = jax.tree.unflatten(jax.tree.structure(results), [*map(sharding, axes_of_results)])
            return mesh, lambda *shards: function(*shards, static), found, tuple(map(sharding, axes))

        sharded = custom_partitioning(function, static_argnums=(arrays,))
        sharded.def_partition(partition, sharding_rule=rule, need_replication_factors=unsharded)

        @wraps(function)
        def kernel(*arguments, **keywords):
            given = signature(function).bind(*arguments, **keywords)
            given.apply_defaults()
            *operands, static = given.args
            one = custom_vmap(lambda *operands: sharded(*operands, static))

            @one.def_vmap
            def merged(size, mapped, *operands):
                each = [x if own else jnp.broadcast_to(x, (size, *x.shape)) for x, own in zip(operands, mapped)]
                sentences = each[0].shape[1]
                for place, array in enumerate(axes):
                    if array[0] != "b":
                        x = each[place][:, None]
                        each[place] = jnp.broadcast_to(x, (size, sentences, *x.shape[2:]))
                run = kernel if of_each.split() == rule.split() else by_sentence_and_head(of_each)(function)
                found = run(*(x.reshape(-1, *x.shape[2:]) for x in each), static)
                found = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), found)
                return found, jax.tree.map(lambda x: True, found)

            return one(*operands)

        return kernel

    return decorate


# ------------------------------------------------------------------- a memory that all prefixes share


@by_sentence_and_head("b k n d, b n s d, b n s d, b k s -> b k n d")
def attend(
    queries: Float[Array, "B K N D"],
    keys: Float[Array, "B N S D"],
    values: Float[Array, "B N S D"],
    mask: Bool[Array, "B K S"],
    interpret: bool = False,
) -> Float[Array, "B K N D"]:
    """Attention to a memory that all prefixes share. One program computes one head of a sentence.

    The mask is True where a query sees a position; the context of a query that sees none is zero.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    sentences, prefixes, heads, width = queries.shape
    length = keys.shape[2]
    exact = lax.Precision.HIGHEST if queries.dtype == jnp.float32 else None
    product = lambda x, y: jnp.dot(x, y, precision=exact, preferred_element_type=jnp.float32)

    def kernel(queries, keys, values, mask, attended):
        row = jnp.minimum(jnp.arange(max(MIN_TILE_ROWS, pl.next_power_of_2(prefixes))), prefixes - 1)
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
    qkv: Float[Array, "B K 3 N D"],
    cache: tuple[Float[Array, "B N L K D"], Float[Array, "B N L K D"]],
    beam_index: Int[Array, "B K L"],
    position: Int[Array, " B"],
    interpret: bool = False,
) -> tuple[Float[Array, "B K N D"], tuple[Array, Array]]:
    """Computes `kv_cache.attend`: attention to the new key and the cached ones, which the new one joins."""
    flat = (part.reshape(*part.shape[:2], -1, part.shape[-1]) for part in cache)
    attended, keys, values = _attend_and_write(qkv, *flat, beam_index, position, interpret)
    return attended, (keys.reshape(cache[0].shape), values.reshape(cache[1].shape))


@by_sentence_and_head("b k t n d, b n s d, b n s d, b k l, b -> b k n d, b n s d, b n s d")
def _attend_and_write(
    qkv: Array, keys: Array, values: Array, beam_index: Array, position: Array, interpret: bool
) -> Sequence[Array]:
    """Computes `attend_and_write` on keys and values [B, N, L * K, D]. One program computes one head of a prefix."""
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
            scores = jnp.sum(k * scaled[None, :], axis=1)
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
    """The running softmax of one query, or of several [...]."""

    highest: Float[Array, "..."]  # m
    total: Float[Array, "..."]  # z
    weighted: Float[Array, "... D"]  # a


def _after(
    running: Running, scores: Float[Array, "... J"], seen: Bool[Array, "... J"], read: Callable[[Array], Array]
) -> Running:
    """Adds a block to the running softmax.

    seen: True where the query sees the position
    read: read(weights [..., J]) -> weighted sum of the block's values [..., D]
    """
    scores = jnp.where(seen, scores, LOWEST)
    highest = jnp.maximum(running.highest, jnp.max(scores, axis=-1))
    weights = jnp.where(seen, jnp.exp(scores - highest[..., None]), 0)
    shrink = jnp.exp(running.highest - highest)
    total = running.total * shrink + jnp.sum(weights, axis=-1)
    return Running(highest, total, running.weighted * shrink[..., None] + read(weights))


def _blocks(
    most: int, length: int, count: Array | int, more: Callable[[Array, Running], Running], running: Running
) -> Running:
    """Applies more(places [J], running) to the first `count` of `length` places, in blocks of J <= `most`."""
    from jax.experimental import pallas as pl

    size = min(most, max(MIN_TILE_ROWS, pl.next_power_of_2(length)))
    one = lambda block, running: more(block * size + jnp.arange(size), running)
    return one(0, running) if length <= size else lax.fori_loop(0, pl.cdiv(count, size), one, running)
