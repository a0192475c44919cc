"""Front ends: modules that convert a column of the data to the vectors that an encoder reads.

    frontend(column, ...) -> xs [B, S, E], mask [B, S]        E is `frontend.width`; the mask is False at padding

Encoders read only `xs` and `mask`, so every encoder works with every front end. A new kind of input (pictures, several
columns) requires only a new class here.

Letters: B batch, S source positions, E width of the vectors, F features of a frame, C characters of a word.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core.nn.dropout import keep_mask
from s2sjax.core.special_tokens import PAD, SPECIALS, UNK
from s2sjax.layers.parameters import param


class Tokens(nn.Module):
    """Embeds ids [B, S] with <pad> at the end of each row."""

    embedding: nn.Module
    """`layers.Embedding`, `SpelledEmbedding` or `layers.OneHot`"""

    @property
    def width(self) -> int:
        return self.embedding.width  # type: ignore[attr-defined]

    def __call__(self, ids: Array) -> tuple[Array, Array]:
        return self.embedding(ids), ids != PAD  # type: ignore[operator]


class SegmentedTokens(Tokens):
    """Embeds two texts in one row of ids [B, S], the first of length `first` [B], and adds a vector to the second.

    A second vector, for the first text (Devlin et al. 2019), is redundant: every embedding can contain it. Without it,
    a single text is represented exactly as the first of two.
    """

    def setup(self):
        self.second = param(self, "second", nn.initializers.normal(0.02), (self.width,))

    def __call__(self, ids: Array, first: Array) -> tuple[Array, Array]:  # type: ignore[override]
        xs, mask = super().__call__(ids)
        is_second = (jnp.arange(ids.shape[1]) >= first[:, None])[..., None]  # [B, S, 1]
        return xs + jnp.where(is_second, self.second.astype(xs.dtype), 0), mask


class Frames(nn.Module):
    """Projects real-valued frames [B, S, F] of given lengths [B]: x W + b, or x itself. Padding becomes zeros."""

    features: int
    outputs: int = 0
    """width of the vectors; 0 for the frames without projection"""
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        self.project = layers.Dense(self.features, self.outputs, self.dtype) if self.outputs else None

    @property
    def width(self) -> int:
        return self.outputs or self.features

    def __call__(self, frames: Array, lengths: Array) -> tuple[Array, Array]:
        mask = jnp.arange(frames.shape[1])[None] < lengths[:, None]
        frames = frames.astype(self.dtype)
        xs = frames if self.project is None else self.project(frames)
        return jnp.where(mask[..., None], xs, 0), mask


class SpelledEmbedding(nn.Module):
    """Embeds each id by the characters of its word: [...] -> [..., width]."""

    words: layers.Spelling
    width: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        alphabet, options = int(self.words.table.max()) + 1, self.words.options
        self.network = layers.CharacterNetwork(options, alphabet, self.width, self.dtype)
        nn.share_scope(self, self.network)  # its parameters are this module's own

    @property
    def size(self) -> int:
        return len(self.words.table)

    def __call__(self, ids: Array) -> Array:
        return self.network(jnp.asarray(self.words.table)[ids])  # [..., C] -> [..., width]


class SpelledWords(nn.Module):
    """Embeds words [B, S], with <pad> at the end of each row, and their characters [B, S, C]: [word; characters].

    So unknown words are represented by their characters. With `options`, the last `spelt` features of the `width` are
    computed from characters; without, there are only word embeddings. Training replaces each word by <unk> with
    probability `word_dropout`, so that the model learns to use the characters.
    """

    size: int
    """size of the vocabulary"""
    alphabet: int
    """number of character ids"""
    width: int
    spelt: int
    options: config.Spelling | None
    word_dropout: float = 0.0
    initial: float = 1.0
    """initial standard deviation of the word embedding"""
    dtype: jnp.dtype = jnp.float32
    scaled: bool = True
    """whether the word embedding is multiplied by the square root of its width"""

    def setup(self):
        of_words = self.width - self.spelt if self.options else self.width
        self.words = token_embedding(self.size, of_words, self.dtype, initial=self.initial, scaled=self.scaled)
        if self.options:
            self.characters = layers.CharacterNetwork(self.options, self.alphabet, self.spelt, self.dtype)

    def __call__(self, words: Array, characters: Array, train: bool = False) -> tuple[Array, Array]:
        mask = words != PAD
        xs = self.words(word_dropout(self, words, self.word_dropout, train))
        if self.options:
            xs = jnp.concatenate([xs, self.characters(characters)], axis=-1)  # [B, S, width]
        return xs, mask


def word_dropout(module: nn.Module, ids: Array, rate: float, train: bool) -> Array:
    """Replaces a random fraction of the ids [...] by <unk> in training, except special ids (Iyyer et al. 2015)."""
    if not train or rate == 0:
        return ids
    keep = keep_mask(module.make_rng("dropout"), ids.shape, rate)
    return jnp.where(keep | (ids < len(SPECIALS)), ids, UNK)


def token_embedding(
    size: int, width: int, dtype: Any, spelling: layers.Spelling | None = None, initial: float = 1.0,
    scaled: bool = True,
) -> nn.Module:  # fmt: skip
    """Builds an embedding: a table, a character network if there is a spelling, or one-hot vectors for width 0.

    `initial` is the initial standard deviation of the vectors read from a table, if they are `scaled`.
    """
    if spelling is not None:
        return SpelledEmbedding(spelling, width, dtype)
    if width == 0:
        return layers.OneHot(size, dtype)
    # A Transformer multiplies tied embeddings by sqrt(width) (Vaswani et al. 2017, section 3.4).
    return layers.Embedding(size, width, dtype, scale=width**0.5 if scaled else 1.0, initial=initial)
