"""The regression model and its loss."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import layers
from s2sjax.core.nn.pooling import attention_pool
from s2sjax.models.frontends import Frames
from s2sjax.tasks.regression.settings import SeriesModel


class Regressor(nn.Module):
    """Maps values [B, S, 1] and lengths [B] to W pooled + b [B, 1] or its tanh; `residual` adds the last value."""

    config: SeriesModel
    steps: int
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        c = self.config
        self.frontend = Frames(1, dtype=self.dtype)
        self.stack = layers.Recurrent(
            c.cell, c.width, layers=1, inputs=1, dtype=self.dtype, remat_policy=self.remat_policy
        )
        if c.attention:
            self.attention = layers.Weights({"kernel": (c.width,), "bias": (self.steps,)}, self.dtype)
        self.output = layers.Dense(c.width, 1, self.dtype)

    def __call__(self, values: Array, lengths: Array) -> Array:
        xs, mask = self.frontend(values, lengths)
        states, final = self.stack(xs, mask)
        pooled = attention_pool(self.attention(), states, mask)[0] if self.config.attention else final[-1][0]
        found = self.output(pooled).astype(jnp.float32)
        found = jnp.tanh(found) if self.config.output == "tanh" else found
        last = jnp.maximum(lengths - 1, 0)[:, None, None]
        return found + jnp.take_along_axis(values, last, axis=1)[:, 0] if self.config.residual else found


def squared_error(module: Regressor, params: Any, batch: dict[str, Array]) -> dict[str, tuple[Array, Array]]:
    """The squared error of a batch: its sum, and the number of windows."""
    predicted: Any = module.apply({"params": params}, batch["values"], batch["values_lengths"])
    real = (batch["values_lengths"] > 0).astype(jnp.float32)  # [B]
    return {"loss": (jnp.sum(real * jnp.square(predicted - batch["target"])[:, 0]), jnp.sum(real))}
