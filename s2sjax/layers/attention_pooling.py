"""Attention blocks: pooling, and the non-local block.

Letters: B batch, S positions of the memory.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import layers
from s2sjax.core import attention
from s2sjax.layers.parameters import param


class Pooling(nn.Module):
    """Attention pooling: learned queries attend to [B, S, width], mask [B, S] -> [B, queries, width], alpha.

    See `attention.pool`.
    """

    queries: int
    width: int
    score: str = "scaled_dot"
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        shapes = attention.SCORES[self.score].shapes(self.width, self.width, self.width)
        self.weights = layers.Weights(shapes, self.dtype)
        self.learned = param(self, "queries", nn.initializers.normal(1.0), (self.queries, self.width))

    def __call__(self, memory: Array, mask: Array) -> tuple[Array, Array]:
        queries = self.learned.astype(self.dtype)
        return attention.pool(attention.SCORES[self.score], self.weights(), queries, memory, mask)


class NonLocal(nn.Module):
    """The non-local block, embedded Gaussian: every position of an image or a video attends to every other one.

        z_i = x_i + W_z sum_j softmax_j(theta(x_i) . phi(x_j)) g(x_j)          Wang et al. 2018

    x [B, ..., width] has positions `...` such as H x W or T x H x W; mask [B, ...] marks those that are not padding.
    theta, phi and g are linear maps to half of the width. W_z is initialized with zero, so that a block added to a
    trained network initially changes nothing.
    """

    width: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        inner = max(1, self.width // 2)
        self.query = layers.Dense(self.width, inner, self.dtype)
        self.key_value = layers.Dense(self.width, 2 * inner, self.dtype)
        self.output = layers.Dense(inner, self.width, self.dtype, gain=0.0)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        flat = x.reshape(len(x), -1, self.width)  # [B, S, width]
        real = jnp.ones(flat.shape[:2], bool) if mask is None else mask.reshape(flat.shape[:2])
        keys, values = jnp.split(self.key_value(flat), 2, axis=-1)
        seen, _ = attention.attend_all(attention.SCORES["dot"], {}, self.query(flat), keys, values, real)
        return x + self.output(seen).reshape(x.shape)
