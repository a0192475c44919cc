"""The Transformer (Vaswani et al. 2017), post-LN as published or pre-LN.

Letters: B batch, S source positions, T target positions, W model width, N heads, D width of a head, L cache length.
"""

from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core import attention, positions
from s2sjax.models.contract import Memory, output_layer


class Attention(nn.Module):
    """Multi-head attention: softmax a head, concatenated, projected by W_O."""

    config: config.Transformer
    dtype: jnp.dtype

    def setup(self):
        width = self.config.width
        self.query = layers.Dense(width, width, self.dtype)
        self.key_value = layers.Dense(width, 2 * width, self.dtype)
        self.output = layers.Dense(width, width, self.dtype)

    def _heads(self, x: Array) -> Array:
        return x.reshape(*x.shape[:-1], self.config.heads, -1)  # [..., N, D]

    def read(self, memory: Array) -> tuple[Array, Array]:
        """Keys and values of [..., W]: two of [..., N, D]."""
        keys, values = jnp.split(self.key_value(memory), 2, axis=-1)
        return self._heads(keys), self._heads(values)

    def __call__(self, x: Array, keys: Array, values: Array, lengths: Array, causal: bool = False) -> Array:
        """All positions: x [B, T, W], keys and values [B, S, N, D], lengths [B] of them real."""
        attended = attention.fused_multi_head(self._heads(self.query(x)), keys, values, lengths, causal)
        return self.output(attended.reshape(x.shape))

    def one(self, x: Array, keys: Array, values: Array, mask: Array) -> tuple[Array, Array]:
        """One position: x [B, W], keys and values [B, N, S, D], mask [B, S] -> [B, W], mean weights [B, S]."""
        attended, alpha = attention.attend_heads(self._heads(self.query(x)), keys, values, mask)
        return self.output(attended.reshape(x.shape)), alpha.mean(1)


class FeedForward(nn.Module):
    """W_2 relu(W_1 x)."""

    config: config.Transformer
    dtype: jnp.dtype

    def setup(self):
        self.inner = layers.Dense(self.config.width, self.config.feedforward, self.dtype)
        self.outer = layers.Dense(self.config.feedforward, self.config.width, self.dtype)

    def __call__(self, x: Array, train: bool) -> Array:
        return self.outer(layers.dropout(self, jax.nn.relu(self.inner(x)), self.config.dropout, train))


class Residual(nn.Module):
    """What surrounds each part of a block: post-LN norm(x + part(x)), pre-LN x + part(norm(x))."""

    config: config.Transformer
    dtype: jnp.dtype

    def setup(self):
        self.norm = layers.LayerNorm(self.config.width, self.dtype)

    def before(self, x: Array) -> Array:
        return self.norm(x) if self.config.norm == "pre" else x

    def after(self, x: Array, y: Array, train: bool) -> Array:
        x = x + layers.dropout(self, y, self.config.dropout, train)
        return x if self.config.norm == "pre" else self.norm(x)


class Positioned(nn.Module):
    """Embeddings plus positions, dropped out; and the last norm of a pre-LN stack."""

    config: config.Transformer
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        if c.positions == "learned":
            self.table = self.param("table", nn.initializers.normal(0.02), (c.max_length, c.width))
        if c.norm == "pre":
            self.norm = layers.LayerNorm(c.width, self.dtype)

    def __call__(self, embedded: Array, position: Array, train: bool = False) -> Array:
        if self.config.positions == "learned":
            offset = self.table[position]
        else:
            offset = positions.sinusoidal(position, self.config.width)
        return layers.dropout(self, embedded + offset.astype(self.dtype), self.config.dropout, train)

    def last(self, x: Array) -> Array:
        return self.norm(x) if self.config.norm == "pre" else x


# ------------------------------------------------------------------------------------ encoder


class EncoderBlock(nn.Module):
    config: config.Transformer
    dtype: jnp.dtype

    def setup(self):
        self.attention = Attention(self.config, self.dtype)
        self.feedforward = FeedForward(self.config, self.dtype)
        self.around_attention = Residual(self.config, self.dtype)
        self.around_feedforward = Residual(self.config, self.dtype)

    def __call__(self, x: Array, lengths: Array, train: bool) -> Array:
        h = self.around_attention.before(x)
        x = self.around_attention.after(x, self.attention(h, *self.attention.read(h), lengths), train)
        h = self.around_feedforward.before(x)
        return self.around_feedforward.after(x, self.feedforward(h, train), train)


class TransformerEncoder(nn.Module):
    config: config.Transformer
    embedding: layers.Embedding
    dtype: jnp.dtype

    def setup(self):
        self.positioned = Positioned(self.config, self.dtype)
        block = EncoderBlock(self.config, self.dtype, parent=None)
        self.blocks = layers.Stacked(block, self.config.encoder_layers, (self.config.width,), self.dtype)

    def __call__(self, source: Array, mask: Array, train: bool) -> Memory:
        x = self.positioned(self.embedding(source), jnp.arange(source.shape[1]), train)
        x = self.blocks(x, mask.sum(1), train=train)
        return Memory(self.positioned.last(x), mask, ())


