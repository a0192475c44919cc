"""The Transformer (Vaswani et al. 2017), post-LN as published or pre-LN.

Letters: B batch, S source positions, T target positions, W model width, N heads, D width of a head, L cache length.

Sinusoidal and learned positions are applied in `Positions`. Rotary positions rotate the queries and keys of
self-attention. Relative positions are a `bias` of self-attention, computed once per stack and shared by its blocks, or
by each block from a table of its own. A `window` restricts self-attention. Cross-attention uses neither positions nor
windows.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core import attention
from s2sjax.core.attention import kv_cache
from s2sjax.models.encoder_decoder import (
    DecoderModule,
    EncoderModule,
    EncoderOutput,
    Segments,
    output_layer,
)
from s2sjax.models.families.transformer_parts import (
    Attention,
    FeedForward,
    Positions,
    Residual,
    final_norm,
    join_query_key_value,
)

# ------------------------------------------------------------------------------------ encoder


class EncoderBlock(nn.Module):
    """Self-attention and a feed-forward network."""

    config: config.Transformer
    dtype: jnp.dtype
    causal: bool = False
    """whether each position attends only up to itself, as in a decoder without an encoder"""

    def setup(self):
        c = self.config
        own = c.positions == "relative" and not c.share_positions
        self.attention = Attention(c, self.dtype, relative_positions=own)
        self.feedforward = FeedForward(self.config, self.dtype)
        self.around_attention = Residual(self.config, self.dtype)
        self.around_feedforward = Residual(self.config, self.dtype)

    def __call__(
        self, x: Array, lengths: Array | None, train: bool, bias: Array | None = None, mask: Array | None = None
    ) -> Array:
        return self.feed(self.attend(x, lengths, train, bias, mask), train)

    def attend(self, x: Array, lengths: Array | None, train: bool, bias: Array | None, mask: Array | None) -> Array:
        attended = self.attention.self_attention(self.around_attention.before(x), lengths, self.causal, bias, mask)
        return self.around_attention.after(x, attended, train)

    def self_weights(self, x: Array, lengths: Array, bias: Array | None) -> Array | None:
        """The weights of self-attention [B, N, T, T] that `attend` uses; None if the block has no self-attention."""
        return self.attention.self_weights(self.around_attention.before(x), lengths, self.causal, bias)

    def feed(self, x: Array, train: bool) -> Array:
        return self.around_feedforward.after(x, self.feedforward(self.around_feedforward.before(x), train), train)


def self_weights_of(
    blocks: Iterable[EncoderBlock], x: Array, lengths: Array, bias: Array | None, advance: Callable[..., Array]
) -> dict[int, Array]:
    """The weights of self-attention of each block that has it, by the number of the block: [B, N, T, T].

    x: the input [B, T, W] of the first block
    bias: `Positions.bias` of all pairs of positions
    advance: advance(block, x) is the output of a block
    """
    found = {}
    for number, block in enumerate(blocks):
        if (weights := block.self_weights(x, lengths, bias)) is not None:
            found[number] = weights
        x = advance(block, x)
    return found


class TransformerEncoder(EncoderModule):
    """Position encoding and encoder blocks over xs [B, S, W]."""

    config: config.Transformer
    has_self_attention: ClassVar[bool] = True

    def setup(self):
        c = self.config
        self.positions = Positions(c, self.dtype)
        block = EncoderBlock(c, self.dtype, parent=None)
        self.blocks = layers.Stacked(block, c.encoder_layers, (c.width,), self.dtype, self.remat_policy)
        self.final_norm = final_norm(c, self.dtype)

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        """Encodes xs. segments [B, S] are given for rows that hold several sources."""
        x = self.positions.everywhere(xs, train, segments)
        lengths = mask.sum(1) if segments is None else None
        own = None if segments is None else attention.same_segment(segments, segments)
        x = self.blocks(x, lengths, train=train, bias=self.positions.bias(xs.shape[1]), mask=own)
        return EncoderOutput(self.final_norm(x), mask, ())

    def self_attention_heads(self, xs: Array, mask: Array) -> dict[int, Array]:
        """The weights of self-attention of each layer: [B, N, S, S]."""
        lengths, bias = mask.sum(1), self.positions.bias(xs.shape[1])
        blocks = map(self.blocks.bind_block, self.blocks.unstacked())
        x, whole = self.positions.everywhere(xs, False), self.positions.bias(xs.shape[1], windowed=False)
        return self_weights_of(blocks, x, lengths, whole, lambda block, x: block(x, lengths, False, bias))


# ------------------------------------------------------------------------------------ decoder


class DecoderMemory(NamedTuple):
    """A memory prepared for the decoder."""

    states: Array  # [B, S, W] for all positions in parallel
    mask: Array  # [B, S]
    layers: tuple[tuple[Array, Array], ...]  # for single steps: keys and values [B, N, S, D] of each layer


class State(NamedTuple):
    """The decoder state of one prefix per sentence. With a window, L = window + 1.

    With K prefixes, `beam_index` is [B, K, L] and each cache array [B, N, L, K, D]: see core/attention/kv_cache.py.
    """

    position: Array  # [B] number of tokens written so far
    beam_index: Array  # [B, L] row of the cache that holds each position
    layers: tuple[tuple[Array, Array], ...]  # cache: keys and values [B, N, L, D] of the tokens so far


class DecoderBlock(EncoderBlock):
    """Causal self-attention, cross-attention and a feed-forward network."""

    causal: bool = True

    def setup(self):
        super().setup()
        self.cross = Attention(self.config, self.dtype)
        self.around_cross = Residual(self.config, self.dtype)

    def __call__(  # type: ignore[override]
        self, x: Array, states: Array, source_lengths: Array | None, train: bool, bias: Array | None = None,
        own: Array | None = None, source_mask: Array | None = None,
    ) -> Array:  # fmt: skip
        """Computes all positions, x [B, T, W]. The causal mask suffices, because padding is at the end of the target.

        For rows that hold several pairs, `own` [B, T, T] is the mask of self-attention, and `source_mask` [B, T, S],
        instead of `source_lengths` [B], that of cross-attention.
        """
        x = self.attend(x, None if own is not None else _whole(x), train, bias, own)
        h = self.around_cross.before(x)
        attended = self.cross(h, *self.cross.keys_values(states), source_lengths, source_mask)
        return self.feed(self.around_cross.after(x, attended, train), train)

    def source_keys_values(self, states: Array) -> tuple[Array, Array]:
        """Keys and values of cross-attention for single steps: [B, N, S, D] each."""
        keys, values = self.cross.keys_values(states)
        return keys.swapaxes(1, 2), values.swapaxes(1, 2)

    def step(
        self, x: Array, joined: dict, source: tuple[Array, Array], mask: Array,
        cache: kv_cache.Cache, beam_index: Array, position: Array, bias: Array | None,
    ):  # fmt: skip
        """Computes one position of K prefixes with a cache; returns x, cache, and alpha over the source [B, K, S].

        x: [B, K, W] target vectors
        source: keys and values of the memory, [B, N, S, D] each
        mask: [B, K, S] mask of the memory
        beam_index: [B, K, L] row of the cache that holds each position of a prefix
        position: [B] number of tokens written so far
        bias: [B, N, 1, L] relative bias, or None
        """
        h = self.around_attention.before(x)
        attended, cache = self.attention.self_attention_step(h, joined, cache, beam_index, position, bias)
        x = self.around_attention.after(x, attended, False)
        attended, alpha = self.cross.attend_step(self.around_cross.before(x), *source, mask)
        return self.feed(self.around_cross.after(x, attended, False), False), cache, alpha

    def cross_weights(self, x: Array, states: Array, mask: Array, bias: Array | None) -> Array:
        """The weights of cross-attention [B, N, T, S] that `__call__` uses."""
        x = self.attend(x, _whole(x), False, bias, None)
        return self.cross.weights(self.around_cross.before(x), states, mask)


def _whole(x: Array) -> Array:
    """The lengths [B] of rows x [B, T, W] without padding."""
    return jnp.full(x.shape[:1], x.shape[1])


class TransformerDecoder(DecoderModule):
    """Position encoding and decoder blocks, with a key-value cache for single steps."""

    config: config.Transformer
    parallel: ClassVar[bool] = True
    has_beam_step: ClassVar[bool] = True
    has_attention_heads: ClassVar[bool] = True
    has_self_attention: ClassVar[bool] = True

    def setup(self):
        c = self.config
        self.positions = Positions(c, self.dtype, causal=True)
        block = DecoderBlock(c, self.dtype, parent=None)
        self.blocks = layers.Stacked(block, c.decoder_layers, (c.width, c.width), self.dtype, self.remat_policy)
        self.final_norm = final_norm(c, self.dtype)
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def bound_blocks(self) -> Sequence[DecoderBlock]:
        """The blocks one by one, each with its parameters."""
        return [self.blocks.bind_block(params) for params in self.blocks.unstacked()]

    def prepare(self, memory: EncoderOutput) -> DecoderMemory:
        layers = tuple(block.source_keys_values(memory.states) for block in self.bound_blocks())
        return DecoderMemory(memory.states, memory.mask, layers)

    def init_state(self, memory: DecoderMemory, steps: int) -> State:
        self.positions.check_length(steps)
        rows, window = memory.mask.shape[0], self.config.window
        length = min(steps, window + 1) if window else steps
        shape = (rows, self.config.heads, length, self.config.attention_width // self.config.heads)
        empty = jnp.zeros(shape, self.dtype)
        where = jnp.zeros((rows, length), jnp.int32)
        return State(jnp.zeros(rows, jnp.int32), where, ((empty, empty),) * self.config.decoder_layers)

    def step(self, memory: DecoderMemory, state: State, token: Array, train: bool = False):
        state, logits, alpha = self.step_beams(memory, self.prepare_beams(), self.tile(state, 1), token[:, None])
        caches = jax.tree.map(lambda leaf: leaf[:, :, :, 0], state.layers)
        return State(state.position, state.beam_index[:, 0], caches), logits[:, 0], alpha[:, 0]

    @staticmethod
    def tile(state: State, width: int) -> State:
        """Repeats one prefix per sentence to K equal prefixes."""
        caches = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, :, :, None], width, axis=3), state.layers)
        return State(state.position, jnp.repeat(state.beam_index[:, None], width, axis=1), caches)

    @staticmethod
    def reorder(state: State, origin: Array) -> State:
        """Makes prefix k a copy of prefix origin[k], without moving the cache."""
        return state._replace(beam_index=jax.vmap(lambda index, at: index[at])(state.beam_index, origin))

    def prepare_beams(self) -> tuple[tuple[dict, dict], ...]:
        """Prepares the parameters of each block for single steps: all, and those of `join_query_key_value`."""
        scale = self.config.adapter_scale
        blocks = tuple((params, join_query_key_value(params["attention"], scale)) for params in self.blocks.unstacked())
        return tuple(tuple(map(layers.kernels_as_tables, block)) for block in blocks)  # type: ignore[misc]

    def step_beams(self, memory: DecoderMemory, blocks: tuple[tuple[dict, dict], ...], state: State, token: Array):
        """Advances K prefixes of equal length by token [B, K] -> state, logits [B, K, V], alpha [B, K, S]."""
        now = state.position[:, None]
        x = self.positions(self.embedding(token), now)
        prefix, place = jnp.arange(token.shape[1]), jnp.arange(state.beam_index.shape[2])
        here = place[None, None] == (now % len(place))[..., None]
        beam_index = jnp.where(here, prefix[:, None], state.beam_index)  # [B, K, L]
        bias = self.positions.bias_of_one(state.position, len(place))
        mask = jnp.broadcast_to(memory.mask[:, None], (*token.shape, memory.mask.shape[1]))
        caches, alphas = [], []
        for (params, joined), source, cache in zip(blocks, memory.layers, state.layers):
            block = self.blocks.bind_block(params)
            x, cache, alpha = block.step(x, joined, source, mask, cache, beam_index, state.position, bias)
            caches.append(cache)
            alphas.append(alpha)
        logits = self.output.logits(self._top(x))
        return State(state.position + 1, beam_index, tuple(caches)), logits, sum(alphas) / len(alphas)

    def hidden(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool, segments: Segments = None
    ) -> Array:
        """Computes all positions. segments [B, S] and [B, T] are given for rows that hold several pairs."""
        masks: dict[str, Array] = {}
        if segments is not None:
            source, target = segments
            same = attention.same_segment
            masks = {"own": same(target, target), "source_mask": same(target, source)}
        x = self.positions.everywhere(self.embedding(inputs), train, segments and segments[1])
        bias = self.positions.bias(inputs.shape[1])
        lengths = None if masks else memory.mask.sum(1)
        x = self.blocks(x, memory.states, lengths, train=train, bias=bias, **masks)
        return self._top(x)

    def _top(self, x: Array) -> Array:
        """The input of the output layer, from the output of the last block."""
        x = self.final_norm(x)
        return x * jnp.asarray(self.config.width**-0.5, x.dtype) if self.config.scale_output else x

    def attention_heads(self, memory: DecoderMemory, inputs: Array) -> Array:
        """The weights of cross-attention of each layer and head for inputs [B, T]: [B, layers, N, T, S]."""
        x = self.positions.everywhere(self.embedding(inputs), False)
        bias, alphas = self.positions.bias(inputs.shape[1]), []
        for block in self.bound_blocks():
            alphas.append(block.cross_weights(x, memory.states, memory.mask, bias))
            x = block(x, memory.states, memory.mask.sum(1), False, bias)
        return jnp.stack(alphas, axis=1)

    def self_attention_heads(self, memory: DecoderMemory, inputs: Array) -> dict[int, Array]:
        """The weights of self-attention of each layer for inputs [B, T]: [B, N, T, T]."""
        lengths, bias = memory.mask.sum(1), self.positions.bias(inputs.shape[1])
        advance = lambda block, x: block(x, memory.states, lengths, False, bias)
        x, whole = self.positions.everywhere(self.embedding(inputs), False), self.positions.bias(inputs.shape[1], False)
        return self_weights_of(self.bound_blocks(), x, _whole(x), whole, advance)
