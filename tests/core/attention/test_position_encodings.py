"""Positions against their formulas."""

import jax
import numpy as np

from s2sjax.core.attention import position_encodings

WIDTH = 16
sinusoidal = jax.jit(position_encodings.sinusoidal, static_argnums=1)


def test_the_formula():
    """sin and cos of pos / 10000^(2i / width), the sines first, for positions of any shape."""
    at = np.array([[0, 1, 2], [7, 100, 511]])
    found = np.asarray(sinusoidal(at, WIDTH))
    assert found.shape == (2, 3, WIDTH)
    for i in range(WIDTH // 2):
        angle = at / 10000 ** (2 * i / WIDTH)
        np.testing.assert_allclose(found[..., i], np.sin(angle), atol=5e-5)
        np.testing.assert_allclose(found[..., WIDTH // 2 + i], np.cos(angle), atol=5e-5)


def test_position_zero():
    np.testing.assert_array_equal(sinusoidal(np.array(0), WIDTH), [0] * (WIDTH // 2) + [1] * (WIDTH // 2))


def test_exact_positions_in_a_text_of_any_length():
    at = np.array([0, 1, 511, 123_456, 30_000_001, 2**31 - 1])
    rates = 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    expected = np.concatenate([np.sin(at[:, None] * rates), np.cos(at[:, None] * rates)], axis=-1)
    found = jax.jit(position_encodings.exact_sinusoidal, static_argnums=1)(at, WIDTH)
    np.testing.assert_allclose(found, expected, atol=3e-5)
    assert np.abs(np.asarray(sinusoidal(at, WIDTH)) - expected).max() > 0.1  # the product alone is far off


def test_products_depend_on_the_distance_alone():
    """p(a) . p(b) = sum_i cos((a - b) rate_i), so a shift is one rotation, whatever the position."""
    with jax.enable_x64(True):
        table = np.asarray(position_encodings.sinusoidal(np.arange(40.0), WIDTH))
    products = table @ table.T
    for distance in range(40):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-12)
    assert (products[0, 1:] < WIDTH / 2 - 1e-3).all()  # and no other position is like this one


# ----------------------------------------------------------------------------------------- rotary


def test_a_pair_is_turned_by_its_angle():
    """In the plane, (1, 0) at position p goes to (cos p, sin p); lengths stay."""
    turned = jax.jit(position_encodings.rotate)(np.array([[1.0, 0], [1, 0], [0, 2]], np.float32), np.array([0, 1, 3]))
    np.testing.assert_allclose(turned, [[1, 0], [np.cos(1), np.sin(1)], [-2 * np.sin(3), 2 * np.cos(3)]], atol=1e-6)


def test_rotation_is_multiplication_by_a_unit_complex_number():
    """Su et al. 2021: the pairs as complex numbers, times e^(i pos theta)."""
    x, at = np.random.default_rng(0).normal(size=(4, WIDTH)), np.array([0, 1, 50, 500])
    theta = 10000 ** (-2 * np.arange(WIDTH // 2) / WIDTH)
    expected = (x[:, : WIDTH // 2] + 1j * x[:, WIDTH // 2 :]) * np.exp(1j * at[:, None] * theta)
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(position_encodings.rotate)(x, at))
    np.testing.assert_allclose(found, np.concatenate([expected.real, expected.imag], axis=1), atol=1e-12)


def test_rotary_scores_depend_on_the_distance_alone():
    query, key = np.random.default_rng(1).normal(size=(2, WIDTH))
    with jax.enable_x64(True):
        rotate = jax.jit(lambda x: position_encodings.rotate(x, np.arange(20)))
        scores = np.asarray(rotate(query)) @ np.asarray(rotate(key)).T  # [20, 20]
    for distance in range(-19, 20):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-12)
    assert np.ptp(scores[0]) > 0.5  # and on the distance they do depend


# --------------------------------------------------------------------------------------- relative


def bucket_by_hand(offset: int, causal: bool) -> int:
    """T5's rule for one offset: exact distances first, then logarithmic bins, keys ahead in the second half."""
    count, ahead = (32, 0) if causal else (16, 16 if offset > 0 else 0)
    distance = max(-offset, 0) if causal else abs(offset)
    single = count // 2
    if distance < single:
        return ahead + distance
    # The edges: bin k begins at single * (128 / single)^(k / single).
    edges = [single * (128 / single) ** (k / (count - single)) for k in range(count - single)]
    return ahead + single + sum(distance >= edge - 1e-9 for edge in edges) - 1


def test_buckets_are_those_of_t5():
    bucket = jax.jit(position_encodings.bucket, static_argnums=1)
    offsets = np.arange(-300, 301)
    for causal in (False, True):
        np.testing.assert_array_equal(bucket(offsets, causal), [bucket_by_hand(int(o), causal) for o in offsets])
    # Some of the figures that T5's own function gives.
    assert bucket(np.array([0, -1, 1, -8, 8, -12, 127, -200, 200]), False).tolist() == [0, 1, 17, 8, 24, 9, 31, 15, 31]
    assert bucket(np.array([5, 0, -15, -16, -19, -127, -200]), True).tolist() == [0, 0, 15, 16, 17, 31, 31]


def test_a_relative_bias_is_an_entry_of_the_table():
    table = np.random.default_rng(2).normal(size=(position_encodings.BUCKETS, 3)).astype(np.float32)
    offsets = np.array([[0, 1, 2], [-1, 0, 1]])
    bias = np.asarray(position_encodings.relative_bias(table, offsets, causal=False))
    assert bias.shape == (3, 2, 3)
    np.testing.assert_array_equal(bias[:, 0, 2], table[18])
    np.testing.assert_array_equal(bias[:, 1, 0], table[1])
