"""The parts of a Transformer block: attention, feed-forward network, residual connections, positions.

Letters: B batch, S source positions, T target positions, W model width, N heads, D width of a head, L cache length.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from s2sjax import config, layers
from s2sjax.core import attention
from s2sjax.core.attention import kv_cache, position_encodings
from s2sjax.core.attention.sliding_window import offsets, windowed_multi_head
from s2sjax.layers.parameters import param
from s2sjax.models.encoder_decoder import check_positions


def dense(c: config.Transformer, inputs: int, outputs: int, dtype: jnp.dtype, **options: Any) -> layers.Dense:
    """A dense layer of a block, with the biases and the adapter of the settings."""
    return layers.Dense(
        inputs, outputs, dtype, c.biases, adapter_rank=c.adapter_rank, adapter_scale=c.adapter_scale, **options
    )


class Attention(nn.Module):
    """Multi-head attention: one softmax per head; the heads are concatenated and projected by W_O."""

    config: config.Transformer
    dtype: jnp.dtype
    relative_positions: bool = False
    """whether its scores have a bias of relative positions of its own"""

    def setup(self):
        c, inner = self.config, self.config.attention_width
        self.relative = relative_table(self, c) if self.relative_positions else None
        self.query = dense(c, c.width, inner, self.dtype)
        self.key_value = dense(c, c.width, 2 * inner, self.dtype)
        self.output = dense(c, inner, c.width, self.dtype)

    def _heads(self, x: Array) -> Array:
        return x.reshape(*x.shape[:-1], self.config.heads, -1)  # [..., N, D]

    def _rotate(self, x: Array, position: Array | None) -> Array:
        """Rotates queries or keys [..., N, D] at positions [...], if positions are rotary."""
        if position is None or self.config.positions != "rotary":
            return x
        return position_encodings.rotate(x, position[..., None])

    def keys_values(self, memory: Array, position: Array | None = None) -> tuple[Array, Array]:
        """Keys and values [..., N, D] of memory [..., W]. position [...] is given for the keys of self-attention."""
        keys, values = self.key_value.in_parts(memory, 2)
        return self._rotate(self._heads(keys), position), self._heads(values)

    def __call__(self, x: Array, keys: Array, values: Array, lengths: Array | None, mask: Array | None = None) -> Array:
        """Attends from all positions, with either `lengths` or `mask`.

        x: [B, T, W] queries
        keys, values: [B, S, N, D]
        lengths: [B] number of keys that are not padding
        mask: [B, T, S] True where a query sees a key
        """
        attended = attention.fused_multi_head(self._heads(self.query(x)), keys, values, lengths, mask=mask)
        return self._joined(attended)

    def _joined(self, attended: Array) -> Array:
        """Projects the heads [..., N, D] to [..., W]."""
        return self.output(attended.reshape(*attended.shape[:-2], -1))

    def self_attention(
        self, x: Array, lengths: Array | None, causal: bool, bias: Array | None = None, mask: Array | None = None
    ) -> Array:
        """Attends from all positions of x [B, T, W], of lengths [B], to each other. `bias` is `Positions.bias`, which
        the attention's own relative positions replace.

        For rows that hold several sequences, mask [B, T, T] replaces the lengths. Positions need not restart with each
        sequence, because only the distance between two positions matters here.
        """
        position = jnp.arange(x.shape[1])
        heads = self._rotate(self._heads(self.query(x)), position), *self.keys_values(x, position)
        if self.relative is not None:
            bias = bias_between(self.config, self.relative, x.shape[1], causal)
        if radius := reach(self.config, x.shape[1]):
            if lengths is None:
                raise ValueError("a window does not keep the sequences of a row apart: set model.window to 0")
            attended = windowed_multi_head(*heads, lengths, radius, causal, bias)
        else:
            attended = attention.fused_multi_head(*heads, lengths, mask=mask, causal=causal, bias=bias)
        return self._joined(attended)

    def attend_step(self, x: Array, keys: Array, values: Array, mask: Array) -> tuple[Array, Array]:
        """Attends from one position of K prefixes; returns [B, K, W] and the mean weights of all heads [B, K, S].

        x: [B, K, W] queries
        keys, values: [B, N, S, D]
        mask: [B, K, S] mask of the keys that are not padding
        """
        attended, alpha = attention.attend_heads(self._heads(self.query(x)), keys, values, mask)
        return self._joined(attended), alpha.mean(1)

    def weights(self, x: Array, memory: Array, mask: Array) -> Array:
        """The weights of each head for x [B, T, W] over memory [B, S, W], mask [B, S]: [B, N, T, S]."""
        keys, values = (part.swapaxes(1, 2) for part in self.keys_values(memory))
        seen = jnp.broadcast_to(mask[:, None], (*x.shape[:2], mask.shape[1]))
        return attention.attend_heads(self._heads(self.query(x)), keys, values, seen)[1]

    def self_weights(self, x: Array, lengths: Array, causal: bool, bias: Array | None = None) -> Array:
        """The weights of each head with which `self_attention` attends from x [B, T, W]: [B, N, T, T].

        `bias` is `Positions.bias` of all pairs of positions, which the attention's own relative positions replace.
        """
        place = jnp.arange(x.shape[1])
        keys, values = (part.swapaxes(1, 2) for part in self.keys_values(x, place))
        if self.relative is not None:
            bias = bias_between(self.config, self.relative, x.shape[1], causal, windowed=False)
        ago, radius = place[:, None] - place[None], reach(self.config, x.shape[1])
        near = (not causal or ago >= 0) & (jnp.abs(ago) <= (radius or x.shape[1]))  # [T, T]
        seen = near[None] & (place[None] < lengths[:, None])[:, None]
        return attention.attend_heads(self._rotate(self._heads(self.query(x)), place), keys, values, seen, bias)[1]

    def self_attention_step(
        self, x: Array, joined: dict, cache: kv_cache.Cache, beam_index: Array, position: Array, bias: Array | None
    ) -> tuple[Array, kv_cache.Cache]:
        """Attends from one position with a cache (`kv_cache.Cache`). `joined` is from `join_query_key_value`."""
        c = self.config
        qkv: Any = layers.Dense(c.width, 3 * c.attention_width, self.dtype, c.biases, parent=None).apply(
            {"params": joined}, x
        )
        qkv = qkv.reshape(*x.shape[:2], 3, self.config.heads, -1)
        if self.config.positions == "rotary":
            rotated = position_encodings.rotate(qkv[:, :, :2], position[:, None, None, None])
            qkv = jnp.concatenate([rotated, qkv[:, :, 2:]], axis=2)
        if self.relative is not None:
            bias = bias_of_one(self.relative, position, beam_index.shape[-1], causal=True)
        attended, cache = kv_cache.attend(qkv, cache, beam_index, position, bias)
        return self._joined(attended), cache


def join_query_key_value(attention: dict, scale: float = 1.0) -> dict:
    """Joins the parameters for queries, keys and values into one product: kernel [W, 3W], bias [3W].

    Low-rank adapters of this `scale` are merged.
    """
    parts = layers.merge_adapters({name: attention[name] for name in ("query", "key_value")}, scale)
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=-1), parts["query"], parts["key_value"])


def reach(c: config.Transformer, length: int) -> int:
    """The radius of self-attention for `length` positions; 0 if it is unlimited or the window covers all positions."""
    return c.window if length > c.window + 1 else 0


def relative_table(module: nn.Module, c: config.Transformer) -> Array:
    """Declares the table of relative positions of a module: [BUCKETS, N]."""
    return param(module, "relative", nn.initializers.normal(c.width**-0.5), (position_encodings.BUCKETS, c.heads))


def bias_between(c: config.Transformer, table: Array, length: int, causal: bool, windowed: bool = True) -> Array:
    """The bias of relative positions, added to all scores: [1, N, T, T], or [1, N, r, K] for windows.

    windowed: False for [1, N, T, T] in any case.
    """
    place, radius = jnp.arange(length), reach(c, length) if windowed else 0
    between = offsets(radius, causal) if radius else place[None] - place[:, None]
    return position_encodings.relative_bias(table, between, causal)[None]


def bias_of_one(table: Array, position: Array, length: int, causal: bool) -> Array:
    """The bias of one position [B] that attends to a cache of `length`, see `State`: [B, N, 1, L]."""
    ago = (position[:, None] - jnp.arange(length)[None]) % length
    return position_encodings.relative_bias(table, -ago, causal).swapaxes(0, 1)[:, :, None]


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "swish": jax.nn.swish,
}


class FeedForward(nn.Module):
    """Computes W_2 f(W_1 x), or W_2 (f(W_3 x) * W_1 x) if it is gated (Shazeer 2020)."""

    config: config.Transformer
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        self.inner = dense(c, c.width, c.feedforward, self.dtype)
        self.gate = dense(c, c.width, c.feedforward, self.dtype) if c.gated else None
        self.outer = dense(c, c.feedforward, c.width, self.dtype)

    def __call__(self, x: Array, train: bool) -> Array:
        f = ACTIVATIONS[self.config.activation]
        y = f(self.inner(x)) if self.gate is None else f(self.gate(x)) * self.inner(x)
        return self.outer(layers.dropout(self, y, self.config.dropout, train))


def norm_layer(c: config.Transformer, dtype: jnp.dtype) -> nn.Module:
    """The norm of the settings, over the width of the residual stream."""
    return (layers.RMSNorm if c.normalization == "rms" else layers.LayerNorm)(c.width, dtype, c.epsilon)


class Residual(nn.Module):
    """A residual connection with a norm around a sub-layer f: post-LN norm(x + f(x)), pre-LN x + f(norm(x))."""

    config: config.Transformer
    dtype: jnp.dtype

    def setup(self):
        self.norm = norm_layer(self.config, self.dtype)

    def before(self, x: Array) -> Array:
        return self.norm(x) if self.config.norm == "pre" else x

    def after(self, x: Array, y: Array, train: bool) -> Array:
        x = x + layers.dropout(self, y, self.config.dropout, train)
        return x if self.config.norm == "pre" else self.norm(x)


class Positions(nn.Module):
    """Position encodings of a stack: adds positions to vectors, norms them, or computes the relative bias."""

    config: config.Transformer
    dtype: jnp.dtype
    causal: bool = False

    def setup(self):
        c = self.config
        if c.positions == "learned":
            self.table = param(self, "table", nn.initializers.normal(0.02), (c.max_length, c.width))
        self.relative = relative_table(self, c) if c.positions == "relative" and c.share_positions else None
        if c.join_positions == "concat":
            self.join = layers.Dense(2 * c.width, c.width, self.dtype)
        self.norm = norm_layer(c, self.dtype) if c.norm_embedding else None

    def __call__(self, embedded: Array, position: Array, train: bool = False) -> Array:
        """Encodes embedded [B, T, W] at position [T] or [B, T], or embedded [B, W] at position [B]."""
        c = self.config
        match c.positions:
            case "sinusoidal":
                place = position_encodings.sinusoidal(position + c.first_position, c.width, c.sinusoids)
                embedded = self._joined(embedded, place)
            case "learned":
                embedded = self._joined(embedded, self.table[position])
        embedded = embedded if self.norm is None else self.norm(embedded)
        return layers.dropout(self, embedded, self.config.dropout, train)

    def _joined(self, embedded: Array, place: Array) -> Array:
        place = place.astype(self.dtype)
        if self.config.join_positions == "sum":
            return embedded + lax.broadcast_to_rank(place, embedded.ndim)
        return self.join(jnp.concatenate([embedded, jnp.broadcast_to(place, embedded.shape)], axis=-1))

    def everywhere(self, embedded: Array, train: bool, segments: Array | None = None) -> Array:
        """Encodes all positions of embedded [B, T, W]. Positions restart at each of segments [B, T], if given."""
        self.check_length(embedded.shape[1])
        position = jnp.arange(embedded.shape[1]) if segments is None else position_encodings.within(segments)
        return self(embedded, position, train)

    def check_length(self, length: int) -> None:
        if self.config.positions == "learned":
            check_positions(self.config.max_length, length)

    def bias(self, length: int, windowed: bool = True) -> Array | None:
        """The bias that all layers share, if there is one: see `bias_between`."""
        if self.relative is None:
            return None
        return bias_between(self.config, self.relative, length, self.causal, windowed)

    def bias_of_one(self, position: Array, length: int) -> Array | None:
        """The bias of one position that all layers share, if there is one: see `bias_of_one`."""
        return None if self.relative is None else bias_of_one(self.relative, position, length, self.causal)


def final_norm(c: config.Transformer, dtype) -> Callable[[Array], Array]:
    """The norm after the last block of a pre-LN stack; the identity for post-LN."""
    return norm_layer(c, dtype) if c.norm == "pre" else lambda x: x
