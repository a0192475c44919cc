"""A tagger: an encoder of any family over words and characters, or over subwords, and a dense layer for each word.

Letters: B batch, S words or subwords, C characters of a word, K tags, I intents.
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
from s2sjax.models.encoder_decoder import masked_mean, self_attention_of
from s2sjax.models.frontends import SpelledWords, Tokens, token_embedding, word_dropout


class Scores(NamedTuple):
    """Scores of tags and intents."""

    tags: Array  # [B, S, K] float32
    intents: Array | None  # [B, I] float32
    mask: Array  # [B, S] mask of the words that are not padding
    transitions: crf.Weights | None = None


class Tagger(nn.Module):
    """Computes tag scores W h_t + b from the encoder states h_t, and intent scores U mean_t(h_t) + c.

    Reads words [B, S] and their characters [B, S, C]; or subwords [B, S] and the number of the first subword of each
    word [B, S], from 1, whose states are then those of the words.
    """

    family: config.Family
    frontend: SpelledWords | None
    """reader of words and characters; None for subwords"""
    tags: int
    intents: int = 0
    """number of intents of a sentence; 0 for none"""
    dropout: float = 0.0
    """dropout rate of the states that the dense layers read"""
    use_crf: bool = False
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"
    size: int = 0
    """size of the vocabulary of subwords"""
    initial: float = 1.0
    """initial standard deviation of the embedding of subwords"""
    word_dropout: float = 0.0
    """fraction of the subwords that training replaces by <unk>"""

    def setup(self):
        width, family = self.family.encoder_spec.states, self.family
        reader: SpelledWords | Tokens | None = self.frontend
        if reader is None:  # `embedding/` is top-level, as in other tasks: see training/checkpoints/transfer.py
            size = family.embedding_size
            self.embedding = token_embedding(self.size, size, self.dtype, None, self.initial, family.scale_embedding)
            self.tokens = reader = Tokens(self.embedding)
        self.encoder = models.build_encoder(family, reader.width, self.dtype, self.remat_policy)
        self.output = layers.Dense(width, self.tags, self.dtype)
        self.intent = layers.Dense(width, self.intents, self.dtype) if self.intents else None
        shapes = {"transition": (self.tags, self.tags), "start": (self.tags,), "end": (self.tags,)}
        self.transitions = None
        if self.use_crf:
            zeros = nn.initializers.zeros
            self.transitions = {name: param(self, f"crf_{name}", zeros, shape) for name, shape in shapes.items()}

    def __call__(self, words: Array, more: Array, train: bool = False) -> Scores:
        """Scores words [B, S], with <pad> at the end of each row, and `more`, their characters or first subwords."""
        if self.frontend is None:
            words = word_dropout(self, words, self.word_dropout, train)
            memory = self.encoder(*self.tokens(words), train)
            mask, first = more > 0, jnp.maximum(more - 1, 0)
            states = jnp.take_along_axis(memory.states, first[..., None], axis=1)
        else:
            memory = self.encoder(*self.frontend(words, more, train), train)
            states, mask = memory.states, memory.mask
        states = layers.dropout(self, states, self.dropout, train)
        intents = None if self.intent is None else self.intent.logits(masked_mean(states, mask))
        return Scores(self.output.logits(states), intents, mask, self.transitions)

    def self_attention_heads(self, words: Array, more: Array) -> dict[int, Array]:
        """The weights of self-attention of each layer: [B, N, S, S]."""
        read = self.tokens(words) if self.frontend is None else self.frontend(words, more, False)
        return self_attention_of(self.encoder, *read)


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
