"""Convolutional sequence to sequence learning (Gehring et al. 2017).

Letters: B batch, S source positions, T target positions, E embedding, H width of a block, k its kernel, V vocabulary.

Every sum of two terms is multiplied by sqrt(1/2), and the initial scale of weights accounts for the number of inputs,
dropout and gates, so that activations keep the variance of the embeddings.
"""

from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from s2sjax import config, layers
from s2sjax.core import attention
from s2sjax.core.nn import convolution
from s2sjax.core.special_tokens import PAD
from s2sjax.layers.parameters import param
from s2sjax.models.encoder_decoder import DecoderModule, EncoderModule, EncoderOutput, Segments, check_positions

DOT = attention.SCORES["dot"]


def scaled_sum(x: Array, y: Array) -> Array:
    """Computes sqrt(1/2) (x + y), which preserves the variance of independent terms of equal variance."""
    return (x + y) * jnp.asarray(0.5**0.5, x.dtype)


def scale_gradient(x: Array, factor: float) -> Array:
    """Returns x with its gradient multiplied by `factor`."""
    return jax.lax.stop_gradient((1 - factor) * x) + factor * x


class PositionEmbedding(nn.Module):
    """Computes 0.1 x_t + p_t with dropout. For embeddings, both terms have the standard deviation 0.1."""

    config: config.ConvS2S
    dtype: jnp.dtype

    def setup(self):
        shape = (self.config.max_length, self.config.embedding_size)
        self.table = param(self, "table", nn.initializers.normal(0.1), shape)

    def everywhere(self, xs: Array, train: bool) -> Array:
        """Adds positions to all of xs [B, T, E]."""
        check_positions(self.config.max_length, xs.shape[1])
        return self(xs, jnp.arange(xs.shape[1]), train)

    def __call__(self, xs: Array, position: Array, train: bool = False) -> Array:
        x = 0.1 * xs + lax.broadcast_to_rank(self.table[position].astype(self.dtype), xs.ndim)
        return layers.dropout(self, x, self.config.dropout, train)


class Block(nn.Module):
    """Computes v = gated(W * x), then sqrt(1/2) (v + x), with a linear map of x where the width changes."""

    config: config.ConvS2S
    inputs: int
    width: int
    kernel: int
    causal: bool
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        # A gate passes half of the activations on average, a quarter of the variance.
        self.convolution = layers.Convolution(
            self.inputs, 2 * self.width, self.kernel, self.dtype,
            causal=self.causal, gain=4 * (1 - c.dropout), weight_norm=c.weight_norm,
        )  # fmt: skip
        self.widen = dense(c, self.inputs, self.width, self.dtype) if self.inputs != self.width else None

    def read(self, x: Array, mask: Array, train: bool) -> Array:
        """Computes v at all positions: x [B, T, inputs] -> v [B, T, H]."""
        return convolution.gated(self.convolution(layers.dropout(self, x, self.config.dropout, train), mask))

    def read_one(self, past: Array, x: Array) -> tuple[Array, Array]:
        """Computes v at one position from the k-1 previous inputs: x [B, inputs] -> past, v [B, H]."""
        past, y = self.convolution.one(past, x)
        return past, convolution.gated(y)

    def add(self, x: Array, v: Array) -> Array:
        return scaled_sum(x if self.widen is None else self.widen(x), v)

    def __call__(self, x: Array, mask: Array, train: bool) -> Array:
        return self.add(x, self.read(x, mask, train))


def dense(c: config.ConvS2S, inputs: int, outputs: int, dtype, dropped: bool = False) -> layers.Dense:
    """A linear map that preserves the variance of its input. `dropped` says that the input has passed dropout."""
    return layers.Dense(inputs, outputs, dtype, gain=1 - c.dropout if dropped else 1.0, weight_norm=c.weight_norm)


def blocks(c: config.ConvS2S, shapes: tuple[tuple[int, int], ...], causal: bool, dtype) -> list[Block]:
    """Builds blocks of these shapes. The first reads vectors of its own width, each other one the block below."""
    inputs = [shapes[0][0], *(width for width, _ in shapes)]
    return [Block(c, below, width, kernel, causal, dtype) for below, (width, kernel) in zip(inputs, shapes)]


# ------------------------------------------------------------------------------------ encoder


class ConvEncoder(EncoderModule):
    """Computes z = W_o blocks(W_i e) from vectors with positions e, and returns z and e, of equal width."""

    config: config.ConvS2S

    def setup(self):
        c = self.config
        self.positions = PositionEmbedding(c, self.dtype)
        self.enter = dense(c, c.embedding_size, c.encoder_layers[0][0], self.dtype, dropped=True)
        self.blocks = blocks(c, c.encoder_layers, False, self.dtype)
        self.leave = dense(c, c.encoder_layers[-1][0], c.embedding_size, self.dtype)

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        embedded = self.positions.everywhere(xs, train)
        x = self.enter(embedded)
        for layer in range(len(self.blocks)):
            x = layers.remat_block(
                self.remat_policy, self, lambda self, x, at=layer: self.blocks[at](x, mask, train), x
            )
        return EncoderOutput(self.leave(x), mask, (), embedded)


# ------------------------------------------------------------------------------------ decoder


