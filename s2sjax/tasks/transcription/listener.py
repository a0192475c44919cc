"""A front end that reduces the number of frames for an attention decoder, as in Listen, Attend and Spell.

Chan et al. 2016 halve the number of frames between encoder layers. Here it is reduced once, before any encoder.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import layers
from s2sjax.models.frontends import Frames
from s2sjax.tasks.recognition.recognizer import plane_weights, reduce_frames, reduced_width


class Listener(nn.Module):
    """Reduces frames [B, T, F] of given lengths [B] to [B, ceil(T / n), E]. n is `stack`, or 4 with `channels`.

    See `Recognizer` for the fields.
    """

    features: int
    outputs: int = 0
    """width that the frames are projected to; 0 for no projection"""
    stack: int = 1
    channels: int = 0
    normalize: bool = False
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        self.convolutions = plane_weights(self.channels, self.dtype)
        self.frames = Frames(self._inputs, self.outputs, self.dtype)

    @property
    def _inputs(self) -> int:
        return reduced_width(self.features, self.stack, self.channels)

    @property
    def width(self) -> int:
        return self.outputs or self._inputs

    @nn.nowrap
    def mask(self, frames: Array, lengths: Array) -> Array:
        n = 4 if self.channels else self.stack
        return jnp.arange(-(-frames.shape[1] // n))[None] < (-(-lengths // n))[:, None]

    def __call__(self, frames: Array, lengths: Array, train: bool = False) -> tuple[Array, Array]:
        convolutions = [weights() for weights in self.convolutions]
        frames, lengths = reduce_frames(frames, lengths, self.normalize, convolutions, self.stack, self.dtype)
        xs, mask = self.frames(frames, lengths)
        return layers.dropout(self, xs, self.dropout, train), mask
