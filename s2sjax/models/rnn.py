"""The recurrent encoder and what recurrent decoders share; RNNsearch (Bahdanau et al. 2014) and Luong et al. 2015.

Letters: B batch, S source positions, T target positions, E embedding, H state width, M memory width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core import attention, cells, local, recurrence
from s2sjax.models.contract import Memory, output_layer


class RecurrentEncoder(nn.Module):
    """A stack of cells over the source, which it may read from the end; see `layers.Recurrent`."""

    config: config.Cho | config.Sutskever | config.RNNsearch | config.Luong | config.LSTMDense
    inputs: int
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        shape: dict
        match c:
            case config.RNNsearch():  # each direction has the full width: the memory is twice as wide as the decoder
                shape = dict(width=2 * c.width, layers=c.encoder_layers, bidirectional=c.encoder_layers)
            case config.Luong():
                both_ways = c.layers if c.bidirectional else 0
                shape = dict(width=c.widths or c.width, layers=c.layers, bidirectional=both_ways, residual=c.residual)
                shape |= dict(join=c.join)
            case config.LSTMDense():
                shape = dict(width=c.width, layers=c.layers, bidirectional=c.layers)
            case config.Sutskever():
                shape = dict(width=c.width, layers=c.layers)
            case config.Cho():
                shape = dict(width=c.width, layers=1)
        if isinstance(c, config.RNNsearch | config.Luong):
            shape |= dict(initial=c.initial, variational=c.variational, zoneout=c.zoneout)
        self.stack = layers.Recurrent(c.cell, inputs=self.inputs, dropout=c.dropout, dtype=self.dtype, **shape)

    def __call__(self, xs: Array, mask: Array, train: bool) -> Memory:
        c = self.config
        once = getattr(c, "variational", False)
        turn = recurrence.turned if getattr(c, "reverse", False) else lambda xs, mask: xs
        xs = layers.dropout(self, xs, c.dropout, train, once)
        states, final = self.stack(turn(xs, mask), mask, train=train)
        if isinstance(c, config.RNNsearch):
            final = (tuple(part[:, c.width :] for part in final[-1]),)  # of the backward reading
        # In the order of the source again, so that attention points at its words.
        return Memory(layers.dropout(self, turn(states, mask), c.dropout, train, once), mask, final)


class Read(NamedTuple):
    """A memory made ready for a recurrent decoder."""

    states: Array  # [B, S, M]
    keys: Array  # [B, S, ...] what the score compares queries with
    mask: Array  # [B, S]
    carry: tuple[cells.Carry, ...]  # where the decoder starts, one a layer


def noise(module: nn.Module, cell: cells.Cell, shape: tuple[int, ...], train: bool) -> cells.Noise:
    """What the decoder's configuration has disturb one of its layers, [T, B, H]: see `layers.noise`."""
    c: Any = module.config  # type: ignore[attr-defined]
    rate = c.dropout if getattr(c, "variational", False) else 0.0
    return layers.noise(module, cell, shape, rate, getattr(c, "zoneout", 0.0), module.dtype, train)  # type: ignore[attr-defined]


def step_noise(module: nn.Module, cell: cells.Cell, shape: tuple[int, int], train: bool) -> cells.Noise:
    """The same for one step, [B, H]."""
    return jax.tree.map(lambda leaf: leaf[0], noise(module, cell, (1, *shape), train))


def run_layers(
    module: nn.Module, kind: cells.Cell, weights: Sequence[cells.Weights], carries: Sequence[cells.Carry], xs: Array,
    train: bool, residual: bool = False, context: Array | None = None,
) -> Array:  # fmt: skip
    """A decoder's layers, each over all of time before the next: xs [B, T, D] -> [B, T, H].

    context [B, T, M] enters every layer beside what is below; with `residual`, layers above the first add to that.
    """
    everywhere = jnp.ones(xs.shape[:2], bool)
    once = getattr(module.config, "variational", False)  # type: ignore[attr-defined]
    for layer, (cell, carry) in enumerate(zip(weights, carries)):
        inputs = xs if context is None else jnp.concatenate([xs, context], axis=-1)
        disturbed = noise(module, kind, (*everywhere.T.shape, carry[0].shape[-1]), train)
        ys, _ = recurrence.run(kind, cell, inputs, everywhere, carry, noise=disturbed, kept=layers.kept(module))
        ys = ys + xs if residual and layer > 0 else ys
        xs = layers.dropout(module, ys, module.config.dropout, train, once)  # type: ignore[attr-defined]
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


