"""A layer of core/mixers: it declares the weights that the table names.

Letters: B batch, T time, W width.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax.core import mixers
from s2sjax.layers.parameters import param


class Mixer(nn.Module):
    """A recurrence of `MIXERS` with its projections, over sequences or one position at a time."""

    kind: str
    """name in core/mixers/layers.py"""
    sizes: mixers.Sizes
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        self.mixer = mixers.MIXERS[self.kind]
        declared = self.mixer.weights(self.sizes)
        found = {name: param(self, name, weight.initial, weight.shape) for name, weight in declared.items()}
        # Rates and biases stay float32: a decay near 1 has no exact bfloat16.
        self.weights: Any = {
            name: value.astype(self.dtype) if value.ndim > 1 else value for name, value in found.items()
        }

    def __call__(
        self, xs: Array, mask: Array | None = None, segments: Array | None = None, state: Any = None,
        reverse: bool = False,
    ) -> tuple[Array, mixers.State]:  # fmt: skip
        """Applies the layer to xs [B, T, W]; returns ys [B, T, W] and the last state. See `core.mixers.apply`."""
        options: Any = {"segments": segments, "state": state, "reverse": reverse}
        return mixers.apply(self.mixer, self.sizes, self.weights, xs, mask, **options)

    def start(self, rows: int) -> mixers.State:
        """The state before the first position."""
        return mixers.start(self.mixer, self.sizes, self.weights, rows, self.dtype)

    def step(self, x: Array, state: mixers.State) -> tuple[Array, mixers.State]:
        """Applies the layer to one position: x [B, W] -> y [B, W], state."""
        return mixers.step(self.mixer, self.sizes, self.weights, state, x)
