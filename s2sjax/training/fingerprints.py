"""Fingerprints of arrays: a checksum that does not depend on how an array is sharded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from s2sjax.training.mesh import path_of

Tree = Any


def fingerprint(array: jax.Array) -> jax.Array:
    """One uint32 for an array's bits: sum over i of mix(bits_i XOR mix(i)), modulo 2^32.

    `mix` is a permutation of 32-bit words, so one changed word always changes the sum. i is the position, so swapped
    words change it too. A sum of integers has no order, so the sharding of the array does not matter.
    """
    bits = (
        jax.lax.bitcast_convert_type(array, _UNSIGNED[min(array.dtype.itemsize, 4)]) if array.dtype != bool else array
    )
    bits = bits.astype(jnp.uint32)
    position = jnp.zeros(bits.shape, jnp.uint32)
    for dimension, length in enumerate(bits.shape):
        position = position * jnp.uint32(length) + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, dimension)
    return jnp.sum(_mix(bits ^ _mix(position)), dtype=jnp.uint32)


_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def _mix(x: jax.Array) -> jax.Array:
    """A permutation of 32-bit words in which every input bit affects every output bit (MurmurHash3, Appleby 2011)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@jax.jit
def _fingerprint_each(arrays: list[jax.Array]) -> list[jax.Array]:
    """One program for all arrays: hosts may not run the collectives of several programs in the same order."""
    return [fingerprint(array) for array in arrays]


def fingerprints(tree: Tree) -> dict[str, list]:
    """{"params/encoder/kernel": [[64, 256], "float32", 2882343476], ...}"""
    leaves = dict(named_leaves(tree))
    values = jax.device_get(_fingerprint_each(list(leaves.values())))
    return {
        name: [list(leaf.shape), str(leaf.dtype), int(value)]
        for (name, leaf), value in zip(leaves.items(), values, strict=True)
    }


def named_leaves(tree: Tree) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield path_of(path), leaf
