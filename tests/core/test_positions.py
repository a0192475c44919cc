"""Sinusoidal positions against their formula."""

import jax
import numpy as np

from s2sjax.core import positions

WIDTH = 16
sinusoidal = jax.jit(positions.sinusoidal, static_argnums=1)


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


def test_products_depend_on_the_distance_alone():
    """p(a) . p(b) = sum_i cos((a - b) rate_i), so a shift is one rotation, whatever the position."""
    with jax.enable_x64(True):
        table = np.asarray(positions.sinusoidal(np.arange(40.0), WIDTH))
    products = table @ table.T
    for distance in range(40):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-12)
    assert (products[0, 1:] < WIDTH / 2 - 1e-3).all()  # and no other position is like this one
