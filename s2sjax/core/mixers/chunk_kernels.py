"""What the positions of a chunk read, `chunks.read`, with one forward and one backward kernel for GPUs.

    y_i = sum_{j <= i} w_ij v_j + s_i S^T q_i      w_ij = e_ij q_i . k_j      e_ij = exp(r_i + c_j)

XLA writes the C x C weights of all chunks to memory and reads them again, several times for the gradients. A program
here keeps those of one head in one chunk on the chip, and takes its inputs in the layout of the projections. The
gradients:

    dw_ij = dy_i . v_j               dv_j = sum_i w_ij dy_i                   dS = sum_i s_i q_i dy_i^T
    dk_j = sum_i e_ij dw_ij q_i      dq_i = sum_j e_ij dw_ij k_j + s_i S dy_i
    dr_i = sum_j w_ij dw_ij          dc_j = sum_i w_ij dw_ij                  ds_i = dy_i . S^T q_i

Letters: B batch, M chunks, C positions of a chunk, N heads, K key width, V value width. Queries and keys have N heads,
or are shared by all heads and have no such axis. Each of several devices computes its own sentences and heads.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8

from s2sjax.core.attention.decode_kernel import by_sentence_and_head
from s2sjax.core.attention.short_sequence_kernel import load_tile, product, store_tile
from s2sjax.core.backend import device

LONGEST_CHUNK = 64
WIDTHS = (16, 32, 64, 128)
LARGEST_STATE = 64 * 128
"""maximal number of elements of the state of a head"""


def fits(key: Float[Array, "B M C G K"], value: Float[Array, "B M C N V"]) -> bool:
    """Whether the device, and the dtypes and sizes of the inputs, allow these kernels."""
    width, height = key.shape[-1], value.shape[-1]
    narrow = key.dtype == value.dtype and value.dtype in (jnp.bfloat16, jnp.float16)
    small = {width, height} <= {*WIDTHS} and width * height <= LARGEST_STATE and value.shape[2] <= LONGEST_CHUNK
    even = key.shape[3] in (1, value.shape[3])
    return narrow and small and even and device.runs_triton(device.target()) and not device.splits_sequences()


@partial(jax.custom_vjp, nondiff_argnums=(8,))
def read(
    value: Float[Array, "B M C N V"],
    query: Float[Array, "B M C *N K"],
    key: Float[Array, "B M C *N K"],
    row: Float[Array, "B M N C"],
    column: Float[Array, "B M N C"],
    from_start: Float[Array, "B M N C"],
    states: Float[Array, "B M N K V"],
    pairs: Int8[Array, "*B_M C C"],
    interpret: bool = False,
) -> Float[Array, "B M C N V"]:
    """y above, for r = row, c = column and s = from_start.

    pairs: 1 where position i sees position j, in all chunks [C, C] or in each [B, M, C, C]
    interpret: whether to interpret the kernels, for tests
    """
    kernel = _sharded(_forward_kernel, query.ndim == 4, pairs.ndim == 2)
    return kernel(value, query, key, row, column, from_start, states, pairs, interpret)


def _forward(*inputs):
    return read(*inputs), inputs[:-1]


def _backward(interpret: bool, saved: Sequence[Array], gradient: Float[Array, "B M C N V"]):
    query, pairs = saved[1], saved[-1]
    kernel = _sharded(_backward_kernel, query.ndim == 4, pairs.ndim == 2)
    d_value, d_query, d_key, *others = kernel(*saved, gradient, interpret)
    if query.ndim == 4:
        d_query, d_key = (jnp.sum(d, axis=3, dtype=jnp.float32).astype(query.dtype) for d in (d_query, d_key))
    return d_value, d_query, d_key, *others, None


read.defvjp(_forward, _backward)


@cache
def _sharded(kernel: Callable, shared: bool, same: bool) -> Callable:
    """A kernel that devices and `vmap` split by sentences and heads.

    shared: whether all heads share queries and keys
    same: whether all chunks have the same pairs
    """
    one = "b t s k" if shared else "b t s n k"
    inputs = f"b t s n d, {one}, {one}, b t n s, b t n s, b t n s, b t n k d, {'s l' if same else 'b t s l'}"
    if kernel is _forward_kernel:
        return by_sentence_and_head(f"{inputs} -> b t s n d")(kernel)
    results = "b t s n d, b t s n k, b t s n k, b t n s, b t n s, b t n s, b t n k d"
    return by_sentence_and_head(f"{inputs}, b t s n d -> {results}")(kernel)


def _forward_kernel(value, query, key, row, column, from_start, states, pairs, interpret) -> Array:
    def kernel(value, query, key, row, column, from_start, state, pairs, y):
        q = load_tile(query)
        _, weights = _weights(q, load_tile(key), row, column, pairs)
        past = load_tile(from_start)[:, None] * product(q, load_tile(state))
        store_tile(y, product(weights.astype(q.dtype), load_tile(value)) + past)

    [y] = _call(kernel, (value, query, key, row, column, from_start, states, pairs), (value,), interpret)
    return y


def _backward_kernel(
    value, query, key, row, column, from_start, states, pairs, gradient, interpret
) -> Sequence[Array]:  # fmt: skip
    def kernel(value, query, key, row, column, from_start, state, pairs, gradient, *results):
        d_value, d_query, d_key, d_row, d_column, d_from_start, d_state = results
        q, k, d_y, s = load_tile(query), load_tile(key), load_tile(gradient), load_tile(from_start)[:, None]
        factors, weights = _weights(q, k, row, column, pairs)
        store_tile(d_value, product(weights.astype(q.dtype), d_y, 0, 0))
        d_weights = product(d_y, load_tile(value), 1, 1)
        both = weights * d_weights
        store_tile(d_row, jnp.sum(both, axis=1))
        store_tile(d_column, jnp.sum(both, axis=0))
        d_scores = (factors * d_weights).astype(q.dtype)
        store_tile(d_key, product(d_scores, q, 0, 0))
        past = product(d_y, load_tile(state), 1, 1)  # S dy_i
        store_tile(d_query, product(d_scores, k) + s * past)
        store_tile(d_from_start, jnp.sum(past * q, axis=1))
        store_tile(d_state, product((s * q).astype(q.dtype), d_y, 0, 0))

    inputs = value, query, key, row, column, from_start, states, pairs, gradient
    of_heads = jax.ShapeDtypeStruct((*value.shape[:-1], key.shape[-1]), key.dtype)
    return _call(kernel, inputs, (value, of_heads, of_heads, row, column, from_start, states), interpret)


def _weights(q: Array, k: Array, row, column, pairs) -> tuple[Array, Array]:
    """e and w of the pairs of positions, 0 for others: float32 [C, C]."""
    seen = load_tile(pairs) != 0
    exponents = load_tile(row)[:, None] + load_tile(column)[None, :]
    factors = jnp.where(seen, jnp.exp(jnp.where(seen, exponents, 0)), 0)
    return factors, factors * product(q, k, 1, 1)


def _call(kernel: Callable, inputs: Sequence[Array], outputs: Sequence[Array | jax.ShapeDtypeStruct], interpret: bool):
    """Runs the kernel for each head of each chunk. Its references have the other axes."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def spec(array, axes: str):
        block = tuple(None if axis in "btn" else size for axis, size in zip(axes, array.shape))
        return pl.BlockSpec(block, lambda b, t, n: tuple({"b": b, "t": t, "n": n}.get(axis, 0) for axis in axes))

    value, query, key, *rows, states, pairs = (spec(*each) for each in zip(inputs[:8], _axes(inputs)))
    of_heads = spec(outputs[1], "btsnk") if len(outputs) > 1 else None
    return pl.pallas_call(
        kernel,
        grid=(*inputs[0].shape[:2], inputs[0].shape[3]),
        in_specs=[value, query, key, *rows, states, pairs, *[value] * len(inputs[8:])],
        out_specs=[value, of_heads, of_heads, *rows, states][: len(outputs)],
        out_shape=[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in outputs],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
    )(*inputs)


def _axes(inputs: Sequence[Array]) -> list[str]:
    """The axes of the inputs of a kernel: under `vmap`, each sentence has pairs of its own."""
    one, pairs = {4: "btsk", 5: "btsnk"}[inputs[1].ndim], {2: "sl", 3: "bsl", 4: "btsl"}[inputs[7].ndim]
    return ["btsnd", one, one, "btns", "btns", "btns", "btnkd", pairs]
