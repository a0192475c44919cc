"""A tagger: words and their characters through the encoder of any family, then a dense layer for each position.

Letters: B batch, S words, C characters of a word, K tags, I intents.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers, models
from s2sjax.core import crf, losses
from s2sjax.models.contract import masked_mean
from s2sjax.models.frontends import SpelledWords
from s2sjax.parameters import param


class Scores(NamedTuple):
    tags: Array  # [B, S, K] float32
    intents: Array | None  # [B, I] float32
    mask: Array  # [B, S] where there is a word
    transitions: crf.Weights | None = None


class Tagger(nn.Module):
    """scores_t = W h_t + b, h the states of the encoder; of the sentence, U mean_t(h_t) + c."""

    family: config.Family
    frontend: SpelledWords
    tags: int
    intents: int = 0
    """0: the sentence has no label"""
    dropout: float = 0.0
    """of the states that the dense layers read"""
    use_crf: bool = False
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        width = self.family.encoder_spec.states
        self.encoder = models.build_encoder(self.family, self.frontend.width, self.dtype, self.remat_policy)
        self.output = layers.Dense(width, self.tags, self.dtype)
        self.intent = layers.Dense(width, self.intents, self.dtype) if self.intents else None
        shapes = {"transition": (self.tags, self.tags), "start": (self.tags,), "end": (self.tags,)}
        self.transitions = None
        if self.use_crf:
            zeros = nn.initializers.zeros
            self.transitions = {name: param(self, f"crf_{name}", zeros, shape) for name, shape in shapes.items()}

    def __call__(self, words: Array, characters: Array, train: bool = False) -> Scores:
        """words [B, S], <pad> at the end of each row, characters [B, S, C]."""
        memory = self.encoder(*self.frontend(words, characters, train), train)
        states = layers.dropout(self, memory.states, self.dropout, train)
        intents = None if self.intent is None else self.intent.logits(masked_mean(states, memory.mask))
        return Scores(self.output.logits(states), intents, memory.mask, self.transitions)


def tag_loss(scores: Scores, tags: Array, smoothing: float = 0.0) -> losses.Total:
    """-log p(tags) of all sentences, and the number of words. tags [B, S], anything in padding."""
    if scores.transitions is None:
        return losses.cross_entropy(scores.tags, tags, scores.mask, smoothing)
    log_p = jax.vmap(crf.log_likelihood, in_axes=(None, 0, 0, 0))(scores.transitions, scores.tags, tags, scores.mask)
    return -jnp.sum(log_p), jnp.sum(scores.mask).astype(log_p.dtype)


def best_tags(scores: Scores) -> Array:
    """The most probable tags [B, S]: of each word by itself, or of the sentence as a whole."""
    if scores.transitions is None:
        return jnp.argmax(scores.tags, axis=-1)
    return jax.vmap(crf.viterbi, in_axes=(None, 0, 0))(scores.transitions, scores.tags, scores.mask)[0]