class SearchState(NamedTuple):
    carry: cells.Carry
    coverage: Array | None  # [B, S] the sum of all alpha so far, where the score sees it


def rnnsearch_step(
    cell: cells.Cell, score: attention.Score, weights: cells.Weights, memory: Read, before: SearchState, inputs
):
    """One step: projected [B, G*H] and noise -> new SearchState; state [B, H], context [B, M], alpha [B, S]."""
    (carry, coverage), (projected, disturbed) = before, inputs
    keys = memory.keys if coverage is None else attention.covered(weights, memory.keys, coverage)
    context, alpha = attention.attend_batch(score, weights, carry[0], keys, memory.states, memory.mask)
    carry, state = cells.step(cell, weights, carry, projected + context @ weights["context"], disturbed)
    return SearchState(carry, None if coverage is None else coverage + alpha), (state, context, alpha)


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
        context = (memory, len(cell.gates) * c.width)
        self.score = attention.SCORES["additive"]
        self.bridge = [layers.Dense(c.width, c.width, self.dtype) for _ in range(cell.carries)]
        asked = c.attention or c.width
        coverage = {"coverage": (asked,)} if c.coverage else {}
        self.attention = layers.Weights(self.score.shapes(c.width, memory, asked) | coverage, self.dtype)
        self.cell = layers.cell_weights(c.cell, tokens, c.width, self.dtype, c.initial, context=context)
        halves, hidden = 2 if c.readout == "maxout" else 1, c.readout_width or c.embedding
        self.readout = layers.Dense(c.width + tokens + memory, halves * hidden, self.dtype)
        self.output = output_layer(c, self.embedding, hidden, self.dtype)

    def prepare(self, memory: Memory) -> Read:
        carry = tuple(jnp.tanh(bridge(part)) for bridge, part in zip(self.bridge, memory.final[-1]))
        return Read(memory.states, self.score.prepare(self.attention(), memory.states), memory.mask, (carry,))

    def start(self, memory: Read, steps: int) -> SearchState:
        unseen = jnp.zeros(memory.mask.shape, attention.at_least_float32(self.dtype))
        return SearchState(memory.carry[0], unseen if self.config.coverage else None)

    def step(self, memory: Read, before: SearchState, token: Array, train: bool = False):
        embedded = layers.dropout(self, self.embedding(token), self.config.dropout, train)
        weights, cell = self._weights(), cells.CELLS[self.config.cell]
        inputs = cells.project(weights, embedded), step_noise(self, cell, (len(token), self.config.width), train)
        after, (state, context, alpha) = self._move()(weights, memory, before, inputs)
        return after, self.output.logits(self._readout(state, embedded, context, train)), alpha

    def _weights(self) -> cells.Weights:
        return {**self.cell(), **self.attention()}

    def _move(self):
        return partial(rnnsearch_step, cells.CELLS[self.config.cell], self.score)

    def _readout(self, state: Array, embedded: Array, context: Array, train: bool) -> Array:
        hidden = read_out(self.config.readout, self.readout(jnp.concatenate([state, embedded, context], axis=-1)))
        return layers.dropout(self, hidden, self.config.dropout, train, self.config.variational and hidden.ndim == 3)

    def hidden(self, memory: Read, inputs: Array, mask: Array, train: bool) -> Array:
        c = self.config
        embedded = layers.dropout(self, self.embedding(inputs), c.dropout, train, c.variational)
        weights = self._weights()
        projected = cells.project(weights, embedded.swapaxes(0, 1))  # [T, B, G*H]
        disturbed = noise(self, cells.CELLS[c.cell], (*projected.shape[:2], c.width), train)
        xs = projected, disturbed
        kept = layers.kept(self)
        _, (states, contexts, _) = recurrence.scan(self._move(), weights, self.start(memory, 0), xs, memory, kept=kept)
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
    position: Array  # [B] how many tokens are written: where a monotonic window stands


