"""BERT (Devlin et al. 2019): an encoder of any family that learns to predict masked words and the next text.

Letters: B batch, S positions, K masked positions, V vocabulary, W width of a word.
"""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers, models
from s2sjax.layers.parameters import param
from s2sjax.models.encoder_decoder import self_attention_of
from s2sjax.models.families.transformer_parts import ACTIVATIONS
from s2sjax.models.frontends import SegmentedTokens, token_embedding


class Guesses(NamedTuple):
    """Predictions of masked words and of the next text."""

    words: Array  # [B, K, V] float32 logits of the words at the masked positions
    follows: Array  # [B, 2] float32 logits: the second text is random, or follows the first


class Bert(nn.Module):
    """Computes words = E norm(f(W h_k + b)) + c, with E the word embedding, and follows = V tanh(U h_0 + d) + e.

    Reads ids [B, S], "[CLS] first text <eos> second text <eos>", and the length of the first part [B].
    """

    family: config.Family
    size: int
    """size of the vocabulary"""
    initial: float = 1.0
    """initial standard deviation of the embedding"""
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"
    activation: str = "gelu_tanh"
    """f: see `models.families.transformer_parts.ACTIVATIONS`"""
    epsilon: float = 1e-6
    """number that the norm adds to the variance"""

    def setup(self):
        # `encoder/` and `embedding/` are top-level, as in other tasks: see training/checkpoints/transfer.py.
        width, states = self.family.embedding_size, self.family.encoder_spec.states
        self.embedding = token_embedding(
            self.size, width, self.dtype, initial=self.initial, scaled=self.family.scale_embedding
        )
        self.frontend = SegmentedTokens(self.embedding)
        self.encoder = models.build_encoder(self.family, self.frontend.width, self.dtype, self.remat_policy)
        self.transform = layers.Dense(states, width, self.dtype)
        self.norm = layers.LayerNorm(width, self.dtype, self.epsilon)
        self.word_bias = param(self, "word_bias", nn.initializers.zeros, (self.size,))
        self.pooler = layers.Dense(states, states, self.dtype)
        self.follows = layers.Dense(states, 2, self.dtype)

    def encode(self, ids: Array, first: Array, train: bool = False) -> Array:
        """The states of the encoder [B, S, H]."""
        return self.encoder(*self.frontend(ids, first), train).states

    def self_attention_heads(self, ids: Array, first: Array) -> dict[int, Array]:
        """The weights of self-attention of each layer: [B, N, S, S]."""
        return self_attention_of(self.encoder, *self.frontend(ids, first))

    def __call__(self, ids: Array, first: Array, positions: Array, train: bool = False) -> Guesses:
        states = self.encode(ids, first, train)
        chosen = jnp.take_along_axis(states, positions[..., None], axis=1)  # [B, K, H]
        vectors = self.norm(ACTIVATIONS[self.activation](self.transform(chosen)))  # [B, K, W]
        words = self.embedding.logits(vectors) + self.word_bias
        return Guesses(words, self.follows.logits(jnp.tanh(self.pooler(states[:, 0]))))
