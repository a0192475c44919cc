"""A front end and the encoder of any family: what tasks without a decoder read with.

    TextEncoder(family, size)(ids, train)                  -> Memory     ids [B, S], <pad> at the end of each row
    FrameEncoder(family, features)(frames, lengths, train) -> Memory     frames [B, S, F], the first lengths [B] real

A family is a model configuration, such as `config.Transformer(width=128, encoder_layers=2)`; only its encoder counts.
Its states are `family.encoder_spec.states` wide. Parameters of the encoder are below `encoder/`, so that they can come
from any other run with the same encoder, and `models.encoder_rules` splits them.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers, models
from s2sjax.models.contract import Memory
from s2sjax.models.frontends import Frames, Tokens, token_embedding


class TextEncoder(nn.Module):
    """Tokens, embedded and encoded."""

    family: config.Family
    size: int
    """of the vocabulary"""
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"
    spelling: layers.Spelling | None = None

    def setup(self):
        self.embedding = token_embedding(self.size, self.family.embedding, self.dtype, self.spelling)
        self.frontend = Tokens(self.embedding)
        self.encoder = models.build_encoder(self.family, self.frontend.width, self.dtype, self.remat_policy)

    def __call__(self, ids: Array, train: bool = False) -> Memory:
        return self.encoder(*self.frontend(ids), train)


class FrameEncoder(nn.Module):
    """Real-valued frames, projected to the family's embedding width (0: read as they are) and encoded."""

    family: config.Family
    features: int
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        self.frontend = Frames(self.features, self.family.embedding, self.dtype)
        self.encoder = models.build_encoder(self.family, self.frontend.width, self.dtype, self.remat_policy)

    def __call__(self, frames: Array, lengths: Array, train: bool = False) -> Memory:
        return self.encoder(*self.frontend(frames, lengths), train)