def luong_step(
    kind: cells.Cell, attend: Callable, residual: bool, weights: LuongWeights, memory: Read, state: LuongState, inputs
):
    """One step of the recurrence: projected [B, G*H] -> state; attentional vector [B, H], alpha [B, S].

    inputs: projected; dropout's masks [B, H] of what each layer hands on, already divided by 1 - rate, or None; and
    the noise of each layer. attend: see `luong_attention`.
    """
    projected, keep, disturbed = inputs
    if "fed" in weights.cells[0]:
        projected = projected + state.fed @ weights.cells[0]["fed"]
    carries, below = [], state.fed
    for layer, (cell, carry) in enumerate(zip(weights.cells, state.carry)):
        if layer > 0:
            projected = cells.project(cell, below)
        carry, h = cells.step(kind, cell, carry, projected, disturbed[layer])
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
    parallel: ClassVar = False

    def setup(self):
        c = self.config
        self.kind = cells.CELLS[c.cell]
        self.widths = c.widths or (c.width,) * c.layers
        fed = {"fed": (c.width, len(self.kind.gates) * self.widths[0])} if c.input_feeding else {}
        self.first = layers.cell_weights(c.cell, self.embedding.width, self.widths[0], self.dtype, c.initial, **fed)
        self.upper = [
            layers.cell_weights(c.cell, below, width, self.dtype, c.initial)
            for below, width in zip(self.widths, self.widths[1:])
        ]
        self.score = attention.SCORES[c.score]
        self.window = local.WINDOWS.get(c.window)
        pointing = self.window.shapes(c.width) if self.window else {}
        self.attention = layers.Weights(self.score.shapes(c.width, c.width, c.width) | pointing, self.dtype)
        self.combine = layers.Weights({"kernel": (2 * c.width, c.width)}, self.dtype)
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def prepare(self, memory: Memory) -> Read:
        keys = self.score.prepare(self.attention(), memory.states)
        return Read(memory.states, keys, memory.mask, memory.final)

    def start(self, memory: Read, steps: int) -> LuongState:
        nothing = jnp.zeros_like(memory.carry[-1][0])
        return LuongState(memory.carry, nothing, jnp.zeros(len(nothing), jnp.int32))

    def _weights(self) -> LuongWeights:
        upper = [weights() for weights in self.upper]
        return LuongWeights([self.first(), *upper], self.attention(), self.combine()["kernel"])

    def step(self, memory: Read, state: LuongState, token: Array, train: bool = False):
        weights = self._weights()
        rate = self.config.dropout
        embedded = layers.dropout(self, self.embedding(token), rate, train)
        shapes = [(len(token), width) for width in self.widths]
        keep = None
        if train and rate > 0:
            keep = tuple(layers.dropout(self, jnp.ones(shape, self.dtype), rate, train) for shape in shapes)
        disturbed = tuple(step_noise(self, self.kind, shape, train) for shape in shapes)
        inputs = cells.project(weights.cells[0], embedded), keep, disturbed
        state, (attentional, alpha) = self._move()(weights, memory, state, inputs)
        return state, self.output.logits(layers.dropout(self, attentional, rate, train)), alpha

    def _move(self):
        return partial(luong_step, self.kind, self._attend(), self.config.residual)

    def _attend(self):
        return partial(luong_attention, self.score, self.window, self.config.radius)

    def hidden(self, memory: Read, inputs: Array, mask: Array, train: bool) -> Array:
        c = self.config
        embedded = layers.dropout(self, self.embedding(inputs), c.dropout, train, c.variational)
        run = self._fed if c.input_feeding else self._unfed
        return layers.dropout(self, run(memory, embedded, train), c.dropout, train, c.variational)

    def _fed(self, memory: Read, embedded: Array, train: bool) -> Array:
        """Each step waits for the attention of the one before: one scan over everything."""
        weights = self._weights()
        projected = cells.project(weights.cells[0], embedded.swapaxes(0, 1))  # [T, B, G*H]
        shapes = [(*projected.shape[:2], width) for width in self.widths]
        xs = projected, self._keep_masks(shapes, train), tuple(noise(self, self.kind, one, train) for one in shapes)
        kept = layers.kept(self)
        _, (attentional, _) = recurrence.scan(self._move(), weights, self.start(memory, 0), xs, memory, kept=kept)
        return attentional.swapaxes(0, 1)

    def _unfed(self, memory: Read, embedded: Array, train: bool) -> Array:
        """No step waits for attention: the cells run first, then all queries ask at once."""
        weights = self._weights()
        xs = run_layers(self, self.kind, weights.cells, memory.carry, embedded, train, self.config.residual)
        t = jnp.broadcast_to(jnp.arange(xs.shape[1]), xs.shape[:2])
        return self._attend()(attention.attend_all, weights, memory, xs, t)[0]

    def _keep_masks(self, shapes: list[tuple[int, ...]], train: bool) -> tuple[Array, ...] | None:
        """Dropout of ones: what multiplies the outputs of each layer, [T, B, H]."""
        c = self.config
        if not train or c.dropout == 0:
            return None
        ones = [jnp.ones((rows, steps, width), self.dtype) for steps, rows, width in shapes]
        return tuple(layers.dropout(self, one, c.dropout, train, c.variational).swapaxes(0, 1) for one in ones)
