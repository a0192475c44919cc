"""Windowed self-attention: equal to the band mask, at the cost of the band alone."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from jax.test_util import check_grads

from s2sjax.core import attention
from s2sjax.core.attention import position_encodings
from s2sjax.core.attention.sliding_window import offsets, windowed_multi_head

HEADS, WIDTH = 2, 3
BAR = 1e-5

both_ways = pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def heads_example(rows: int, length: int, heads: int = HEADS):
    return [draw(seed, rows, length, heads, WIDTH) for seed in range(3)]


def band(length: int, lengths: np.ndarray, radius: int, causal: bool) -> np.ndarray:
    """[B, T, T]: the n^2 mask that the window saves."""
    distance = np.arange(length) - np.arange(length)[:, None]
    near = (np.abs(distance) <= radius) & (distance <= 0 if causal else True)
    return near & (np.arange(length) < lengths[:, None, None])


def test_what_a_block_sees():
    np.testing.assert_array_equal(offsets(2, causal=True), [[-2, -1, 0, 1], [-3, -2, -1, 0]])
    np.testing.assert_array_equal(offsets(1, causal=False), [[-1, 0, 1]])


@both_ways
@pytest.mark.parametrize(
    "length, radius", [pytest.param(7, 1, marks=pytest.mark.slow), (7, 2), pytest.param(5, 7, marks=pytest.mark.slow)]
)
def test_it_equals_the_band_mask(length, radius, causal):
    """Values and gradients: lengths that are no multiple of the radius, padding, an empty row, relative positions."""
    lengths = np.array([length, (length + 1) // 2, 0])
    arrays = (*heads_example(3, length), draw(3, position_encodings.BUCKETS, HEADS))
    place = np.arange(length)

    def definition(*arrays):
        bias = position_encodings.relative_bias(arrays[3], place - place[:, None], causal)[None]
        return attention.multi_head(*arrays[:3], band(length, lengths, radius, causal), bias)

    def windowed(*arrays):
        bias = position_encodings.relative_bias(arrays[3], offsets(radius, causal), causal)[None]
        return windowed_multi_head(*arrays[:3], lengths, radius, causal, bias)

    def value_and_gradients(attend, *arrays):
        value, pull = jax.vjp(attend, *arrays)
        return value, pull(draw(4, *value.shape))

    expected, found = (jax.jit(partial(value_and_gradients, f))(*arrays) for f in (definition, windowed))
    jax.tree.map(partial(np.testing.assert_allclose, atol=BAR), found, expected)


@both_ways
def test_it_equals_pytorch_with_the_band_mask(causal):
    torch = references.of_pytorch(f"band-{causal}")
    *heads, theirs = (torch[name].swapaxes(1, 2) for name in ("queries", "keys", "values", "ys"))
    ours = jax.jit(windowed_multi_head, static_argnums=(4, 5))(*heads, np.full(2, 9), 2, causal)
    np.testing.assert_allclose(ours, theirs, atol=BAR)


def test_its_gradient_matches_finite_differences_in_float64():
    with jax.enable_x64(True):
        heads = [jnp.float64(x) for x in heads_example(2, 5)]
        attend = jax.jit(lambda *heads: windowed_multi_head(*heads, np.array([5, 3]), 2))
        check_grads(attend, heads, order=1, modes=["rev"], rtol=1e-6, atol=1e-9, eps=1e-5)


# ------------------------------------------------------------------------------------------- cost


def compiled(length: int, radius: int, causal: bool = False):
    """The compiled value and gradients for one row and one head; radius 0 is full attention under the band mask."""
    everyone = np.array([length])

    def loss(*heads):
        if radius:
            return windowed_multi_head(*heads, everyone, radius, causal).sum()
        return attention.multi_head(*heads, band(length, everyone, 4, causal)).sum()

    heads = [jax.ShapeDtypeStruct((1, length, 1, WIDTH), jnp.float32)] * 3
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).lower(*heads).compile()


def flops(program) -> float:
    cost = program.cost_analysis()
    return (cost[0] if isinstance(cost, list) else cost)["flops"]


def largest_array(program) -> int:
    """Elements of the largest array that the program names."""
    shapes = re.findall(r"(?:f32|s32|pred|s64)\[([\d,]+)\]", program.as_text())
    return max(int(np.prod([int(n) for n in shape.split(",")])) for shape in shapes)


@both_ways
def test_its_cost_grows_with_the_length_and_not_with_its_square(causal):
    """Twice the length, twice the work; and nothing as large as n x n is ever held."""
    short, long = compiled(1024, 4, causal), compiled(2048, 4, causal)
    assert 1.9 < flops(long) / flops(short) < 2.1
    assert largest_array(long) <= 2 * largest_array(short) < 1024 * 1024


def test_the_same_measure_finds_the_square_in_full_attention():
    short, long = compiled(128, 0), compiled(256, 0)
    assert 3.8 < flops(long) / flops(short) < 4.2
    assert largest_array(short) >= 128 * 128


def test_its_cost_grows_with_the_radius():
    assert 1.7 < flops(compiled(1024, 8)) / flops(compiled(1024, 4)) < 2.1
