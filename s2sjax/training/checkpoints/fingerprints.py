"""Fingerprints of arrays: checksums that do not depend on the sharding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax.training.mesh import path_of

Tree = Any


def fingerprint(array: jax.Array) -> jax.Array:
    """The uint32 checksum of the bits of an array: sum over i of mix(bits_i XOR mix(i)), modulo 2^32.

    `mix` is a permutation of 32-bit words, so one changed word always changes the sum. i is the position, so swapped
    words change it too. Integers can be added in any order, so the sharding of the array does not matter.
    """
    if array.dtype != bool:
        array = jax.lax.bitcast_convert_type(array, _UNSIGNED[min(array.dtype.itemsize, 4)])
    bits = array.astype(jnp.uint32)
    position = jnp.zeros(bits.shape, jnp.uint32)
    for dimension, length in enumerate(bits.shape):
        position = position * jnp.uint32(length) + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, dimension)
    return jnp.sum(_mix(bits ^ _mix(position)), dtype=jnp.uint32)


def fingerprint_on_host(array: np.ndarray, block: int = 1 << 16) -> int:
    """`fingerprint` of a NumPy array, without compiling a program. Blocks fit in a core's cache."""
    words = np.ascontiguousarray(array).reshape(-1).view(_UNSIGNED[min(array.dtype.itemsize, 4)])
    total = 0
    for first in range(0, len(words), block):
        bits = words[first : first + block].astype(np.uint32)
        position = np.arange(first, first + len(bits), dtype=np.uint64).astype(np.uint32)
        total += int(np.sum(_mix(bits ^ _mix(position)), dtype=np.uint64))
    return total % 2**32


_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def _mix(x: Any) -> Any:
    """A permutation of 32-bit words in which every input bit affects every output bit (MurmurHash3, Appleby 2011)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@jax.jit
def _fingerprint_each(arrays: list[jax.Array]) -> list[jax.Array]:
    """All fingerprints in one program, because hosts may run the collectives of several programs in different order."""
    return [fingerprint(array) for array in arrays]


def fingerprints(tree: Tree) -> dict[str, list]:
    """Shape, dtype and fingerprint by path: {"params/encoder/kernel": [[64, 256], "float32", 2882343476], ...}."""
    leaves = dict(named_leaves(tree))
    arrays = list(leaves.values())
    if all(isinstance(array, np.ndarray) for array in arrays):
        values = [fingerprint_on_host(array) for array in arrays]
    else:
        values = jax.device_get(_fingerprint_each(arrays))
    return {
        name: [list(leaf.shape), str(leaf.dtype), int(value)]
        for (name, leaf), value in zip(leaves.items(), values, strict=True)
    }


def named_leaves(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Yields the path and the value of each leaf: ("encoder/kernel", array)."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield path_of(path), leaf
