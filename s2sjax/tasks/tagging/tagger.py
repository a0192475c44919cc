"""A tagger: an encoder of any family over words and characters, and a dense layer at each position.

Letters: B batch, S words, C characters of a word, K tags, I intents.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers, models
from s2sjax.core import losses
from s2sjax.core.chains import crf
from s2sjax.layers.parameters import param
from s2sjax.models.encoder_decoder import masked_mean
from s2sjax.models.frontends import SpelledWords


class Scores(NamedTuple):
    """Scores of tags and intents."""

    tags: Array  # [B, S, K] float32
    intents: Array | None  # [B, I] float32
    mask: Array  # [B, S] mask of the words that are not padding
    transitions: crf.Weights | None = None


class Tagger(nn.Module):
    """Computes tag scores W h_t + b from the encoder states h_t, and intent scores U mean_t(h_t) + c."""

    family: config.Family
    frontend: SpelledWords
    tags: int
    intents: int = 0
    """number of intents of a sentence; 0 for none"""
    dropout: float = 0.0
    """dropout rate of the states that the dense layers read"""
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
        """Scores words [B, S], with <pad> at the end of each row, and characters [B, S, C]."""
        memory = self.encoder(*self.frontend(words, characters, train), train)
        states = layers.dropout(self, memory.states, self.dropout, train)
        intents = None if self.intent is None else self.intent.logits(masked_mean(states, memory.mask))
        return Scores(self.output.logits(states), intents, memory.mask, self.transitions)


def tag_loss(scores: Scores, tags: Array, smoothing: float = 0.0) -> losses.Total:
    """Computes the sum of -log p(tags) over sentences, and the number of words. tags [B, S], arbitrary at padding."""
    if scores.transitions is None:
        return losses.cross_entropy(scores.tags, tags, scores.mask, smoothing)
    log_p = jax.vmap(crf.log_likelihood, in_axes=(None, 0, 0, 0))(scores.transitions, scores.tags, tags, scores.mask)
    return -jnp.sum(log_p), jnp.sum(scores.mask).astype(log_p.dtype)


def best_tags(scores: Scores) -> Array:
    """The most probable tags [B, S]: of each word independently, or of the whole sentence with a CRF."""
    if scores.transitions is None:
        return jnp.argmax(scores.tags, axis=-1)
    return jax.vmap(crf.viterbi, in_axes=(None, 0, 0))(scores.transitions, scores.tags, scores.mask)[0]
