"""Language models: recurrent or Transformer decoders without an encoder.

    hidden(inputs, carry, train)  -> Hidden       inputs [B, T], <pad> at the end of each row; recurrent: anywhere
    logits(states)                -> [..., V]     over the words that can follow: all ids except <pad> and <sos>
    __call__(inputs, carry)       -> logits [B, T, V], carry
    begin(prefix)                 -> state        after reading prefix [B, P], <pad> at the end of each row
    advance(state, token)         -> state, logits [B, ids]    one more token [B], for a search

The carry of a recurrent model is the state of each layer at the end of a segment, from which the next segment
continues. The carry of a Transformer is (): its segments are independent.

Letters: B batch, T positions, W model width, V words that can follow, L length of a Transformer's window.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import layers
from s2sjax.core import losses, recurrence
from s2sjax.core.backend.matmul import at_least_float32, product_with_table
from s2sjax.core.recurrence import regularization as reg
from s2sjax.core.recurrence.cells import CELLS
from s2sjax.core.search.constraints import DEAD
from s2sjax.core.special_tokens import EOS, PAD
from s2sjax.layers.parameters import param
from s2sjax.models.families.transformer import EncoderBlock, Positions, final_norm
from s2sjax.tasks.language_model.settings import RecurrentLM, TransformerLM

FIRST = EOS
"""first id of the softmax; <pad> and <sos>, which no text contains, have smaller ids"""
Carry = tuple


class Hidden(NamedTuple):
    """Inputs of the output layer."""

    states: Array  # [B, T, W] after dropout
    plain: Array  # [B, T, W] before dropout
    carry: Carry


def start(c: RecurrentLM | TransformerLM, rows: int, dtype) -> Carry:
    """The initial carry: zeros. An LSTM's cell state, which sums over time, is at least float32."""
    if isinstance(c, TransformerLM):
        return ()
    kinds = (dtype, *(at_least_float32(dtype),) * (CELLS[c.cell].carries - 1))
    return tuple(tuple(jnp.zeros((rows, width), kind) for kind in kinds) for width in c.widths)


class Output(nn.Module):
    """Computes x E^T + b over the words that can follow. E is the embedding table if tied, otherwise separate."""

    size: int
    width: int
    tied: bool
    dtype: jnp.dtype

    def setup(self):
        self.bias = param(self, "bias", nn.initializers.zeros, (self.size,))
        if not self.tied:
            self.own = param(self, "table", nn.initializers.normal(self.width**-0.5), (self.size, self.width))

    def __call__(self, x: Array, embedding: Array) -> Array:
        table = (embedding if self.tied else self.own)[FIRST:].astype(self.dtype)  # [V, W]
        return product_with_table(x, table) + self.bias[FIRST:]


class LanguageModel(nn.Module):
    """Base class. Subclasses define `hidden`, `begin`, `advance`, and `_layers`, which sets up the hidden layers."""

    config: Any
    size: int
    """size of the vocabulary"""
    steps: int
    """length of a segment"""
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        c = self.config
        width, scale, top = self._layers()
        self.embedding = layers.Embedding(self.size, width, self.dtype, scale)
        self.output = Output(self.size, top, c.tie, self.dtype)

    def _embedded(self, inputs: Array, train: bool) -> Array:
        embedded, rate = self.embedding(inputs), self.config.word_dropout
        if not train or rate == 0:
            return embedded
        return reg.drop_words(self.make_rng("dropout"), inputs, embedded, self.size, rate)

    def logits(self, states: Array) -> Array:
        return self.output(states, self.embedding.table)

    def __call__(self, inputs: Array, carry: Carry) -> tuple[Array, Carry]:
        found = self.hidden(inputs, carry, False)
        return self.logits(found.states), found.carry

    def nats(self, inputs: Array, targets: Array, carry: Carry) -> tuple[Array, Carry]:
        """Computes -log p of each target, 0 at <pad>: [B, T], [B, T] -> [B, T], carry."""
        logits, carry = self(inputs, carry)
        of_target = jnp.take_along_axis(logits, labels(targets)[..., None], axis=-1)[..., 0]
        return jnp.where(targets != PAD, jax.nn.logsumexp(logits, axis=-1) - of_target, 0), carry

    def loss(self, inputs: Array, targets: Array, carry: Carry) -> tuple[dict[str, tuple[Array, Array]], Carry]:
        """Computes the training loss: the cross-entropy per token, plus the penalties of a recurrent model."""
        found = self.hidden(inputs, carry, True)
        mask = targets != PAD
        total, tokens = losses.cross_entropy(self.logits(found.states), labels(targets), mask)
        penalty = self._penalty(found, mask)
        if penalty is None:
            return {"loss": (total, tokens)}, found.carry
        return {"loss": (total + penalty, tokens), "cross_entropy": (total, tokens)}, found.carry

    def _penalty(self, found: Hidden, mask: Array) -> Array | None:
        return None


def labels(targets: Array) -> Array:
    """Converts ids to indices of the words that can follow; <pad> becomes an arbitrary one."""
    return jnp.maximum(targets - FIRST, 0)


