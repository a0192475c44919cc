"""Recurrent encoder-decoders: RNNsearch (Bahdanau et al. 2014) and Luong et al. 2015.

Letters: B batch, S source positions, T target positions, E embedding, H state width, M memory width, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core import attention, cells, local, recurrence
from s2sjax.models.contract import Memory


class RecurrentEncoder(nn.Module):
    """A stack of cells over the embedded source; see `layers.Recurrent`."""

    config: config.RNNsearch | config.Luong
    embedding: layers.Embedding
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        both_ways = isinstance(c, config.RNNsearch) or c.bidirectional
        depth = c.encoder_layers if isinstance(c, config.RNNsearch) else c.layers
        # RNNsearch gives each direction the full width, so its memory is twice as wide as its decoder.
        width = 2 * c.width if isinstance(c, config.RNNsearch) else c.width
        self.stack = layers.Recurrent(
            c.cell, width, depth, c.embedding,
            bidirectional=depth if both_ways else 0,
            residual=getattr(c, "residual", False), dropout=c.dropout, dtype=self.dtype,
        )  # fmt: skip

    def __call__(self, source: Array, mask: Array, train: bool) -> Memory:
        embedded = layers.dropout(self, self.embedding(source), self.config.dropout, train)
        states, final = self.stack(embedded, mask, train=train)
        return Memory(layers.dropout(self, states, self.config.dropout, train), mask, final)


class Read(NamedTuple):
    """A memory made ready for a recurrent decoder."""

    states: Array  # [B, S, M]
    keys: Array  # [B, S, ...] what the score compares queries with
    mask: Array  # [B, S]
    carry: tuple[cells.Carry, ...]  # where the decoder starts, one a layer


# ---------------------------------------------------------------------------------- RNNsearch


class SearchState(NamedTuple):
    carry: cells.Carry
    coverage: Array | None  # [B, S] the sum of all alpha so far, where the score sees it


def rnnsearch_step(
    cell: cells.Cell,
    score: attention.Score,
    weights: cells.Weights,
    memory: Read,
    before: SearchState,
    projected: Array,
):
    """One step of the recurrence: projected [B, G*H] -> new SearchState; state [B, H], context [B, M], alpha [B, S]."""
    carry, coverage = before
    keys = memory.keys if coverage is None else attention.covered(weights, memory.keys, coverage)
    context, alpha = attention.attend_batch(score, weights, carry[0], keys, memory.states, memory.mask)
    carry, state = cells.step(cell, weights, carry, projected + context @ weights["context"])
    return SearchState(carry, None if coverage is None else coverage + alpha), (state, context, alpha)


class RNNsearchDecoder(nn.Module):
    """The previous state asks; the context enters the cell and the readout.

    s_0 = tanh(W b_1), b_1 the last state of the backward reading
    c_t = attend(s_{t-1});  s_t = cell(s_{t-1}, [y_{t-1}; c_t]);  t_t = readout(s_t, y_{t-1}, c_t);  logits = W_o t_t
    """

    config: config.RNNsearch
    embedding: layers.Embedding
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        memory, cell = 2 * c.width, cells.CELLS[c.cell]
        gates = cell.shapes(c.embedding, c.width)["input"][1]
        self.score = attention.SCORES["additive"]
        self.bridge = [layers.Dense(c.width, c.width, self.dtype) for _ in range(cell.carries)]
        hidden = c.attention or c.width
        coverage = {"coverage": (hidden,)} if c.coverage else {}
        self.attention = layers.Weights(self.score.shapes(c.width, memory, hidden) | coverage, self.dtype)
        self.cell = layers.cell_weights(c.cell, c.embedding, c.width, self.dtype, context=(memory, gates))
        halves = 2 if c.readout == "maxout" else 1
        self.readout = layers.Dense(c.width + c.embedding + memory, halves * c.embedding, self.dtype)
        self.output = layers.Dense(c.embedding, self.embedding.size, self.dtype)

    def prepare(self, memory: Memory) -> Read:
        backward = [part[:, self.config.width :] for part in memory.final[-1]]
        carry = tuple(jnp.tanh(bridge(part)) for bridge, part in zip(self.bridge, backward))
        return Read(memory.states, self.score.prepare(self.attention(), memory.states), memory.mask, (carry,))

    def start(self, memory: Read, steps: int) -> SearchState:
        unseen = jnp.zeros(memory.mask.shape, attention.at_least_float32(self.dtype))
        return SearchState(memory.carry[0], unseen if self.config.coverage else None)

    def step(self, memory: Read, before: SearchState, token: Array):
        embedded = self.embedding(token)
        weights = self._weights()
        after, (state, context, alpha) = self._move()(weights, memory, before, cells.project(weights, embedded))
        return after, self._logits(state, embedded, context), alpha

    def _weights(self) -> cells.Weights:
        return {**self.cell(), **self.attention()}

    def _move(self):
        return partial(rnnsearch_step, cells.CELLS[self.config.cell], self.score)

    def _logits(self, state: Array, embedded: Array, context: Array, train: bool = False) -> Array:
        hidden = self.readout(jnp.concatenate([state, embedded, context], axis=-1))
        maxout = self.config.readout == "maxout"
        hidden = jnp.maximum(*jnp.split(hidden, 2, axis=-1)) if maxout else jnp.tanh(hidden)
        return self.output.logits(layers.dropout(self, hidden, self.config.dropout, train))

    def __call__(self, memory: Read, inputs: Array, mask: Array, train: bool) -> Array:
        embedded = layers.dropout(self, self.embedding(inputs), self.config.dropout, train)
        weights = self._weights()
        projected = cells.project(weights, embedded.swapaxes(0, 1))  # [T, B, G*H]
        _, (states, contexts, _) = recurrence.scan(self._move(), weights, self.start(memory, 0), projected, memory)
        return self._logits(states.swapaxes(0, 1), embedded, contexts.swapaxes(0, 1), train)


# -------------------------------------------------------------------------------------- Luong


class LuongWeights(NamedTuple):
    """All that a step of the decoder needs, read before the scan begins."""

    cells: list[cells.Weights]
    attention: cells.Weights
    combine: Array  # [2H, H]


class LuongState(NamedTuple):
    carry: tuple[cells.Carry, ...]  # one a layer
    fed: Array  # [B, H] the attentional vector of the step before; zeros at first
    position: Array  # [B] how many tokens are written: where a monotonic window stands


def luong_step(
    kind: cells.Cell, attend: Callable, residual: bool, weights: LuongWeights, memory: Read, state: LuongState, inputs
):
    """One step of the recurrence: projected [B, G*H] -> state; attentional vector [B, H], alpha [B, S].

    inputs: projected, and keep [layers, B, H] or None: dropout's masks, already divided by 1 - rate, for what each
    layer hands on. attend: see `luong_attention`.
    """
    projected, keep = inputs
    if "fed" in weights.cells[0]:
        projected = projected + state.fed @ weights.cells[0]["fed"]
    carries, below = [], state.fed
    for layer, (cell, carry) in enumerate(zip(weights.cells, state.carry)):
        if layer > 0:
            projected = cells.project(cell, below)
        carry, h = cells.step(kind, cell, carry, projected)
        carries.append(carry)
        h = h + below if residual and layer > 0 else h
        below = h if keep is None else h * keep[layer]
    attentional, alpha = attend(attention.attend_batch, weights, memory, below, state.position)
    return LuongState(tuple(carries), attentional, state.position + 1), (attentional, alpha)


def luong_attention(
    score: attention.Score,
    window: local.Window | None,
    radius: int,
    attend: Callable,
    weights: LuongWeights,
    memory: Read,
    states: Array,
    t: Array,
):
    """a = tanh(W_c [c; h]) of one state a sentence, with attend_batch, or of all, with attend_all.

    states [B, ..., H], their times t [B, ...] -> [B, ..., H], alpha [B, ..., S].
    """
    near = local.look(window, radius, weights.attention, states, t, memory.mask) if window else None
    context, alpha = attend(score, weights.attention, states, memory.keys, memory.states, memory.mask, window=near)
    return jnp.tanh(jnp.concatenate([context, states], axis=-1) @ weights.combine), alpha


class LuongDecoder(nn.Module):
    """The current state asks: a_t = tanh(W_c [c_t; h_t]); with input feeding, a_{t-1} enters the first cell.

    It looks at all of the memory, or through a local window: see s2sjax/core/local.py.
    """

    config: config.Luong
    embedding: layers.Embedding
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        self.kind = cells.CELLS[c.cell]
        gates = self.kind.shapes(c.embedding, c.width)["input"][1]
        fed = {"fed": (c.width, gates)} if c.input_feeding else {}
        self.first = layers.cell_weights(c.cell, c.embedding, c.width, self.dtype, **fed)
        self.upper = [layers.cell_weights(c.cell, c.width, c.width, self.dtype) for _ in range(c.layers - 1)]
        self.score = attention.SCORES[c.score]
        self.window = local.WINDOWS.get(c.window)
        pointing = self.window.shapes(c.width) if self.window else {}
        self.attention = layers.Weights(self.score.shapes(c.width, c.width, c.width) | pointing, self.dtype)
        self.combine = layers.Weights({"kernel": (2 * c.width, c.width)}, self.dtype)
        self.output = layers.Dense(c.width, self.embedding.size, self.dtype)

    def prepare(self, memory: Memory) -> Read:
        keys = self.score.prepare(self.attention(), memory.states)
        return Read(memory.states, keys, memory.mask, memory.final)

    def start(self, memory: Read, steps: int) -> LuongState:
        nothing = jnp.zeros_like(memory.carry[-1][0])
        return LuongState(memory.carry, nothing, jnp.zeros(len(nothing), jnp.int32))

    def _weights(self) -> LuongWeights:
        upper = [weights() for weights in self.upper]
        return LuongWeights([self.first(), *upper], self.attention(), self.combine()["kernel"])

    def step(self, memory: Read, state: LuongState, token: Array):
        weights = self._weights()
        projected = cells.project(weights.cells[0], self.embedding(token))
        state, (_, alpha) = self._move()(weights, memory, state, (projected, None))
        return state, self.output.logits(state.fed), alpha

    def _move(self):
        return partial(luong_step, self.kind, self._attend(), self.config.residual)

    def _attend(self):
        return partial(luong_attention, self.score, self.window, self.config.radius)

    def __call__(self, memory: Read, inputs: Array, mask: Array, train: bool) -> Array:
        embedded = layers.dropout(self, self.embedding(inputs), self.config.dropout, train)
        run = self._fed if self.config.input_feeding else self._unfed
        attentional = run(memory, embedded, train)
        return self.output.logits(layers.dropout(self, attentional, self.config.dropout, train))

    def _fed(self, memory: Read, embedded: Array, train: bool) -> Array:
        """Each step waits for the attention of the one before: one scan over everything."""
        weights = self._weights()
        projected = cells.project(weights.cells[0], embedded.swapaxes(0, 1))  # [T, B, G*H]
        steps, rows, _ = projected.shape
        keep = self._keep_masks(steps, rows, train)
        _, (attentional, _) = recurrence.scan(self._move(), weights, self.start(memory, 0), (projected, keep), memory)
        return attentional.swapaxes(0, 1)

    def _unfed(self, memory: Read, embedded: Array, train: bool) -> Array:
        """No step waits for attention: the cells run first, then all queries ask at once."""
        everywhere = jnp.ones(embedded.shape[:2], bool)
        weights, xs = self._weights(), embedded
        for layer, cell in enumerate(weights.cells):
            ys, _ = recurrence.run(self.kind, cell, xs, everywhere, memory.carry[layer])
            ys = ys + xs if self.config.residual and layer > 0 else ys
            xs = layers.dropout(self, ys, self.config.dropout, train)
        t = jnp.broadcast_to(jnp.arange(xs.shape[1]), xs.shape[:2])
        return self._attend()(attention.attend_all, weights, memory, xs, t)[0]

    def _keep_masks(self, steps: int, rows: int, train: bool) -> Array | None:
        rate = self.config.dropout
        if not train or rate == 0:
            return None
        keep = layers.keep_mask(self.make_rng("dropout"), (steps, self.config.layers, rows, self.config.width), rate)
        return keep.astype(self.dtype) / (1 - rate)
