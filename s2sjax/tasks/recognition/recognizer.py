"""CTC recognition: an encoder of any family, and a dense layer that scores every symbol at every frame."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core.nn.convolution import Weights, halve_plane
from s2sjax.core.signals.mel_features import normalize_example, stack_frames
from s2sjax.models.frame_encoder import FrameEncoder


class Recognizer(nn.Module):
    """Computes logits = W h + b from the states h of an encoder. Symbol 0 is the blank.

    The encoder reads every `stack` frames as one. With `channels`, it reads the output of two convolutions over time
    and features instead, each with stride 2 (after Amodei et al. 2016): four frames become one, and a slightly higher
    voice has nearly the same features.
    """

    family: config.Family
    features: int
    """number of features of a frame"""
    symbols: int
    """number of labels, plus 1 for the blank"""
    stack: int = 1
    channels: int = 0
    normalize: bool = False
    """whether to scale the features of each example to mean 0 and standard deviation 1"""
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        inputs = reduced_width(self.features, self.stack, self.channels)
        self.convolutions = plane_weights(self.channels, self.dtype)
        self.encode = FrameEncoder(self.family, inputs, self.dtype, self.remat_policy)
        self.output = layers.Dense(self.family.encoder_spec.states, self.symbols, self.dtype)

    def __call__(self, frames: Array, lengths: Array, train: bool = False) -> tuple[Array, Array]:
        """Maps frames [B, T, F], lengths [B] to float32 logits [B, ceil(T / n), V] and their lengths [B].

        n is `stack`, or 4 with `channels`.
        """
        convolutions = [weights() for weights in self.convolutions]
        frames, lengths = reduce_frames(frames, lengths, self.normalize, convolutions, self.stack, self.dtype)
        states = self.encode(frames, lengths, train).states
        return self.output.logits(layers.dropout(self, states, self.dropout, train)), lengths


def reduced_width(features: int, stack: int, channels: int) -> int:
    """The width of the frames that `reduce_frames` returns."""
    return -(-features // 4) * channels if channels else stack * features


def plane_weights(channels: int, dtype: Any) -> list[layers.Weights]:
    """The weights of two convolutions for `reduce_frames`; none without channels."""
    inputs = (1, channels) if channels else ()
    return [layers.Weights({"kernel": (3, 3, below, channels), "bias": (channels,)}, dtype) for below in inputs]


def reduce_frames(
    frames: Array, lengths: Array, normalize: bool, convolutions: Sequence[Weights], stack: int, dtype: Any
) -> tuple[Array, Array]:
    """Merges n frames into one, by convolutions or by stacking: [B, T, F], [B] -> [B, ceil(T / n), E], [B]."""
    frames = normalize_example(frames, lengths) if normalize else frames
    if not convolutions:
        return stack_frames(frames, lengths, stack)
    planes = frames[..., None].astype(dtype)  # [B, T, F, 1]
    for weights in convolutions:
        planes, lengths = halve_plane(weights, planes, lengths)
        planes = jax.nn.relu(planes)  # [B, ceil(T/2), ceil(F/2), C], then a quarter
    return planes.reshape(*planes.shape[:2], -1), lengths