def all_ids(logits: Array) -> Array:
    """Extends logits to all ids for a search, with <pad> and <sos> impossible: [..., V] -> [..., ids]."""
    return jnp.pad(logits, [(0, 0)] * (logits.ndim - 1) + [(FIRST, 0)], constant_values=DEAD)


class RecurrentModel(LanguageModel):
    """A stack of recurrent layers (Mikolov et al. 2010), regularised as by Merity et al. 2017."""

    config: RecurrentLM

    def _layers(self) -> tuple[int, float, int]:
        c = self.config
        inputs = (c.embedding_size, *c.widths[:-1])
        self.stack = [layers.cell_weights(c.cell, i, w, self.dtype) for i, w in zip(inputs, c.widths)]
        return c.embedding_size, 1.0, c.widths[-1]

    def hidden(self, inputs: Array, carry: Carry, train: bool) -> Hidden:
        c, mask, after = self.config, inputs != PAD, []
        drop = lambda xs, rate: layers.dropout(self, xs, rate, train, c.variational_dropout)
        xs = drop(self._embedded(inputs, train), c.input_dropout)
        for layer, (weights, before) in enumerate(zip(self.stack, carry)):
            xs = drop(xs, c.dropout) if layer else xs
            matrices = weights()
            if train and c.weight_drop:
                matrices = reg.drop_weights(self.make_rng("dropout"), matrices, c.weight_drop)
            cell = CELLS[c.cell]
            xs, last = recurrence.run(cell, matrices, xs, mask, before, remat_policy=self.remat_policy)
            after.append(last)
        return Hidden(drop(xs, c.output_dropout), xs, tuple(after))

    def _penalty(self, found: Hidden, mask: Array) -> Array | None:
        """alpha times AR of the states after dropout, plus beta times TAR of the states before it."""
        c = self.config
        if not (c.activation_penalty or c.temporal_penalty):
            return None
        changes = reg.temporal_penalty(found.plain, mask) if c.temporal_penalty else 0.0
        return c.activation_penalty * reg.activation_penalty(found.states, mask) + c.temporal_penalty * changes

    def begin(self, prefix: Array) -> Carry:
        return self.hidden(prefix, start(self.config, len(prefix), self.dtype), False).carry

    def advance(self, state: Carry, token: Array) -> tuple[Carry, Array]:
        logits, state = self(token[:, None], state)
        return state, all_ids(logits[:, 0])


class Window(NamedTuple):
    """The last tokens, which a Transformer reads to predict the next."""

    tokens: Array  # [B, L]
    length: Array  # [B] number of tokens that are not padding


class TransformerModel(LanguageModel):
    """Blocks of causal self-attention (Vaswani et al. 2017; Radford et al. 2018)."""

    config: TransformerLM

    def _layers(self) -> tuple[int, float, int]:
        c = self.config.blocks(self.steps)
        self.positions = Positions(c, self.dtype, causal=True)
        block = EncoderBlock(c, self.dtype, causal=True, parent=None)
        self.blocks = layers.Stacked(block, c.decoder_layers, (c.width,), self.dtype, self.remat_policy)
        self.final_norm = final_norm(c, self.dtype)
        return c.width, c.width**0.5, c.width

    def hidden(self, inputs: Array, carry: Carry, train: bool) -> Hidden:
        """Needs no mask: padding follows the text, so the causal mask hides it."""
        rows, length = inputs.shape
        x = self.positions.everywhere(self._embedded(inputs, train), train)
        x = self.blocks(x, jnp.full(rows, length), train=train, bias=self.positions.bias(length))
        x = self.final_norm(x)
        return Hidden(x, x, carry)

    def begin(self, prefix: Array) -> Window:
        """The last tokens of each prefix, with room for one more."""
        most, count = self.steps - 1, jnp.sum(prefix != PAD, axis=1)
        kept = jnp.minimum(count, most)
        place = (count - kept)[:, None] + jnp.arange(self.steps)
        found = jnp.take_along_axis(jnp.pad(prefix, ((0, 0), (0, self.steps))), place, axis=1)
        return Window(jnp.where(jnp.arange(self.steps) < kept[:, None], found, PAD), kept)

    def advance(self, state: Window, token: Array) -> tuple[Window, Array]:
        """Recomputes the whole window: once it is full it slides, which changes every position."""
        full = (state.length == self.steps)[:, None]
        tokens = jnp.where(full, jnp.roll(state.tokens, -1, axis=1), state.tokens)
        last = jnp.minimum(state.length, self.steps - 1)[:, None]  # [B, 1]
        tokens = jnp.where(jnp.arange(self.steps) == last, token[:, None], tokens)
        states = self.hidden(tokens, (), False).states
        here = jnp.take_along_axis(states, last[..., None], axis=1)[:, 0]  # [B, W]
        return Window(tokens, last[:, 0] + 1), all_ids(self.logits(here))


def build(c: RecurrentLM | TransformerLM, size: int, steps: int, dtype, remat: str) -> LanguageModel:
    """Builds the Flax module of a language model for a vocabulary of `size` and segments of `steps` tokens."""
    kind: Any = TransformerModel if isinstance(c, TransformerLM) else RecurrentModel
    return kind(c, size, steps, jnp.dtype(dtype), remat)
