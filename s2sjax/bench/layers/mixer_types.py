"""The recurrences of s2sjax/core/mixers/, as layers of the benchmark, and their costs.

Letters: B batch, n sequence length, d width, N heads, D = d / N width of a head, C positions of a chunk, M = n / C
chunks, G heads of queries and keys, H heads of values, K key width, V value width.

A layer projects its input, convolves some of the projections over 4 positions, runs its recurrence, and projects what
it reads. p columns of projections have 2 B n d p FLOPs:

    layer               p (all projections)     convolved      G     H     K       V        gates
    linear_attention    4 d                     -              N     N     D       D + 1    -
    retention           5 d                     -              N     N     D       D        -
    gla                 4 d + 24                -              N     N     D / 2   D        d / 2
    delta               4 d + N                 3 d            N     N     D       D        N
    gated_delta         5 d + 2 N               3 d            N     N     D       D        2 N
    ssd                 6 d + 2 N + 128         2 d + 128      1     2 N   64      D        2 N
    rg_lru              3 d + 2 D               d              -     -     -       -        -
    mlstm               5 d + 2 N               d              N     N     D       D + 1    2 N
    slstm               5 d                     d              -     N     -       D        -

Linear attention and the mLSTM normalize by a value of 1, which is one column more. FLOPs of the recurrences:

    form               recurrence                        FLOPs
    chunked            sums of outer products            2 B n (C G K + C H V + 2 H K V)
                       delta rule                        2 B n H (3 C K + 2 C V + 3 K V + K^2) + 2 B M H K^2 V
                                                         + B M H 2 (C^3 - C) / 3
    scan               sums of outer products            2 B n (2 H K V)
                       delta rule                        2 B n (3 H K V)
                       slstm                             8 B n d D

Chunks multiply whole squares C x C, half of which is then masked. In gla, the product of queries and keys leaves out
blocks of 16 positions above the diagonal. The last term of the delta rule is the triangular inverse. The update k v^T
of a scan counts like a product. Convolutions and rg_lru have no products.

Bytes are those of two kernels: one writes the state before each chunk, the other reads them, and what the positions of
a chunk see of each other. The delta rule first solves for its errors; then one kernel runs through the chunks. A scan
reads and writes its state at each position.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import jax
from jax import Array

from s2sjax.bench.layers.points import Operation, Point, Type, mask, project
from s2sjax.core import mixers
from s2sjax.core.backend import device
from s2sjax.core.mixers import MIXERS, Sizes
from s2sjax.core.mixers.decayed import BLOCK
from s2sjax.core.mixers.layers import LOW_RANK
from s2sjax.core.mixers.slstm import GATES

SCAN = ("scan",)
MATRIX = ("chunked", "scan")
VECTOR = ("chunked", "associative", "scan")


class Heads(NamedTuple):
    """The shape of a matrix state, and how many numbers a recurrence reads at each position."""

    groups: int
    """heads of queries and keys"""
    heads: int
    key: int
    value: int
    gates: int = 0

    @property
    def keys(self) -> int:
        return self.groups * self.key

    @property
    def values(self) -> int:
        return self.heads * self.value

    @property
    def state(self) -> int:
        return self.heads * self.key * self.value


class Costs(NamedTuple):
    """A row of the tables above."""

    products: list[tuple[int, int]]
    """inputs and outputs of each projection"""
    convolved: int
    """features that the short convolutions read"""
    recurrence: list[Operation]


# --------------------------------------------------------------------------------- forms and chunks


def form_of(point: Point) -> str | None:
    """The form in which a recurrence runs; None for other layers."""
    forms = TYPES[point.layer].forms if point.layer in TYPES else ()
    return (point.form or forms[0]) if forms else None


def chunk_of(point: Point) -> int | None:
    """The number of positions of a chunk; None for a layer without chunks."""
    return min(point.chunk or device.chunk_length(), point.length) if form_of(point) == "chunked" else None


def sequential(point: Point) -> int:
    """The number of operations that follow each other."""
    if form_of(point) == "associative":
        return max(1, math.ceil(math.log2(point.length)))
    return TYPES[point.layer].sequential(point.length, chunk_of(point) or 1)


# -------------------------------------------------------------------------------------- recurrences


def _matrix(point: Point, h: Heads) -> list[Operation]:
    """A sum of outer products."""
    if form_of(point) == "scan":
        return _matrix_scan(point, h, reads=1)
    size, tokens = _chunk(point), point.tokens
    pairs = _gated_pairs(size) if point.layer == "gla" else size**2
    states = _chunks(point) * h.state
    within = 2 * tokens / size * (h.keys * pairs + h.values * size**2)
    return [
        Operation(2 * tokens * h.state, tokens * (h.keys + h.values + h.gates), 0, states),
        Operation(
            within + 2 * tokens * h.state, tokens * (2 * h.keys + h.values + h.gates) + states, 0, tokens * h.values
        ),
    ]


def _gated_pairs(size: int) -> int:
    """Pairs of positions in the product of queries and keys of `gla`, whose queries are taken in blocks."""
    return sum(min(BLOCK, size - first) * min(first + BLOCK, size) for first in range(0, size, BLOCK))


def _delta(point: Point, h: Heads) -> list[Operation]:
    """The delta rule. Its errors take the places of the values."""
    if form_of(point) == "scan":
        return _matrix_scan(point, h, reads=2)
    size, tokens, chunks = _chunk(point), point.tokens, _chunks(point)
    states = chunks * h.state
    overlap, solved = 2 * tokens * size * h.keys, 2 * tokens * size * (h.keys + h.values)
    return [
        Operation(
            overlap + chunks * h.heads * _inverse(size) + solved, tokens * (h.keys + h.values + h.gates), 0,
            tokens * (h.keys + h.values),
        ),
        Operation(
            2 * tokens * size * (h.keys + h.values) + 2 * (3 * tokens + chunks * h.key) * h.state
            + 2 * tokens * h.keys * h.key,
            tokens * (3 * h.keys + h.values + h.gates) + states, 0, tokens * h.values + states,
        ),
    ]  # fmt: skip


def _inverse(size: int) -> int:
    """FLOPs of the inverse of a triangular matrix: two products in each round, of blocks that double in width."""
    whole = 1 << (size - 1).bit_length()
    return 2 * whole * (whole**2 - 1) // 3


def _matrix_scan(point: Point, h: Heads, reads: int) -> list[Operation]:
    """Steps that update a state and read it `reads` times."""
    per_step = 2 * h.keys + h.values + h.gates + h.state
    flops = 2 * point.batch * h.state * (1 + reads)
    return [Operation(flops, point.batch * per_step, 0, point.batch * (h.values + h.state), times=point.length)]


def _vector(point: Point) -> list[Operation]:
    """The decays and the inputs in, the states out; a step of a scan also reads the state before."""
    d = point.width
    if form_of(point) == "scan":
        return [Operation(0, 3 * point.batch * d, 0, point.batch * d, times=point.length)]
    return [Operation(0, 2 * point.tokens * d, 0, point.tokens * d)]


def _slstm(point: Point) -> list[Operation]:
    """A step reads 4 projected gates, h, c, n and m, and writes h, c, n and m."""
    b, d, head = point.batch, point.width, point.width // point.heads
    gates = len(GATES)
    return [Operation(2 * b * d * gates * head, b * (gates + 4) * d, d * gates * head, 4 * b * d, times=point.length)]


def _chunk(point: Point) -> int:
    size = chunk_of(point)
    assert size
    return size


def _chunks(point: Point) -> int:
    """The chunks of all rows."""
    return point.batch * -(-point.length // _chunk(point))


# -------------------------------------------------------------------------------------------- costs


def sizes(point: Point) -> Sizes:
    return Sizes(point.width, point.heads)


def _costs(point: Point) -> Costs:
    """The row of a layer in the tables above."""
    s = sizes(point)
    d, n, head = s.width, s.heads, s.head
    half = max(1, head // 2)
    square, narrow = (d, d), (d, n)
    match point.layer:
        case "linear_attention":
            return Costs(4 * [square], 0, _matrix(point, Heads(n, n, head, head + 1)))
        case "retention":
            return Costs(5 * [square], 0, _matrix(point, Heads(n, n, head, head)))
        case "gla":
            keys = n * half
            products = [*3 * [square], *2 * [(d, keys)], (d, LOW_RANK), (LOW_RANK, keys)]
            return Costs(products, 0, _matrix(point, Heads(n, n, half, head, gates=keys)))
        case "delta":
            return Costs([*4 * [square], narrow], 3 * d, _delta(point, Heads(n, n, head, head, gates=n)))
        case "gated_delta":
            return Costs([*5 * [square], *2 * [narrow]], 3 * d, _delta(point, Heads(n, n, head, head, gates=2 * n)))
        case "ssd":
            inner, heads = s.expand * d, s.expand * n
            mixed = inner + 2 * s.state
            products = [(d, mixed), (d, inner), (d, heads), (inner, d)]
            return Costs(products, mixed, _matrix(point, Heads(1, heads, s.state, head, gates=heads)))
        case "rg_lru":
            gate = Operation(2 * point.tokens * d * head, point.tokens * d, d * head, point.tokens * d)
            return Costs(3 * [square], d, [gate, gate, *_vector(point)])
        case "mlstm":
            products = [*5 * [square], *2 * [narrow]]
            return Costs(products, d, _matrix(point, Heads(n, n, head, head + 1, gates=2 * n)))
        case "slstm":
            return Costs([*2 * [(d, 2 * d)], square], d, _slstm(point))
    raise KeyError(point.layer)


def _operations(point: Point) -> list[Operation]:
    products, convolved, recurrence = _costs(point)
    convolution = Operation(0, point.tokens * convolved, sizes(point).taps * convolved, point.tokens * convolved)
    projections = [project(point, outputs, inputs) for inputs, outputs in products]
    return [*projections, *([convolution] if convolved else []), *recurrence]


# -------------------------------------------------------------------------------------------- table


def _type(complexity: str, forms: tuple[str, ...], sequential: Callable[..., int]) -> Type:
    return Type(_shapes, _apply, _operations, sequential, complexity, (1, 1), _draw, True, forms)


def _shapes(point: Point) -> dict[str, tuple[int, ...]]:
    return {name: weight.shape for name, weight in MIXERS[point.layer].weights(sizes(point)).items()}


def _draw(point: Point) -> dict[str, Array]:
    return mixers.draw(MIXERS[point.layer], sizes(point), jax.random.key(0))


def _apply(point: Point, weights: Mapping[str, Array], xs: Array, lengths: Array) -> Array:
    real, form = mask(point, lengths), form_of(point)
    assert form
    return mixers.apply(
        MIXERS[point.layer], sizes(point), weights, xs, real, form=cast(mixers.Form, form), chunk=point.chunk
    )[0]


def _in_chunks(n: int, chunk: int = 1) -> int:
    return -(-n // chunk)


def _side_by_side(n: int, chunk: int = 1) -> int:
    """C steps of all chunks, a step for each chunk, and C steps again; a scan has no chunks."""
    return n if chunk == 1 else 2 * chunk + _in_chunks(n, chunk)


_of_matrices = _type("n d (C + K)", MATRIX, _in_chunks)
TYPES = {
    **dict.fromkeys(("linear_attention", "retention", "gla", "delta", "gated_delta", "ssd"), _of_matrices),
    "rg_lru": _type("n d", VECTOR, _side_by_side),
    "mlstm": _of_matrices,
    "slstm": _type("n d D", SCAN, _in_chunks),
}
"""the layers of `MIXERS`; their complexity is that of the recurrence alone, for heads of constant width"""
