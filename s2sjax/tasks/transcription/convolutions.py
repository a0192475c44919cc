"""A front end of two convolutions over time, the second of stride 2, as in Whisper (Radford et al. 2023).

    h = gelu(W_1 * x + b_1)         kernel 3
    y = gelu(W_2 * h + b_2)         kernel 3, stride 2: the encoder reads half as many frames

Letters: B batch, T frames, F features of a frame, E width.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import layers
from s2sjax.core.nn import convolution

STRIDE = 2


class Convolutions(nn.Module):
    """Maps frames [B, T, F] of given lengths [B] to [B, ceil(T / 2), E]."""

    features: int
    width: int
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        shapes = lambda inputs: {"kernel": (3, inputs, self.width), "bias": (self.width,)}
        self.first = layers.Weights(shapes(self.features), self.dtype)
        self.second = layers.Weights(shapes(self.width), self.dtype)

    @nn.nowrap
    def mask(self, frames: Array, lengths: Array) -> Array:
        return jnp.arange(-(-frames.shape[1] // STRIDE))[None] < (-(-lengths // STRIDE))[:, None]

    def __call__(self, frames: Array, lengths: Array, train: bool = False) -> tuple[Array, Array]:
        real = jnp.arange(frames.shape[1])[None] < lengths[:, None]
        hs = jax.nn.gelu(convolution.convolve(self.first(), frames.astype(self.dtype), real), approximate=False)
        ys, _ = convolution.halve(self.second(), hs, lengths)
        mask = self.mask(frames, lengths)
        xs = jnp.where(mask[..., None], jax.nn.gelu(ys, approximate=False), 0)
        return layers.dropout(self, xs, self.dropout, train), mask
