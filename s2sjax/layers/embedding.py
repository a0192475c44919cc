"""Embeddings of tokens, and of words by their characters."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.core.backend.batch_sharding import constrain_batch_sharding, gather_whole
from s2sjax.core.backend.matmul import product_with_table
from s2sjax.core.nn import character_cnn
from s2sjax.layers.linear import Dense, add_bias
from s2sjax.layers.parameters import param
from s2sjax.layers.recurrent import Weights


class Embedding(nn.Module):
    """Looks up a row of weights per id: [...] -> [..., width]. `logits` is the transpose, for a tied output layer."""

    size: int
    width: int
    dtype: jnp.dtype = jnp.float32
    scale: float = 1.0
    """multiplier of the rows when they are read; they are initialized with standard deviation width^-1/2"""
    initial: float = 1.0
    """multiplier of the initial standard deviation"""

    def setup(self):
        drawn = nn.initializers.normal(self.initial * self.width**-0.5)
        self.table = param(self, "table", drawn, (self.size, self.width))

    def __call__(self, ids: Array) -> Array:
        # Cast after reading, so that the many gradients of a frequent word are summed in float32.
        read = constrain_batch_sharding(gather_whole(self.table)[ids].astype(self.dtype))
        return read * jnp.asarray(self.scale, self.dtype)

    def logits(self, x: Array) -> Array:
        return product_with_table(x, gather_whole(self.table.astype(self.dtype)))

    def rows(self, ids: Array) -> tuple[Array, None]:
        """The weights [..., width] of the output layer for these words; it has no biases."""
        return self.table[ids].astype(self.dtype), None


class TiedOutput(nn.Module):
    """The output layer of a tied embedding, with a bias of the logits: [..., width] -> [..., size]."""

    embedding: Embedding

    def setup(self):
        self.bias = param(self, "bias", nn.initializers.zeros, (self.embedding.size,))

    def logits(self, x: Array) -> Array:
        return add_bias(self.embedding.logits(x), self.bias)

    def rows(self, ids: Array) -> tuple[Array, Array]:
        """The weights [..., width] and biases [...] of the output layer for these words."""
        return self.embedding.rows(ids)[0], self.bias[ids]


@dataclass(frozen=True, eq=False)
class Spelling:
    """The characters of each word of a vocabulary, and the settings of the network that reads them."""

    table: np.ndarray  # int32 [V, C], 0 after a word's last character
    options: config.Spelling


class CharacterNetwork(nn.Module):
    """Computes word vectors from character ids, padded with 0: [..., C] -> [..., width] (core/nn/character_cnn.py)."""

    options: config.Spelling
    alphabet: int
    width: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        o = self.options
        features = o.filters * sum(o.kernels)
        self.characters = Embedding(self.alphabet, o.width, self.dtype, o.width**0.5)
        self.kernels = [
            Weights({"kernel": (m, o.width, m * o.filters), "bias": (m * o.filters,)}, self.dtype) for m in o.kernels
        ]
        self.transforms = [Dense(features, features, self.dtype) for _ in range(o.highways)]
        self.gates = [Dense(features, features, self.dtype) for _ in range(o.highways)]
        self.project = Dense(features, self.width, self.dtype)

    def __call__(self, spelt: Array) -> Array:
        convolutions = [(weights["kernel"], weights["bias"]) for weights in (kernel() for kernel in self.kernels)]
        y = character_cnn.features(convolutions, self.characters(spelt), spelt > 0)
        for transform, gate in zip(self.transforms, self.gates):
            y = character_cnn.highway(transform(y), gate(y), y)
        return self.project(y)


class OneHot(nn.Module):
    """Represents token i by the unit vector e_i: [...] -> [..., V]."""

    size: int
    dtype: jnp.dtype = jnp.float32

    @property
    def width(self) -> int:
        return self.size

    def __call__(self, ids: Array) -> Array:
        return jax.nn.one_hot(ids, self.size, dtype=self.dtype)