class DecoderMemory(NamedTuple):
    """A memory prepared for the decoder."""

    keys: Array  # [B, S, E] z
    values: Array  # [B, S, E] sqrt(1/2) (z + e)
    mask: Array  # [B, S]


class State(NamedTuple):
    """The decoder state."""

    position: Array  # [B] number of tokens written so far
    past: tuple[Array, ...]  # [B, k-1, H] of each block: previous inputs of its convolution


class Attention(nn.Module):
    """Attention of a block. The query is computed from its output v and the current word; the context is added to v.

    q = sqrt(1/2) (W_q v + b + g);  c = sqrt(m) sum_j softmax_j(q . z_j) (z_j + e_j);  v' = sqrt(1/2) (W_c c + b + v)

    g is the word embedding and m the source length: a mean of m independent terms has 1/m of their variance.
    """

    config: config.ConvS2S
    width: int
    dtype: jnp.dtype

    def setup(self):
        self.ask = dense(self.config, self.width, self.config.embedding_size, self.dtype)
        self.answer = dense(self.config, self.config.embedding_size, self.width, self.dtype)

    def __call__(self, attend, memory: DecoderMemory, v: Array, embedded: Array) -> tuple[Array, Array]:
        """Attends from one position or all: v [B, (T,) H], embedded [B, (T,) E] -> v', alpha [B, (T,) S]."""
        query = scaled_sum(self.ask(v), embedded)
        context, alpha = attend(DOT, {}, query, memory.keys, memory.values, memory.mask)
        lengths = memory.mask.sum(1).reshape(-1, *(1,) * (v.ndim - 1))
        return scaled_sum(self.answer(context * jnp.sqrt(lengths).astype(self.dtype)), v), alpha


class ConvDecoder(DecoderModule):
    """Causal blocks, each with attention between its convolution and its sum; logits = W_v W_o x."""

    config: config.ConvS2S
    parallel: ClassVar[bool] = True
    has_attention_heads: ClassVar[bool] = True

    def setup(self):
        c = self.config
        self.positions = PositionEmbedding(c, self.dtype)
        self.enter = dense(c, c.embedding_size, c.decoder_layers[0][0], self.dtype, dropped=True)
        self.blocks = blocks(c, c.decoder_layers, True, self.dtype)
        self.attentions = [Attention(c, width, self.dtype) for width, _ in c.decoder_layers]
        self.leave = dense(c, c.decoder_layers[-1][0], c.embedding_size, self.dtype)
        self.output = (
            dense(c, c.embedding_size, self.embedding.size, self.dtype, dropped=True)
            if not c.ties_output
            else self.embedding
        )

    def prepare(self, memory: EncoderOutput) -> DecoderMemory:
        keys = memory.states
        if self.config.scale_gradient:
            # Every attention layer adds gradients to z through keys and values. The gradient of e is not scaled.
            keys = scale_gradient(keys, 1 / (2 * len(self.attentions)))
        values = keys if memory.embedded is None else scaled_sum(keys, memory.embedded)
        return DecoderMemory(keys, values, memory.mask)

    def init_state(self, memory: DecoderMemory, steps: int) -> State:
        check_positions(self.config.max_length, steps)
        rows = memory.mask.shape[0]
        return State(jnp.zeros(rows, jnp.int32), tuple(block.convolution.start(rows) for block in self.blocks))

    def step(self, memory: DecoderMemory, state: State, token: Array, train: bool = False):
        embedded = self.positions(self.embedding(token), state.position)
        x, pasts, alphas = self.enter(embedded), [], []
        for block, attend, past in zip(self.blocks, self.attentions, state.past):
            past, v = block.read_one(past, x)
            v, alpha = attend(attention.attend_batch, memory, v, embedded)
            x = block.add(x, v)
            pasts.append(past)
            alphas.append(alpha)
        return State(state.position + 1, tuple(pasts)), self.output.logits(self.leave(x)), sum(alphas) / len(alphas)

    def _layer(self, layer: int, memory: DecoderMemory, embedded: Array, x: Array, mask: Array, train: bool):
        """Computes one layer; returns x and the attention weights [B, T, S]."""
        block, attend = self.blocks[layer], self.attentions[layer]
        v, alpha = attend(attention.attend_all, memory, block.read(x, mask, train), embedded)
        return block.add(x, v), alpha

    def hidden(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool, segments: Segments = None
    ) -> Array:
        embedded = self.positions.everywhere(self.embedding(inputs), train)
        x = self.enter(embedded)
        for layer in range(len(self.blocks)):
            one = lambda self, x, at=layer: self._layer(at, memory, embedded, x, mask, train)[0]
            x = layers.remat_block(self.remat_policy, self, one, x)
        return layers.dropout(self, self.leave(x), self.config.dropout, train)

    def attention_heads(self, memory: DecoderMemory, inputs: Array) -> Array:
        """The attention weights of each layer for inputs [B, T]: [B, layers, 1, T, S]."""
        embedded = self.positions.everywhere(self.embedding(inputs), False)
        x, alphas = self.enter(embedded), []
        for layer in range(len(self.blocks)):
            x, alpha = self._layer(layer, memory, embedded, x, inputs != PAD, False)
            alphas.append(alpha[:, None])
        return jnp.stack(alphas, axis=1)
