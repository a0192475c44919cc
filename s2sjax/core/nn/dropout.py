"""Random masks for dropout (Srivastava et al. 2014), from a hash of each element's index.

Every layer draws a mask in every step, so masks must be cheap. A hash of the index is a few operations on one 32-bit
number: XLA computes it where the mask is used, forward and backward, and stores nothing. It depends only on the global
index, so a mesh does not change it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray, UInt32

from s2sjax.core.traced_numbers import Scalar


def keep_mask(key: PRNGKeyArray, shape: tuple[int, ...], rate: Scalar) -> Bool[Array, "..."]:
    """Random mask of the given shape: True with probability 1 - rate, independently for each element."""
    return random_bits(key, shape) >= (jnp.float32(rate) * 2.0**32).astype(jnp.uint32)


def random_bits(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Random bits of the given shape: a hash of (key, index) by Murmur3's finalizer (Appleby 2011).

    Half of the key is mixed in before the finalizer and half within: otherwise two keys would give permutations of the
    same bits.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    bits = index_of(shape) ^ first
    bits = (bits ^ bits >> 16) * jnp.uint32(0x85EBCA6B) ^ second
    bits = (bits ^ bits >> 13) * jnp.uint32(0xC2B2AE35)
    return bits ^ bits >> 16


def index_of(shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Row-major index of each element, modulo 2^32: shape (2, 3) -> [[0, 1, 2], [3, 4, 5]]."""
    index, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return index
