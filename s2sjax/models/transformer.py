"""The Transformer (Vaswani et al. 2017), post-LN as published or pre-LN.

Letters: B batch, S source positions, T target positions, W model width, N heads, D width of a head, L cache length.
"""

from typing import NamedTuple

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
        """One position of K prefixes: x [B, K, W], keys and values [B, N, S, D], mask [B, K, S].

        Returns [B, K, W] and the weights, of all heads in the mean [B, K, S].
        """
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
    """Of one prefix a sentence; of K side by side `rows` is [B, K, L] and a cache [B, N, K, L, D].

    The cache never moves when prefixes change places: a prefix knows in which of the K rows its past lies.
    """

    position: Array  # [B] how many tokens are written
    rows: Array  # [B, L] the row of the cache that holds each position
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

    def one(self, x: Array, read: tuple[Array, Array], mask: Array, cache: tuple[Array, Array], position, rows):
        """One position of K prefixes, x [B, K, W]: the same with a cache -> x, cache, alpha over the source [B, K, S].

        position [B]; rows [B, K, L]: the row of the cache that holds each position of a prefix.
        """
        h = self.around_attention.before(x)
        write = jax.vmap(lambda past, now, at: past.at[:, :, at].set(now))
        cache = tuple(write(past, now.swapaxes(1, 2), position) for past, now in zip(cache, self.attention.read(h)))
        x = self.around_attention.after(x, self.attention.one(h, *_pasts(cache, position, rows))[0], False)
        attended, alpha = self.cross.one(self.around_cross.before(x), *read, mask)
        x = self.around_cross.after(x, attended, False)
        h = self.around_feedforward.before(x)
        return self.around_feedforward.after(x, self.feedforward(h, False), False), cache, alpha


def _pasts(cache: tuple[Array, Array], position: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Keys, values and mask for the past of K prefixes.

    A CPU gathers the past of each: [B, N, K, L, D], mask [B, K, L]. An accelerator reads all K rows for each, which
    its matrix units do for nothing, and masks those of other prefixes: [B, N, K * L, D], mask [B, K, K * L].
    """
    place, prefix = jnp.arange(rows.shape[2]), jnp.arange(rows.shape[1])
    written = place <= position[:, None]  # [B, L]
    if jax.default_backend() == "cpu":
        keys, values = (jax.vmap(lambda past, row: past[:, row, place])(part, rows) for part in cache)
        return keys, values, jnp.broadcast_to(written[:, None], rows.shape)
    keys, values = (part.reshape(*part.shape[:2], -1, part.shape[-1]) for part in cache)
    seen = (rows[:, :, None] == prefix[:, None]) & written[:, None, None]  # [B, K, K, L]
    return keys, values, seen.reshape(*rows.shape[:2], -1)


class TransformerDecoder(nn.Module):
    config: config.Transformer
    embedding: layers.Embedding
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        self.positioned = Positioned(c, self.dtype)
        block = DecoderBlock(c, self.dtype, parent=None)
        self.blocks = layers.Stacked(block, c.decoder_layers, (c.width, c.width), self.dtype)
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def prepare(self, memory: Memory) -> Read:
        layers = tuple(self.blocks.one(block, memory.states, method="read") for block in self.blocks.unstacked())
        return Read(memory.states, memory.mask, layers)

    def start(self, memory: Read, steps: int) -> State:
        rows = memory.mask.shape[0]
        shape = (rows, self.config.heads, steps, self.config.width // self.config.heads)
        empty = jnp.zeros(shape, self.dtype)
        nothing = jnp.zeros((rows, steps), jnp.int32)
        return State(nothing[:, 0], nothing, ((empty, empty),) * self.config.decoder_layers)

    def step(self, memory: Read, state: State, token: Array):
        state, logits, alpha = self.step_beams(memory, self.unstacked(), self.spread(state, 1), token[:, None])
        caches = jax.tree.map(lambda leaf: leaf[:, :, 0], state.layers)
        return State(state.position, state.rows[:, 0], caches), logits[:, 0], alpha[:, 0]

    def spread(self, state: State, width: int) -> State:
        """K equal prefixes."""
        caches = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, :, None], width, axis=2), state.layers)
        return State(state.position, jnp.repeat(state.rows[:, None], width, axis=1), caches)

    def follow(self, state: State, origin: Array) -> State:
        """Prefix k goes on from what was prefix origin[k]: its past stays where it lies."""
        return state._replace(rows=jax.vmap(lambda rows, at: rows[at])(state.rows, origin))

    def unstacked(self) -> tuple[dict, ...]:
        return self.blocks.unstacked()

    def step_beams(self, memory: Read, blocks: tuple[dict, ...], state: State, token: Array):
        """One token of K prefixes, all of one length: token [B, K] -> state, logits [B, K, V], alpha [B, K, S]."""
        now = state.position[:, None]
        x = self.positioned(self.embedding(token), now)
        prefix, place = jnp.arange(token.shape[1]), jnp.arange(state.rows.shape[2])
        rows = jnp.where(place == now[..., None], prefix[:, None], state.rows)  # [B, K, L]
        mask = jnp.broadcast_to(memory.mask[:, None], (*token.shape, memory.mask.shape[1]))
        caches, alphas = [], []
        for block, read, cache in zip(blocks, memory.layers, state.layers):
            x, cache, alpha = self.blocks.one(block, x, read, mask, cache, state.position, rows, method="one")
            caches.append(cache)
            alphas.append(alpha)
        logits = self.output.logits(self.positioned.last(x))
        return State(state.position + 1, rows, tuple(caches)), logits, sum(alphas) / len(alphas)

    def __call__(self, memory: Read, inputs: Array, mask: Array, train: bool) -> Array:
        x = self.positioned(self.embedding(inputs), jnp.arange(inputs.shape[1]), train)
        x = self.blocks(x, memory.states, memory.mask.sum(1), train=train)
        return self.output.logits(self.positioned.last(x))
