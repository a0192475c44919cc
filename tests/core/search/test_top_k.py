"""The k largest of many, by chunks."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from s2sjax.core.search.top_k import top_k, top_k_small


@pytest.mark.parametrize(("size", "k"), [(5, 3), (97, 2), (1000, 4), (1001, 7), (32000, 10), (1000, 900)])
def test_it_is_top_k(size, k):
    values = np.random.default_rng(size).normal(size=(3, 2, size)).astype(np.float32)
    np.testing.assert_array_equal(top_k(jnp.array(values), k), lax.top_k(values, k)[1])


def test_of_equals_the_smaller_index_comes_first():
    """Whole numbers from 0 to 3 among a thousand: ties everywhere, within chunks and across them; and of -inf, too."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 4, (50, 1000)).astype(np.float32)
    values[::2] = np.where(rng.random((25, 1000)) < 0.999, -np.inf, values[::2])
    by_hand = np.argsort(-values, axis=1, kind="stable")[:, :6]
    np.testing.assert_array_equal(top_k(jnp.array(values), 6), by_hand)


@pytest.mark.parametrize("k", [1, 4, 12])
def test_of_a_few_too(k):
    values = np.random.default_rng(k).integers(0, 4, (50, 12)).astype(np.float32)
    values[0] = -np.inf
    by_hand = np.argsort(-values, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(top_k_small(jnp.array(values), k), by_hand)
    large = np.argsort(values <= 1, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(top_k_small(jnp.array(values > 1), k), large)