# ------------------------------------------------------------------------------------ decoder


class Read(NamedTuple):
    """A memory made ready for the decoder."""

    states: Array  # [B, S, W], for all positions at once
    mask: Array  # [B, S]
    layers: tuple[tuple[Array, Array], ...]  # for one position: keys and values [B, N, S, D] of each layer


class State(NamedTuple):
    position: Array  # [B] how many tokens are written
    layers: tuple[tuple[Array, Array], ...]  # the cache: keys and values [B, N, L, D] of the tokens so far


class DecoderBlock(nn.Module):
    config: config.Transformer
    dtype: jnp.dtype

    def setup(self):
        self.attention = Attention(self.config, self.dtype)
        self.cross = Attention(self.config, self.dtype)
        self.feedforward = FeedForward(self.config, self.dtype)
        self.around_attention = Residual(self.config, self.dtype)
        self.around_cross = Residual(self.config, self.dtype)
        self.around_feedforward = Residual(self.config, self.dtype)

    def __call__(self, x: Array, states: Array, source_lengths: Array, train: bool) -> Array:
        """All positions, x [B, T, W]. What follows a padded target position is padding too, so causality suffices."""
        everything = jnp.full(x.shape[:1], x.shape[1])
        h = self.around_attention.before(x)
        x = self.around_attention.after(x, self.attention(h, *self.attention.read(h), everything, causal=True), train)
        h = self.around_cross.before(x)
        x = self.around_cross.after(x, self.cross(h, *self.cross.read(states), source_lengths), train)
        h = self.around_feedforward.before(x)
        return self.around_feedforward.after(x, self.feedforward(h, train), train)

    def read(self, states: Array) -> tuple[Array, Array]:
        """For one position at a time: keys and values [B, N, S, D]."""
        keys, values = self.cross.read(states)
        return keys.swapaxes(1, 2), values.swapaxes(1, 2)

    def one(self, x: Array, read: tuple[Array, Array], mask: Array, cache: tuple[Array, Array], position: Array):
        """One position, x [B, W]: the same with a cache -> x, cache, alpha over the source [B, S]."""
        h = self.around_attention.before(x)
        write = jax.vmap(lambda past, now, at: past.at[:, at].set(now))
        keys, values = (write(past, now, position) for past, now in zip(cache, self.attention.read(h)))
        so_far = jnp.arange(keys.shape[2]) <= position[:, None]  # [B, L]
        x = self.around_attention.after(x, self.attention.one(h, keys, values, so_far)[0], False)
        attended, alpha = self.cross.one(self.around_cross.before(x), *read, mask)
        x = self.around_cross.after(x, attended, False)
        h = self.around_feedforward.before(x)
        return self.around_feedforward.after(x, self.feedforward(h, False), False), (keys, values), alpha


class TransformerDecoder(nn.Module):
    config: config.Transformer
    embedding: layers.Embedding
    dtype: jnp.dtype
    parallel: ClassVar = True

    def setup(self):
        c = self.config
        self.positioned = Positioned(c, self.dtype)
        block = DecoderBlock(c, self.dtype, parent=None)
        self.blocks = layers.Stacked(block, c.decoder_layers, (c.width, c.width), self.dtype)
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def prepare(self, memory: Memory) -> Read:
        layers = tuple(block(memory.states, method="read") for block in self.blocks.each())
        return Read(memory.states, memory.mask, layers)

    def start(self, memory: Read, steps: int) -> State:
        rows = memory.mask.shape[0]
        shape = (rows, self.config.heads, steps, self.config.width // self.config.heads)
        empty = jnp.zeros(shape, self.dtype)
        return State(jnp.zeros(rows, jnp.int32), ((empty, empty),) * self.config.decoder_layers)

    def step(self, memory: Read, state: State, token: Array):
        x = self.positioned(self.embedding(token), state.position)
        caches, alphas = [], []
        for block, read, cache in zip(self.blocks.each(), memory.layers, state.layers):
            x, cache, alpha = block(x, read, memory.mask, cache, state.position, method="one")
            caches.append(cache)
            alphas.append(alpha)
        logits = self.output.logits(self.positioned.last(x))
        return State(state.position + 1, tuple(caches)), logits, sum(alphas) / len(alphas)

    def hidden(self, memory: Read, inputs: Array, mask: Array, train: bool) -> Array:
        x = self.positioned(self.embedding(inputs), jnp.arange(inputs.shape[1]), train)
        x = self.blocks(x, memory.states, memory.mask.sum(1), train=train)
        return self.positioned.last(x)
