"""The recurrent encoder and what recurrent decoders share; RNNsearch (Bahdanau et al. 2014) and Luong et al. 2015.

Letters: B batch, S source positions, T target positions, E embedding, H state width, M memory width, V vocabulary.
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core import attention, cells, recurrence
from s2sjax.models.contract import Memory, output_layer


class RecurrentEncoder(nn.Module):
    """A stack of cells over the embedded source, which it may read from the end; see `layers.Recurrent`."""

    config: config.Cho | config.Sutskever | config.RNNsearch | config.Luong | config.LSTMDense
    embedding: layers.Embedding
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        shape: dict
        match c:
            case config.RNNsearch():  # each direction has the full width: the memory is twice as wide as the decoder
                shape = dict(width=2 * c.width, layers=c.encoder_layers, bidirectional=c.encoder_layers)
            case config.Luong():
                both_ways = c.layers if c.bidirectional else 0
                shape = dict(width=c.width, layers=c.layers, bidirectional=both_ways, residual=c.residual)
            case config.LSTMDense():
                shape = dict(width=c.width, layers=c.layers, bidirectional=c.layers)
            case config.Sutskever():
                shape = dict(width=c.width, layers=c.layers)
            case config.Cho():
                shape = dict(width=c.width, layers=1)
        self.stack = layers.Recurrent(c.cell, inputs=self.embedding.width, dropout=c.dropout, dtype=self.dtype, **shape)

    def __call__(self, source: Array, mask: Array, train: bool) -> Memory:
        c = self.config
        turn = recurrence.turned if getattr(c, "reverse", False) else lambda xs, mask: xs
        embedded = layers.dropout(self, self.embedding(source), c.dropout, train)
        states, final = self.stack(turn(embedded, mask), mask, train=train)
        if isinstance(c, config.RNNsearch):
            final = (tuple(part[:, c.width :] for part in final[-1]),)  # of the backward reading
        # In the order of the source again, so that attention points at its words.
        return Memory(layers.dropout(self, turn(states, mask), c.dropout, train), mask, final)


class Read(NamedTuple):
    """A memory made ready for a recurrent decoder."""

    states: Array  # [B, S, M]
    keys: Array  # [B, S, ...] what the score compares queries with
    mask: Array  # [B, S]
    carry: tuple[cells.Carry, ...]  # where the decoder starts, one a layer


def run_layers(
    module: nn.Module, kind: cells.Cell, weights: Sequence[cells.Weights], carries: Sequence[cells.Carry], xs: Array,
    train: bool, residual: bool = False, context: Array | None = None,
) -> Array:  # fmt: skip
    """A decoder's layers, each over all of time before the next: xs [B, T, D] -> [B, T, H].

    context [B, T, M] enters every layer beside what is below; with `residual`, layers above the first add to that.
    """
    everywhere = jnp.ones(xs.shape[:2], bool)
    for layer, (cell, carry) in enumerate(zip(weights, carries)):
        inputs = xs if context is None else jnp.concatenate([xs, context], axis=-1)
        ys, _ = recurrence.run(kind, cell, inputs, everywhere, carry)
        ys = ys + xs if residual and layer > 0 else ys
        xs = layers.dropout(module, ys, module.config.dropout, train)  # type: ignore[attr-defined]
    return xs


def step_layers(
    module: nn.Module, kind: cells.Cell, weights: Sequence[cells.Weights], carries: Sequence[cells.Carry], x: Array,
    train: bool, residual: bool = False, context: Array | None = None,
) -> tuple[tuple[cells.Carry, ...], Array]:  # fmt: skip
    """The same for one step: x [B, D], context [B, M] -> carries, [B, H]."""
    new = []
    for layer, (cell, carry) in enumerate(zip(weights, carries)):
        inputs = x if context is None else jnp.concatenate([x, context], axis=-1)
        carry, y = cells.step(kind, cell, carry, cells.project(cell, inputs))
        y = y + x if residual and layer > 0 else y
        x = layers.dropout(module, y, module.config.dropout, train)  # type: ignore[attr-defined]
        new.append(carry)
    return tuple(new), x


def read_out(kind: str, hidden: Array) -> Array:
    """The curve of a hidden layer before the output: tanh, or the larger of each pair (Goodfellow et al. 2013)."""
    return jnp.maximum(*jnp.split(hidden, 2, axis=-1)) if kind == "maxout" else jnp.tanh(hidden)


# ---------------------------------------------------------------------------------- RNNsearch


def rnnsearch_step(
    cell: cells.Cell, score: attention.Score, weights: cells.Weights, memory: Read, carry: cells.Carry, projected: Array
):
    """One step of the recurrence: projected [B, G*H] -> carry; state [B, H], context [B, M], alpha [B, S]."""
    context, alpha = attention.attend_batch(score, weights, carry[0], memory.keys, memory.states, memory.mask)
    carry, state = cells.step(cell, weights, carry, projected + context @ weights["context"])
    return carry, (state, context, alpha)


class RNNsearchDecoder(nn.Module):
    """The previous state asks; the context enters the cell and the readout.

    s_0 = tanh(W b_1), b_1 the last state of the backward reading
    c_t = attend(s_{t-1});  s_t = cell(s_{t-1}, [y_{t-1}; c_t]);  t_t = readout(s_t, y_{t-1}, c_t);  logits = W_o t_t
    """

    config: config.RNNsearch
    embedding: layers.Embedding
    dtype: jnp.dtype
    parallel: ClassVar = False

    def setup(self):
        c = self.config
        tokens, memory, cell = self.embedding.width, 2 * c.width, cells.CELLS[c.cell]
        gates = cell.shapes(tokens, c.width)["input"][1]
        self.score = attention.SCORES["additive"]
        self.bridge = [layers.Dense(c.width, c.width, self.dtype) for _ in range(cell.carries)]
        self.attention = layers.Weights(self.score.shapes(c.width, memory, c.attention or c.width), self.dtype)
        self.cell = layers.cell_weights(c.cell, tokens, c.width, self.dtype, context=(memory, gates))
        halves, hidden = 2 if c.readout == "maxout" else 1, c.readout_width or c.embedding
        self.readout = layers.Dense(c.width + tokens + memory, halves * hidden, self.dtype)
        self.output = output_layer(c, self.embedding, hidden, self.dtype)

    def prepare(self, memory: Memory) -> Read:
        carry = tuple(jnp.tanh(bridge(part)) for bridge, part in zip(self.bridge, memory.final[-1]))
        return Read(memory.states, self.score.prepare(self.attention(), memory.states), memory.mask, (carry,))

    def start(self, memory: Read, steps: int) -> cells.Carry:
        return memory.carry[0]

    def step(self, memory: Read, carry: cells.Carry, token: Array, train: bool = False):
        embedded = layers.dropout(self, self.embedding(token), self.config.dropout, train)
        weights = self._weights()
        carry, (state, context, alpha) = self._move()(weights, memory, carry, cells.project(weights, embedded))
        return carry, self.output.logits(self._readout(state, embedded, context, train)), alpha

    def _weights(self) -> cells.Weights:
        return {**self.cell(), **self.attention()}

    def _move(self):
        return partial(rnnsearch_step, cells.CELLS[self.config.cell], self.score)

    def _readout(self, state: Array, embedded: Array, context: Array, train: bool) -> Array:
        hidden = read_out(self.config.readout, self.readout(jnp.concatenate([state, embedded, context], axis=-1)))
        return layers.dropout(self, hidden, self.config.dropout, train)

    def hidden(self, memory: Read, inputs: Array, mask: Array, train: bool) -> Array:
        embedded = layers.dropout(self, self.embedding(inputs), self.config.dropout, train)
        weights = self._weights()
        projected = cells.project(weights, embedded.swapaxes(0, 1))  # [T, B, G*H]
        _, (states, contexts, _) = recurrence.scan(self._move(), weights, memory.carry[0], projected, memory)
        return self._readout(states.swapaxes(0, 1), embedded, contexts.swapaxes(0, 1), train)


# -------------------------------------------------------------------------------------- Luong


class LuongWeights(NamedTuple):
    """All that a step of the decoder needs, read before the scan begins."""

    cells: list[cells.Weights]
    attention: cells.Weights
    combine: Array  # [2H, H]


class LuongState(NamedTuple):
    carry: tuple[cells.Carry, ...]  # one a layer
    fed: Array  # [B, H] the attentional vector of the step before; zeros at first


def luong_step(
    kind: cells.Cell,
    score: attention.Score,
    residual: bool,
    weights: LuongWeights,
    memory: Read,
    state: LuongState,
    inputs,
):
    """One step of the recurrence: projected [B, G*H] -> state; attentional vector [B, H], alpha [B, S].

    inputs: projected, and keep [layers, B, H] or None: dropout's masks, already divided by 1 - rate, for what each
    layer hands on.
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
    attentional, alpha = luong_attention(score, attention.attend_batch, weights, memory, below)
    return LuongState(tuple(carries), attentional), (attentional, alpha)


