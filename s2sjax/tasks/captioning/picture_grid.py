"""A front end for pictures: a small residual convolutional network, whose feature grid is the encoder's input.

Letters: B batch, H height, W width, C channels, h and w height and width of the grid, E width of the vectors.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from s2sjax import config, layers
from s2sjax.config import at_least, require
from s2sjax.core.nn.normalization import group_norm
from s2sjax.layers.parameters import param


@config.settings
class Grid:
    """The convolutional network. Each stage halves height and width."""

    channels: tuple[int, ...] = (32, 64, 128, 256)
    """number of channels of each stage; the first stage is a single convolution"""
    blocks: int = 1
    """number of residual blocks of each later stage"""
    groups: int = 8
    """number of groups of channels that are normalised together (Wu and He 2018)"""

    def __post_init__(self):
        at_least(1, self, "model.grid", "blocks", "groups")
        require(len(self.channels) > 0, "model.grid.channels is empty: give at least one number")
        for count in self.channels:
            require(
                count >= 1 and count % self.groups == 0,
                f"model.grid.channels has {count}: it must be a multiple of model.grid.groups, {self.groups}",
            )

    def side(self, size: int) -> int:
        """The side length of the grid for pictures with a side of `size` pixels."""
        return -(-size // 2 ** len(self.channels))


class Convolution2D(nn.Module):
    """A 2D convolution with SAME padding: [B, H, W, inputs] -> [B, H/stride, W/stride, outputs]."""

    inputs: int
    outputs: int
    side: int = 3
    stride: int = 1
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        he = nn.initializers.variance_scaling(2.0, "fan_in", "normal")
        self.kernel = param(self, "kernel", he, (self.side, self.side, self.inputs, self.outputs))

    def __call__(self, x: Array) -> Array:
        strides = (self.stride, self.stride)
        return lax.conv_general_dilated(
            x, self.kernel.astype(self.dtype), strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )


class GroupNorm(nn.Module):
    """Group norm with scale and bias: [B, H, W, channels]."""

    channels: int
    groups: int

    def setup(self):
        self.scale = param(self, "scale", nn.initializers.ones, (self.channels,))
        self.bias = param(self, "bias", nn.initializers.zeros, (self.channels,))

    def __call__(self, x: Array) -> Array:
        return group_norm(x, self.scale, self.bias, self.groups)


class ResidualBlock(nn.Module):
    """Computes s + W_2 * relu(norm(W_1 * relu(norm(x)))) (He et al. 2016), with s = x, or W * relu(norm(x))."""

    inputs: int
    outputs: int
    stride: int
    groups: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        convolution = partial(Convolution2D, dtype=self.dtype)
        self.first_norm = GroupNorm(self.inputs, self.groups)
        self.first = convolution(self.inputs, self.outputs, 3, self.stride)
        self.second_norm = GroupNorm(self.outputs, self.groups)
        self.second = convolution(self.outputs, self.outputs)
        changes = self.stride > 1 or self.inputs != self.outputs
        self.shortcut = convolution(self.inputs, self.outputs, 1, self.stride) if changes else None

    def __call__(self, x: Array) -> Array:
        y = jax.nn.relu(self.first_norm(x))
        x = x if self.shortcut is None else self.shortcut(y)
        return x + self.second(jax.nn.relu(self.second_norm(self.first(y))))


class PictureGrid(nn.Module):
    """Converts pictures [B, size, size, 3], values from 0 to 255, to one vector per cell of the grid, row by row."""

    options: Grid
    size: int
    """side length of a picture in pixels"""
    width: int
    dropout: float = 0.0
    """dropout rate of the vectors"""
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        o = self.options
        stages = [
            (below if block == 0 else channels, channels, 2 if block == 0 else 1)
            for below, channels in zip(o.channels, o.channels[1:])
            for block in range(o.blocks)
        ]
        self.stem = Convolution2D(3, o.channels[0], 3, 2, self.dtype)
        self.blocks = [ResidualBlock(*shape, o.groups, self.dtype) for shape in stages]
        self.norm = GroupNorm(o.channels[-1], o.groups)
        self.project = layers.Dense(o.channels[-1], self.width, self.dtype)
        side, small = o.side(self.size), nn.initializers.normal(0.02)
        self.rows, self.columns = (param(self, name, small, (side, self.width)) for name in ("rows", "columns"))

    @nn.nowrap
    def mask(self, pictures: Array) -> Array:
        """All ones [B, h * w]: there is no padding."""
        return jnp.ones((len(pictures), self.options.side(self.size) ** 2), bool)

    def __call__(self, pictures: Array, train: bool = False) -> tuple[Array, Array]:
        x = self.stem((pictures.astype(jnp.float32) / 127.5 - 1).astype(self.dtype))
        for block in self.blocks:
            x = block(x)
        x = self.project(jax.nn.relu(self.norm(x)))  # [B, h, w, E]
        x = x + (self.rows[:, None] + self.columns[None])[None].astype(self.dtype)
        x = layers.dropout(self, x.reshape(len(x), -1, self.width), self.dropout, train)  # [B, h * w, E]
        return x, self.mask(pictures)
