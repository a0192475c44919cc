"""The recurrences of the benchmark: their costs by hand, by their jaxpr and by XLA, and their forms."""

import re

import jax
import jax.numpy as jnp
import pytest

from s2sjax.bench.layers import layer_speed, layer_types, mixer_types
from s2sjax.bench.layers.mixer_types import TYPES
from s2sjax.bench.layers.points import Point
from s2sjax.core import mixers
from s2sjax.core.backend import device
from s2sjax.core.mixers import MIXERS
from s2sjax.plan import jaxpr_costs

# B = 2, n = 8, d = 8, N = 2, D = 4, C = 4: two chunks of four positions; B n = 16 rows.
TINY = Point("", 2, 8, 8, 2, chunk=4)
ROWS = 2 * 16  # FLOPs of a product of all positions, for each number of its matrix
SQUARE = 8 * 8
FLOPS = {
    # projections; within chunks, 4 of C and N (K + V); states, written and read: 2 N K V
    "linear_attention": ROWS * (4 * SQUARE + 4 * 2 * (4 + 5) + 2 * 2 * 4 * 5),
    "retention": ROWS * (5 * SQUARE + 4 * 2 * (4 + 4) + 2 * 2 * 4 * 4),
    "gla": ROWS * (3 * SQUARE + 2 * 8 * 4 + 8 * 16 + 16 * 4 + 4 * 2 * (2 + 4) + 2 * 2 * 2 * 4),
    "ssd": ROWS * (8 * 144 + 8 * 16 + 8 * 4 + 16 * 8 + 4 * (64 + 16) + 2 * 4 * 64 * 4),
    "mlstm": ROWS * (5 * SQUARE + 2 * 8 * 2 + 4 * 2 * (4 + 5) + 2 * 2 * 4 * 5),
    # and 2 * 2 * 2 products of 4 by 4 matrices, and inverses of matrices of 4 by 4: 2 products of 2 blocks of 1 by 1,
    # then of one block of 2 by 2
    "delta": ROWS * (4 * SQUARE + 8 * 2 + 4 * 2 * (3 * 4 + 2 * 4) + 4 * 2 * 4 * 4) + 8 * 2 * (64 + 2 * 2 + 16),
    "gated_delta": ROWS * (5 * SQUARE + 2 * 8 * 2 + 4 * 2 * (3 * 4 + 2 * 4) + 4 * 2 * 4 * 4)
    + 8 * 2 * (64 + 2 * 2 + 16),
    "rg_lru": ROWS * (3 * SQUARE + 2 * 8 * 4),
    "slstm": ROWS * (5 * SQUARE + 8 * 16),
}
# Elements in and out of the recurrence, forward: 4 chunks of 2 rows have states of N K V.
MOVED = {
    "retention": 16 * (8 + 8) + 4 * 32 + 16 * (16 + 8) + 4 * 32 + 16 * 8,
    "ssd": 16 * (64 + 16 + 4) + 4 * 1024 + 16 * (128 + 16 + 4) + 4 * 1024 + 16 * 16,
    "delta": 16 * (8 + 8 + 2) + 16 * (8 + 8) + 16 * (24 + 8 + 2) + 4 * 32 + 16 * 8 + 4 * 32,
    "rg_lru": 16 * (8 + 8) + 16 * 8,
    "slstm": 8 * 2 * (32 + 32 + 32) + 8 * 8 * 16,  # 8 steps, which read R each time
}
PROJECTED = {  # in, weights and out of the projections and the convolutions
    "retention": 5 * (16 * 8 + 64 + 16 * 8),
    "ssd": (128 + 8 * 144 + 16 * 144)
    + (128 + 128 + 256)
    + (128 + 32 + 64)
    + (256 + 128 + 128)
    + 2 * 16 * 144
    + 4 * 144,
    "delta": 4 * (128 + 64 + 128) + (128 + 16 + 32) + 2 * 16 * 24 + 4 * 24,
    "rg_lru": 3 * (128 + 64 + 128) + 2 * (128 + 32 + 128) + 2 * 16 * 8 + 4 * 8,
    "slstm": 2 * (128 + 128 + 256) + (128 + 64 + 128) + 2 * 16 * 8 + 4 * 8,
}


def tiny(name, **changes):
    return TINY._replace(layer=name, **changes)


def trace(point, backward):
    """The function that is measured, and its arguments."""
    weights = {name: jnp.zeros(shape) for name, shape in TYPES[point.layer].shapes(point).items()}
    xs, lengths = jnp.zeros((point.batch, point.length, point.width)), jnp.full(point.batch, point.length)
    return layer_speed.function(point, backward), (weights, xs, lengths, *([xs] if backward else []))


def products(point, backward):
    """The FLOPs of all products of the jaxpr."""
    function, arguments = trace(point, backward)
    return jaxpr_costs.count(jax.make_jaxpr(function)(*arguments), [None] * len(jax.tree.leaves(arguments))).products


def test_every_mixer_is_a_layer_of_the_benchmark():
    assert set(TYPES) == set(MIXERS) == set(FLOPS)
    assert all(layer_types.TYPES[name] is kind for name, kind in TYPES.items())


