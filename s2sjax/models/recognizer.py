"""Frames to labels by CTC: any encoder, and a dense layer that scores every symbol at every frame."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core.convolution import halve_plane
from s2sjax.core.features import normalize_example, stack_frames
from s2sjax.models.encoders import FrameEncoder


class Recognizer(nn.Module):
    """logits = W h + b, h the states of an encoder; symbol 0 is the blank.

    The encoder reads each `stack` frames as one, or, with `channels`, what two convolutions over time and features make
    of them, each with stride 2 (after Amodei et al. 2016): four frames become one, and a voice that is a little higher
    looks nearly the same.
    """

    family: config.Family
    features: int
    """numbers in a frame"""
    symbols: int
    """labels and the blank"""
    stack: int = 1
    channels: int = 0
    normalize: bool = False
    """scale the features of each example to mean 0 and deviation 1"""
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        inputs, C = self.stack * self.features, self.channels
        if C:
            inputs = -(-self.features // 4) * C
            self.convolutions = [
                layers.Weights({"kernel": (3, 3, below, C), "bias": (C,)}, self.dtype) for below in (1, C)
            ]
        self.encode = FrameEncoder(self.family, inputs, self.dtype, self.remat_policy)
        self.output = layers.Dense(self.family.encoder_spec.states, self.symbols, self.dtype)

    def __call__(self, frames: Array, lengths: Array, train: bool = False) -> tuple[Array, Array]:
        """frames [B, T, F], lengths [B] -> logits [B, ceil(T / n), V] float32, and the lengths of these.

        n is `stack`, or 4 with `channels`.
        """
        frames = normalize_example(frames, lengths) if self.normalize else frames
        if self.channels:
            planes = frames[..., None].astype(self.dtype)  # [B, T, F, 1]
            for weights in self.convolutions:
                planes, lengths = halve_plane(weights(), planes, lengths)
                planes = jax.nn.relu(planes)  # [B, ceil(T/2), ceil(F/2), C], then a quarter
            frames = planes.reshape(*planes.shape[:2], -1)
        else:
            frames, lengths = stack_frames(frames, lengths, self.stack)
        states = self.encode(frames, lengths, train).states
        return self.output.logits(layers.dropout(self, states, self.dropout, train)), lengths
