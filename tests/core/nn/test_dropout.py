"""The bits of dropout: uniform, unrelated between neighbours, keys and bits, the same on every mesh."""

import jax
import numpy as np
import pytest
import zoo
from jax.sharding import NamedSharding, PartitionSpec

from s2sjax.core.nn import dropout

SHAPE = (256, 512)
bits_of = jax.jit(dropout.random_bits, static_argnums=1)


def bits(key: int) -> np.ndarray:
    return np.asarray(bits_of(jax.random.key(key), SHAPE))


def check_fair(coins: np.ndarray) -> None:
    """As many heads as tails, within four standard deviations."""
    assert abs(coins.mean() - 0.5) < 4 * 0.5 / np.sqrt(coins.size)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_the_share_that_is_kept(rate):
    kept = np.asarray(dropout.keep_mask(jax.random.key(1), SHAPE, rate))
    assert kept.all() if rate == 0 else abs(kept.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / kept.size)


def test_bytes_are_uniform():
    for place in range(4):
        counts = np.bincount((bits(2) >> (8 * place) & 255).ravel(), minlength=256)
        expected = counts.sum() / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_square - 255) < 4 * np.sqrt(2 * 255)


def test_neighbours_are_unrelated():
    """Any two elements a few places apart, along each axis: all four pairs of coins are equally frequent."""
    coins = bits(3) >> 31
    for distance in (1, 2, 3, 4, 8, 16, 64):
        for left, right in ((coins[:, distance:], coins[:, :-distance]), (coins[distance:], coins[:-distance])):
            zoo.check_shares(np.bincount((2 * left + right).ravel(), minlength=4), np.full(4, 0.25))


def test_two_keys_are_unrelated():
    """Not even if the keys differ in one bit, and wherever the elements of one are compared with those of the other."""
    keys = [jax.random.wrap_key_data(np.array([5, word], np.uint32)) for word in (6, 7)]
    first, second = (np.asarray(bits_of(key, SHAPE)).ravel() for key in keys)
    for shift in range(4):
        check_fair((first ^ np.roll(second, shift)) >> 31)
    assert len(np.intersect1d(first, second)) < 20  # of 131,072 random numbers, 4 are expected


def test_no_two_masks_are_one_mask_moved():
    """Bits that depended on index + key alone would repeat from mask to mask, and so would those of index ^ key."""
    first, second = np.sort(bits(8).ravel()), np.sort(bits(9).ravel())
    assert (first == second).mean() < 0.01


def test_an_index_is_counted_in_rows():
    np.testing.assert_array_equal(dropout.index_of((2, 3, 4)), np.arange(24).reshape(2, 3, 4))
    assert dropout.index_of(()).shape == ()


def test_a_mesh_does_not_change_them():
    mesh = jax.make_mesh((4, 2), ("rows", "columns"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    split = NamedSharding(mesh, PartitionSpec("rows", "columns"))
    sharded = jax.jit(dropout.random_bits, static_argnums=1, out_shardings=split)(jax.random.key(4), SHAPE)
    assert len({shard.device for shard in sharded.addressable_shards}) == 8
    np.testing.assert_array_equal(sharded, bits(4))