@pytest.mark.parametrize("name", TYPES)
def test_flops_counted_by_hand(name):
    assert layer_types.flops(tiny(name), backward=False) == FLOPS[name]
    assert layer_types.flops(tiny(name), backward=True) == 3 * FLOPS[name]


@pytest.mark.parametrize("name", MOVED)
def test_bytes_counted_by_hand(name):
    assert layer_types.bytes_moved(tiny(name), backward=False) == 4 * (MOVED[name] + PROJECTED[name])
    half = tiny(name, dtype="bfloat16")
    assert layer_types.bytes_moved(half, backward=False) == 2 * (MOVED[name] + PROJECTED[name])


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_flops_are_those_of_the_jaxpr(name, backward):
    """Of chunks of 32 positions, so that `gla` has two blocks of queries."""
    point = tiny(name, length=64, width=16, chunk=32)
    expected = layer_types.flops(point, backward)
    if backward and name in ("linear_attention", "retention", "ssd", "delta", "gated_delta", "mlstm"):
        keys = 64 if name == "ssd" else 16
        expected += 2 * 2 * 64 * 32 * keys  # the backward pass computes the products of queries and keys again
    if backward and name in ("delta", "gated_delta"):
        # The gradient of the inverse is two products of whole matrices, instead of twice those of its rounds.
        expected += 2 * 2 * 2 * (2 * 2 * 32**3 - 2 * mixer_types._inverse(32))
    assert products(point, backward) == expected


@pytest.mark.parametrize("name", [name for name, kind in TYPES.items() if kind.forms == mixer_types.MATRIX])
def test_flops_of_a_scan_are_those_of_the_jaxpr_and_its_outer_products(name):
    point = tiny(name, form="scan")
    weights = trace(point, backward=False)[1][0]
    start = lambda weights: mixers.start(MIXERS[name], mixer_types.sizes(point), weights, 2, jnp.float32)
    states = jax.tree.leaves(jax.eval_shape(start, weights).recurrence)
    outer = 8 * 2 * max(leaf.size for leaf in states)  # n steps, 2 FLOPs for each number of the matrix
    assert layer_types.flops(point, backward=False) == products(point, backward=False) + outer


@pytest.mark.parametrize(("name", "states"), [("rg_lru", 0), ("ssd", 8 * 64 * 64), ("mlstm", 4 * 64 * 65)])
def test_flops_are_those_of_xla_where_there_is_no_loop(name, states):
    """With one chunk, XLA leaves out the states before and after it. What is no product is little in wide vectors."""
    point = Point(name, 1, 32, 256, 4, chunk=32)
    function, arguments = trace(point, backward=False)
    cost = jax.jit(function).lower(*arguments).compile().cost_analysis()
    assert 1 <= cost["flops"] / (layer_types.flops(point, backward=False) - 2 * 2 * 32 * states) < 1.2


@pytest.mark.parametrize("name", TYPES)
def test_costs_grow_with_n_as_the_complexity_says(name):
    at = lambda n, d: layer_types.flops(Point(name, 1, n, d, d // 64, chunk=64), backward=False)
    assert at(2**14, 128) == 2 * at(2**13, 128)
    assert TYPES[name].exponents[0] == 1


@pytest.mark.parametrize("name", TYPES)
def test_forms_are_those_of_the_recurrence(name):
    recurrence = MIXERS[name].recurrence(layer_types.draw_weights(tiny(name)))
    has = {"chunked": recurrence.chunks, "associative": recurrence.combine, "scan": recurrence.step}
    assert {*TYPES[name].forms} == {form for form, part in has.items() if part is not None}


def test_the_form_and_the_chunk_of_the_point_are_run():
    """A scan over all positions, over those of a chunk, the chunks, and those of a chunk again, or none."""
    for changes, lengths in (({"form": "scan"}, ["8"]), ({"chunk": 4}, ["4", "2", "4"]), ({"form": "associative"}, [])):
        function, arguments = trace(tiny("rg_lru", **{"chunk": None, **changes}), backward=False)
        assert re.findall(r"\blength=(\d+)", str(jax.make_jaxpr(function)(*arguments))) == lengths


def test_operations_that_follow_each_other():
    at = lambda name, **changes: layer_types.sequential(Point(name, 1, 1000, 64, 1, **changes))
    assert at("ssd", chunk=64) == at("delta", chunk=64) == 16
    assert at("ssd", form="scan") == at("slstm") == 1000
    assert at("ssd", chunk=2000) == 1
    assert at("rg_lru", chunk=64) == 64 + 16 + 64
    assert at("rg_lru", form="associative") == 10
    assert at("rg_lru", form="scan") == 1000
    assert at("ssd") == -(-1000 // device.chunk_length())


def test_a_chunk_is_not_longer_than_the_sequence():
    point = Point("ssd", 1, 16, 64, 1, chunk=64)
    assert mixer_types.chunk_of(point) == 16
    assert layer_types.flops(point, False) == layer_types.flops(point._replace(chunk=16), False)


def test_the_inverse_of_a_triangular_matrix():
    """Rounds of two products of blocks: 4 of 1, 2 of 2, one of 4."""
    assert mixer_types._inverse(1) == 0
    assert mixer_types._inverse(8) == mixer_types._inverse(5) == 2 * (4 * 2 + 2 * 16 + 128)
