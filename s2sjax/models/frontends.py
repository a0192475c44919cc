"""Front ends: what turns a column of the data into the vectors that an encoder reads.

    frontend(column, ...) -> xs [B, S, E], mask [B, S]        E is `frontend.width`; the mask is True where xs is real

An encoder knows only `xs` and `mask`, so every encoder serves every front end. A new kind of input (pictures, several
columns) is a new class here, and no encoder changes.

Letters: B batch, S source positions, E width of the vectors, F features of a frame.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import layers
from s2sjax.core.tokens import PAD


class Tokens(nn.Module):
    """Ids [B, S] with <pad> at the end of each row: their embeddings."""

    embedding: nn.Module
    """`layers.Embedding`, `layers.SpelledEmbedding` or `layers.OneHot`"""

    @property
    def width(self) -> int:
        return self.embedding.width  # type: ignore[attr-defined]

    def __call__(self, ids: Array) -> tuple[Array, Array]:
        return self.embedding(ids), ids != PAD  # type: ignore[operator]


class Frames(nn.Module):
    """Real-valued frames [B, S, F], the first lengths [B] of each row real: x W + b, or x itself.

    Padding becomes zeros, whatever it was.
    """

    features: int
    outputs: int = 0
    """width of the vectors; 0 passes the frames on unchanged"""
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        self.project = layers.Dense(self.features, self.outputs, self.dtype) if self.outputs else None

    @property
    def width(self) -> int:
        return self.outputs or self.features

    def __call__(self, frames: Array, lengths: Array) -> tuple[Array, Array]:
        mask = jnp.arange(frames.shape[1]) < lengths[:, None]
        frames = frames.astype(self.dtype)
        xs = frames if self.project is None else self.project(frames)
        return jnp.where(mask[..., None], xs, 0), mask


def token_embedding(size: int, width: int, dtype: Any, spelling: layers.Spelling | None = None) -> nn.Module:
    """What `Tokens` reads ids with: a table, the characters of the words if there is a spelling, or one-hot for 0."""
    if spelling is not None:
        return layers.SpelledEmbedding(spelling, width, dtype)
    if width == 0:
        return layers.OneHot(size, dtype)
    # A Transformer's tied embeddings are read times sqrt(width) (Vaswani et al. 2017, section 3.4).
    return layers.Embedding(size, width, dtype, scale=width**0.5)
