"""The layers of Table 1 of "Attention is all you need" (Vaswani et al. 2017), as s2sjax runs them, and their costs.

Letters: B batch, n sequence length, d width, N heads, k kernel, r radius, s bytes per number, C positions of a chunk,
K key width of a head.

    layer            implementation                                   FLOPs (forward)            Table 1    sequential
    recurrent        LSTM by `lax.scan`                               16 B n d^2                 n d^2      n
    parallel         minGRU by `lax.associative_scan`                 4 B n d^2                  -          log2 n
    convolution      k positions, centred                             2 B w d^2                  k n d^2    1
    attention        projections, softmax(Q K^T) V, projection        8 B n d^2 + 4 B n^2 d      n^2 d      1
    causal           the same, up to the own position                 8 B n d^2 + 4 B w d        n^2 d      1
    restricted       the same, r positions to either side             8 B n d^2 + 4 B w d        r n d      1
    of core/mixers/  chunks of C positions, then a scan over them     see mixer_types.py         -          n / C
      rg_lru         chunks side by side, twice, and the scan between                            -          n / C + 2 C
      slstm          by `lax.scan`                                                               -          n

w counts the pairs of positions that see each other: about k n, n^2 / 2 and (2r + 1) n, fewer at the ends (`seen`). The
layers of core/mixers/ cost n d (C + K) besides their projections.

FLOPs are those of matrix products, 2 for each multiplication. The backward pass of a product is two products, so that
forward and backward together have three times as many. Recomputation by remat is not counted: it is not useful work.

Bytes are those that the operations of a layer move if each reads its inputs and weights once, and writes its result
once: a projection, one step of the recurrence, the parallel scan, a whole attention (without the n x n weights, as in
flash attention). An operation's backward pass reads its inputs, its weights and the gradient of its result, and writes
the gradients of its inputs and, once, of its weights. A program that moves more bytes has a lower rate.

XLA's own count is not used: it counts the body of a loop once, for any n, and does not see inside cuDNN's attention.
Where it is correct, both agree (tests/bench/layers/test_layer_types.py).
"""

import math
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax.bench.layers import mixer_types
from s2sjax.bench.layers.points import Operation, Operations, Point, Type, mask, project
from s2sjax.core import attention, recurrence
from s2sjax.core.attention.sliding_window import windowed_multi_head
from s2sjax.core.nn import convolution
from s2sjax.core.recurrence import cells

HEAD = 64
"""width of a head if the number of heads is not given"""


def seen(length: int, before: int, after: int) -> int:
    """The number of pairs t, u with t - before <= u <= t + after: 4 positions, 1 before, 0 after -> 1 + 2 + 2 + 2."""
    return sum(length - abs(offset) for offset in range(-before, after + 1) if abs(offset) < length)


def flops(point: Point, backward: bool) -> float:
    """The FLOPs of the products, forward, or forward and backward."""
    return (3 if backward else 1) * sum(o.times * o.flops for o in TYPES[point.layer].operations(point))


def bytes_moved(point: Point, backward: bool) -> float:
    """The bytes that are read and written, forward, or forward and backward."""
    elements = 0.0
    for o in TYPES[point.layer].operations(point):
        elements += o.times * (o.inputs + o.weights + o.outputs)
        if backward:
            elements += o.times * (2 * o.inputs + o.weights + o.outputs) + o.weights
    return elements * jnp.dtype(point.dtype).itemsize


def sequential(point: Point) -> int:
    """The number of operations that follow each other."""
    kind = TYPES[point.layer]
    return mixer_types.sequential(point) if kind.forms else kind.sequential(point.length)


def draw_weights(point: Point) -> dict[str, np.ndarray]:
    """Draws random weights that preserve the scale of their inputs, or those of `Type.draw`."""
    dtype = jnp.dtype(point.dtype)
    if (draw := TYPES[point.layer].draw) is not None:
        return {name: np.asarray(weight).astype(dtype) for name, weight in draw(point).items()}
    rng = np.random.default_rng(0)
    scale = lambda shape: math.prod(shape[:-1]) ** -0.5
    return {
        name: (scale(shape) * rng.standard_normal(shape, np.float32)).astype(dtype)
        for name, shape in TYPES[point.layer].shapes(point).items()
    }


# ----------------------------------------------------------------------------------- recurrence


