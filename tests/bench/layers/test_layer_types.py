"""The layers of the benchmark: their results, and their costs by hand, by their jaxpr and by XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.bench.layers import layer_speed, layer_types
from s2sjax.bench.layers.layer_types import TYPES, Point
from s2sjax.core.backend import device
from s2sjax.plan import jaxpr_costs

# B = 2, n = 3, d = 4, s = 4 bytes: x has B n d = 24 elements, d^2 = 16.
TINY = {
    "recurrent": Point("recurrent", 2, 3, 4, 2),
    "parallel": Point("parallel", 2, 3, 4, 2),
    "convolution": Point("convolution", 2, 3, 4, 2, kernel=3),
    "attention": Point("attention", 2, 3, 4, 2),
    "causal": Point("causal", 2, 3, 4, 2),
    "restricted": Point("restricted", 2, 3, 4, 2, radius=1),
}  # those of core/mixers/ are in test_mixer_types.py
FLOPS = {
    "recurrent": 2 * 6 * 4 * 16 + 3 * 2 * 2 * 4 * 16,  # 6 rows by [4, 16]; 3 steps of 2 rows by [4, 16]
    "parallel": 2 * 6 * 4 * 8,
    "convolution": 2 * 2 * (2 + 3 + 2) * 16,  # the first and the last position see 2 of 3
    "attention": 2 * 6 * 4 * (4 + 8 + 4) + 2 * (2 * 9 * 4) * 2,  # 9 pairs, 2 products of width 4, 2 sentences
    "causal": 2 * 6 * 4 * (4 + 8 + 4) + 2 * (2 * 6 * 4) * 2,
    "restricted": 2 * 6 * 4 * (4 + 8 + 4) + 2 * (2 * 7 * 4) * 2,
}
# Each operation: inputs + weights + outputs; backward: 2 inputs + 2 weights + outputs.
BYTES = {
    "recurrent": (24 + 64 + 96) + 3 * (48 + 64 + 16),
    "parallel": (24 + 32 + 48) + (48 + 0 + 24),
    "convolution": 24 + 48 + 24,
    "attention": (24 + 16 + 24) + (24 + 32 + 48) + (72 + 0 + 24) + (24 + 16 + 24),
}
BYTES["causal"] = BYTES["restricted"] = BYTES["attention"]
BACKWARD = {
    "recurrent": (48 + 128 + 96) + 3 * (96 + 64 + 16) + 64,  # the weight gradient is written once, not at each step
    "parallel": (48 + 64 + 48) + (96 + 0 + 24),
    "convolution": 48 + 96 + 24,
    "attention": (48 + 32 + 24) + (48 + 64 + 48) + (144 + 0 + 24) + (48 + 32 + 24),
}
BACKWARD["causal"] = BACKWARD["restricted"] = BACKWARD["attention"]


@pytest.mark.parametrize("name", TYPES)
def test_every_layer_keeps_the_shape_and_the_type(name):
    point = TINY.get(name, Point(name, 2, 3, 4, 2))._replace(dtype="bfloat16")
    weights = layer_types.draw_weights(point)
    xs, lengths = jnp.zeros((2, 3, 4), jnp.bfloat16), jnp.full(2, 3)
    ys, (d_weights, d_xs) = jax.eval_shape(layer_speed.function(point, backward=True), weights, xs, lengths, xs)
    described = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    assert described([ys, d_xs]) == described([xs, xs]) and described(d_weights) == described(weights)


def test_only_causal_attention_hides_what_comes_later():
    weights = layer_types.draw_weights(TINY["causal"])
    xs = jax.random.normal(jax.random.key(0), (2, 3, 4))
    for name, hidden in (("causal", True), ("attention", False)):
        first, other = (TYPES[name].apply(TINY[name], weights, x, jnp.full(2, 3)) for x in (xs, xs.at[:, 2].add(1.0)))
        assert np.allclose(first[:, :2], other[:, :2], atol=1e-6) == hidden


@pytest.mark.parametrize("name", TINY)
def test_costs_counted_by_hand(name):
    assert layer_types.flops(TINY[name], backward=False) == FLOPS[name]
    assert layer_types.flops(TINY[name], backward=True) == 3 * FLOPS[name]
    assert layer_types.bytes_moved(TINY[name], backward=False) == 4 * BYTES[name]
    assert layer_types.bytes_moved(TINY[name], backward=True) == 4 * (BYTES[name] + BACKWARD[name])
    half = TINY[name]._replace(dtype="bfloat16")
    assert layer_types.bytes_moved(half, backward=False) == 2 * BYTES[name]


@pytest.mark.parametrize("name", TINY)
def test_costs_grow_as_in_table_1(name):
    """Where one term outweighs the others: long sequences of narrow vectors, or the reverse."""
    of_n, of_d = TYPES[name].exponents
    radius = 4 if name == "restricted" else None
    at = lambda n, d: layer_types.flops(Point(name, 1, n, d, 1, kernel=3, radius=radius), backward=False)
    if name == "restricted":  # its projections are n d^2, which Table 1 omits
        at = lambda n, d, whole=at: whole(n, d) - 8 * n * d**2
    assert np.log2(at(2**14, 4) / at(2**13, 4)) == pytest.approx(of_n, abs=0.01)
    long, wide = (2**14, 1) if name in ("attention", "causal", "restricted") else (16, 2**10)
    assert np.log2(at(long, 2 * wide) / at(long, wide)) == pytest.approx(of_d, abs=0.01)


def test_pairs_of_positions():
    for length, before, after in ((1, 0, 0), (4, 1, 0), (5, 2, 3), (3, 9, 1), (6, 6, 6)):
        offsets = np.arange(length) - np.arange(length)[:, None]
        near = (offsets >= -before) & (offsets <= after)
        assert layer_types.seen(length, before, after) == near.sum()


def trace(point, backward):
    """The function that is measured, and its arguments."""
    shapes = {name: jnp.zeros(shape) for name, shape in TYPES[point.layer].shapes(point).items()}
    xs, lengths = jnp.zeros((point.batch, point.length, point.width)), jnp.full(point.batch, point.length)
    return layer_speed.function(point, backward), (shapes, xs, lengths, *([xs] if backward else []))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", ["recurrent", "parallel", "attention"])
def test_flops_are_those_of_the_jaxpr(name, backward):
    point = TINY[name]._replace(length=5, width=8)
    function, arguments = trace(point, backward)
    counted = jaxpr_costs.count(jax.make_jaxpr(function)(*arguments), [None] * len(jax.tree.leaves(arguments)))
    assert counted.products == layer_types.flops(point, backward)


@pytest.mark.parametrize("name", ["parallel", "convolution", "attention"])
def test_flops_are_those_of_xla_where_there_is_no_loop(name):
    """XLA also counts operations other than products, which are few if vectors are wide."""
    point = TINY[name]._replace(length=8, width=64)
    function, arguments = trace(point, backward=False)
    cost = jax.jit(function).lower(*arguments).compile().cost_analysis()
    assert 1 <= cost["flops"] / layer_types.flops(point, backward=False) < 1.2


def test_operations_that_follow_each_other():
    assert [TYPES[name].sequential(1000) for name in TINY] == [1000, 10, 1, 1, 1, 1]
    assert [layer_types.sequential(point._replace(length=1000)) for point in TINY.values()] == [1000, 10, 1, 1, 1, 1]
    assert TYPES["parallel"].sequential(1) == 1


@pytest.mark.parametrize("unroll", [None, 3])
def test_the_scan_is_unrolled_as_often_as_asked(unroll):
    function, arguments = trace(TINY["recurrent"]._replace(unroll=unroll), backward=False)
    jaxpr = str(jax.make_jaxpr(function)(*arguments))
    assert f"unroll={unroll or device.scan_unroll()}\n" in jaxpr
