"""Frames to labels by CTC: any encoder, and a dense layer that scores every symbol at every frame."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core.convolution import Weights, halve_plane
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
        inputs = reduced_width(self.features, self.stack, self.channels)
        self.convolutions = plane_weights(self.channels, self.dtype)
        self.encode = FrameEncoder(self.family, inputs, self.dtype, self.remat_policy)
        self.output = layers.Dense(self.family.encoder_spec.states, self.symbols, self.dtype)

    def __call__(self, frames: Array, lengths: Array, train: bool = False) -> tuple[Array, Array]:
        """frames [B, T, F], lengths [B] -> logits [B, ceil(T / n), V] float32, and the lengths of these.

        n is `stack`, or 4 with `channels`.
        """
        convolutions = [weights() for weights in self.convolutions]
        frames, lengths = reduce_frames(frames, lengths, self.normalize, convolutions, self.stack, self.dtype)
        states = self.encode(frames, lengths, train).states
        return self.output.logits(layers.dropout(self, states, self.dropout, train)), lengths


def reduced_width(features: int, stack: int, channels: int) -> int:
    """Of what `reduce_frames` returns."""
    return -(-features // 4) * channels if channels else stack * features


def plane_weights(channels: int, dtype: Any) -> list[layers.Weights]:
    """Of two convolutions, for `reduce_frames`; none without channels."""
    inputs = (1, channels) if channels else ()
    return [layers.Weights({"kernel": (3, 3, below, channels), "bias": (channels,)}, dtype) for below in inputs]


def reduce_frames(
    frames: Array, lengths: Array, normalize: bool, convolutions: Sequence[Weights], stack: int, dtype: Any
) -> tuple[Array, Array]:
    """Several frames become one, by convolutions or else by stacking: [B, T, F], [B] -> [B, ceil(T / n), E], [B]."""
    frames = normalize_example(frames, lengths) if normalize else frames
    if not convolutions:
        return stack_frames(frames, lengths, stack)
    planes = frames[..., None].astype(dtype)  # [B, T, F, 1]
    for weights in convolutions:
        planes, lengths = halve_plane(weights, planes, lengths)
        planes = jax.nn.relu(planes)  # [B, ceil(T/2), ceil(F/2), C], then a quarter
    return planes.reshape(*planes.shape[:2], -1), lengths
