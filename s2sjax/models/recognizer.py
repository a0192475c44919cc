"""Frames to labels by CTC: any encoder, and a dense layer that scores every symbol at every frame."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core.features import normalize_example, stack_frames
from s2sjax.models.encoders import FrameEncoder


class Recognizer(nn.Module):
    """logits = W h + b, h the states of an encoder that reads each `stack` frames as one; symbol 0 is the blank."""

    family: config.Family
    features: int
    """numbers in a frame"""
    symbols: int
    """labels and the blank"""
    stack: int = 1
    normalize: bool = False
    """scale the features of each example to mean 0 and deviation 1"""
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        self.encode = FrameEncoder(self.family, self.stack * self.features, self.dtype, self.remat_policy)
        self.output = layers.Dense(self.family.encoder_spec.states, self.symbols, self.dtype)

    def __call__(self, frames: Array, lengths: Array, train: bool = False) -> tuple[Array, Array]:
        """frames [B, T, F], lengths [B] -> logits [B, ceil(T / stack), V] float32, and the lengths of these."""
        frames = normalize_example(frames, lengths) if self.normalize else frames
        frames, lengths = stack_frames(frames, lengths, self.stack)
        states = self.encode(frames, lengths, train).states
        return self.output.logits(layers.dropout(self, states, self.dropout, train)), lengths