def _recurrent(name: str, operations: Operations, sequential: Callable[[int], int]) -> Type:
    """A layer with this cell."""
    cell = cells.CELLS[name]

    def run(point: Point, weights: Mapping[str, Array], xs: Array, lengths: Array) -> Array:
        carry = cells.start(cell, point.width, (point.batch,), xs.dtype)
        return recurrence.run(cell, weights, xs, mask(point, lengths), carry, remat_policy=point.remat)[0]

    shapes = lambda point: cell.shapes(point.width, point.width)
    return Type(shapes, run, operations, sequential, "n d^2", (1, 2), recurrent=True)


def _lstm_operations(point: Point) -> list[Operation]:
    """A step reads 4 projected gates, h and c, and writes h and c."""
    b, d = point.batch, point.width
    step = Operation(2 * b * d * 4 * d, 6 * b * d, 4 * d * d, 2 * b * d, times=point.length)
    return [project(point, 4 * d), step]


def _mingru_operations(point: Point) -> list[Operation]:
    """The scan reads the gate and the candidate, and writes h."""
    d = point.width
    return [project(point, 2 * d), Operation(0, 2 * point.tokens * d, 0, point.tokens * d)]


# ---------------------------------------------------------------------------------- convolution


def _convolve(point: Point, weights: Mapping[str, Array], xs: Array, lengths: Array) -> Array:
    return convolution.convolve(weights, xs, mask(point, lengths))


def _convolution_shapes(point: Point) -> dict[str, tuple[int, ...]]:
    assert point.kernel
    return {"kernel": (point.kernel, point.width, point.width), "bias": (point.width,)}


def _convolution_operations(point: Point) -> list[Operation]:
    assert point.kernel
    d, before = point.width, (point.kernel - 1) // 2
    pairs = point.batch * seen(point.length, before, point.kernel - 1 - before)
    return [Operation(2 * pairs * d * d, point.tokens * d, point.kernel * d * d, point.tokens * d)]


# ------------------------------------------------------------------------------------ attention


def _attend(point: Point, weights: Mapping[str, Array], xs: Array, lengths: Array) -> Array:
    """Multi-head self-attention with its projections, as in models/families/transformer.py."""
    heads = lambda x: x.reshape(*x.shape[:-1], point.heads, -1)  # [B, n, N, D]
    queries = heads(xs @ weights["query"] + weights["query_bias"])
    keys, values = map(heads, jnp.split(xs @ weights["key_value"] + weights["key_value_bias"], 2, axis=-1))
    if radius := reach(point):
        attended = windowed_multi_head(queries, keys, values, lengths, radius)
    else:
        attended = attention.fused_multi_head(queries, keys, values, lengths, causal=point.layer == "causal")
    return attended.reshape(xs.shape) @ weights["output"] + weights["output_bias"]


def reach(point: Point) -> int:
    """The number of visible positions on either side; 0 for all, also if the window holds all positions."""
    return point.radius if point.radius and point.length > point.radius + 1 else 0


def _attention_shapes(point: Point) -> dict[str, tuple[int, ...]]:
    d = point.width
    matrices = {"query": (d, d), "key_value": (d, 2 * d), "output": (d, d)}
    return matrices | {f"{name}_bias": shape[1:] for name, shape in matrices.items()}


def _attention_operations(point: Point) -> list[Operation]:
    """Counts two products for each visible pair of positions: Q K^T, and the weights times V."""
    d, far = point.width, reach(point) or point.length
    pairs = point.batch * seen(point.length, far, 0 if point.layer == "causal" else far)
    attend = Operation(4 * pairs * d, 3 * point.tokens * d, 0, point.tokens * d)
    return [project(point, d), project(point, 2 * d), attend, project(point, d)]


_ATTENTION = Type(_attention_shapes, _attend, _attention_operations, lambda n: 1, "n^2 d", (2, 1))
TYPES: dict[str, Type] = {
    "recurrent": _recurrent("lstm", _lstm_operations, lambda n: n),
    "parallel": _recurrent("mingru", _mingru_operations, lambda n: max(1, math.ceil(math.log2(n)))),
    "convolution": Type(_convolution_shapes, _convolve, _convolution_operations, lambda n: 1, "k n d^2", (1, 2)),
    "attention": _ATTENTION,
    "causal": _ATTENTION,
    "restricted": _ATTENTION._replace(complexity="r n d", exponents=(1, 1)),
    **mixer_types.TYPES,
}