def luong_attention(score: attention.Score, attend, weights: LuongWeights, memory: Read, states: Array):
    """a = tanh(W_c [c; h]) of one state a sentence or of all: [B, ..., H] -> [B, ..., H], alpha [B, ..., S]."""
    context, alpha = attend(score, weights.attention, states, memory.keys, memory.states, memory.mask)
    return jnp.tanh(jnp.concatenate([context, states], axis=-1) @ weights.combine), alpha


class LuongDecoder(nn.Module):
    """The current state asks: a_t = tanh(W_c [c_t; h_t]); with input feeding, a_{t-1} enters the first cell."""

    config: config.Luong
    embedding: layers.Embedding
    dtype: jnp.dtype
    parallel: ClassVar = False

    def setup(self):
        c = self.config
        self.kind = cells.CELLS[c.cell]
        tokens = self.embedding.width
        gates = self.kind.shapes(tokens, c.width)["input"][1]
        fed = {"fed": (c.width, gates)} if c.input_feeding else {}
        self.first = layers.cell_weights(c.cell, tokens, c.width, self.dtype, **fed)
        self.upper = [layers.cell_weights(c.cell, c.width, c.width, self.dtype) for _ in range(c.layers - 1)]
        self.score = attention.SCORES[c.score]
        self.attention = layers.Weights(self.score.shapes(c.width, c.width, c.width), self.dtype)
        self.combine = layers.Weights({"kernel": (2 * c.width, c.width)}, self.dtype)
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def prepare(self, memory: Memory) -> Read:
        keys = self.score.prepare(self.attention(), memory.states)
        return Read(memory.states, keys, memory.mask, memory.final)

    def start(self, memory: Read, steps: int) -> LuongState:
        return LuongState(memory.carry, jnp.zeros_like(memory.carry[-1][0]))

    def _weights(self) -> LuongWeights:
        upper = [weights() for weights in self.upper]
        return LuongWeights([self.first(), *upper], self.attention(), self.combine()["kernel"])

    def step(self, memory: Read, state: LuongState, token: Array, train: bool = False):
        weights = self._weights()
        embedded = layers.dropout(self, self.embedding(token), self.config.dropout, train)
        keep = self._keep_masks(1, len(token), train)
        inputs = cells.project(weights.cells[0], embedded), None if keep is None else keep[0]
        state, (attentional, alpha) = self._move()(weights, memory, state, inputs)
        return state, self.output.logits(layers.dropout(self, attentional, self.config.dropout, train)), alpha

    def _move(self):
        return partial(luong_step, self.kind, self.score, self.config.residual)

    def hidden(self, memory: Read, inputs: Array, mask: Array, train: bool) -> Array:
        embedded = layers.dropout(self, self.embedding(inputs), self.config.dropout, train)
        run = self._fed if self.config.input_feeding else self._unfed
        return layers.dropout(self, run(memory, embedded, train), self.config.dropout, train)

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
        weights = self._weights()
        xs = run_layers(self, self.kind, weights.cells, memory.carry, embedded, train, self.config.residual)
        return luong_attention(self.score, attention.attend_all, weights, memory, xs)[0]

    def _keep_masks(self, steps: int, rows: int, train: bool) -> Array | None:
        rate = self.config.dropout
        if not train or rate == 0:
            return None
        keep = layers.keep_mask(self.make_rng("dropout"), (steps, self.config.layers, rows, self.config.width), rate)
        return keep.astype(self.dtype) / (1 - rate)
