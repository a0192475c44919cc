"""The recurrent encoder, parts shared by recurrent decoders, RNNsearch (Bahdanau et al. 2014) and Luong et al. 2015.

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
from s2sjax.core.products import product
from s2sjax.models.contract import EncoderOutput, Segments, output_layer


class RecurrentEncoder(nn.Module):
    """A stack of recurrent layers over the source, or over the reversed source: see `layers.Recurrent`."""

    config: Any
    """settings with a `recurrent_encoder`: see `config.RecurrentSpec`"""
    inputs: int
    dtype: jnp.dtype
    remat_policy: str = "none"

    def setup(self):
        c = self.config
        self.stack = layers.Recurrent(
            inputs=self.inputs, dropout=c.dropout, dtype=self.dtype, remat_policy=self.remat_policy,
            **c.recurrent_encoder._asdict(),
        )  # fmt: skip

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        c = self.config
        drop = lambda xs: layers.dropout(self, xs, c.dropout, train, c.variational)
        in_order = recurrence.reverse_sequences if c.reverse else lambda xs, mask: xs
        states, final = self.stack(in_order(drop(xs), mask), mask, train=train)
        # Restores the order of the source, so that attention refers to its positions.
        return EncoderOutput(drop(in_order(states, mask)), mask, final)


class BidirectionalEncoder(RecurrentEncoder):
    """A bidirectional stack. The decoder starts from the final backward state of the top layer."""

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        memory = super().__call__(xs, mask, train)
        backward = tuple(part[:, self.config.width :] for part in memory.final[-1])
        return memory._replace(final=(backward,))


class DecoderMemory(NamedTuple):
    """A memory prepared for a recurrent decoder."""

    states: Array  # [B, S, M]
    keys: Array  # [B, S, ...] keys of the score
    mask: Array  # [B, S]
    carry: tuple[cells.Carry, ...]  # initial carry of each decoder layer


def draw_noise(module: nn.Module, cell: cells.Cell, shape: tuple[int, ...], train: bool) -> cells.Noise:
    """Draws the noise of a decoder layer, [T, B, H], with the rates of its configuration: see `layers.draw_noise`."""
    c: Any = module.config  # type: ignore[attr-defined]
    rate = c.dropout if c.variational else 0.0
    return layers.draw_noise(module, cell, shape, rate, c.zoneout, module.dtype, train)  # type: ignore[attr-defined]


def draw_step_noise(module: nn.Module, cell: cells.Cell, shape: tuple[int, int], train: bool) -> cells.Noise:
    """Draws the noise of a decoder layer for one step, [B, H]."""
    return jax.tree.map(lambda leaf: leaf[0], draw_noise(module, cell, (1, *shape), train))


def run_layers(
    module: nn.Module, kind: cells.Cell, weights: Sequence[cells.Weights], carries: Sequence[cells.Carry], xs: Array,
    train: bool, residual: bool = False, context: Array | None = None,
) -> Array:  # fmt: skip
    """Runs the layers of a decoder, each over all time steps before the next: xs [B, T, D] -> [B, T, H].

    Every layer reads the output of the layer below and, if given, context [B, T, M]. With `residual`, layers above the
    first add their input to their output.
    """
    everywhere = jnp.ones(xs.shape[:2], bool)
    c: Any = module.config  # type: ignore[attr-defined]
    policy: str = module.remat_policy  # type: ignore[attr-defined]
    for layer, (cell, carry) in enumerate(zip(weights, carries)):
        inputs = xs if context is None else jnp.concatenate([xs, context], axis=-1)
        noise = draw_noise(module, kind, (*everywhere.T.shape, carry[0].shape[-1]), train)
        ys, _ = recurrence.run(kind, cell, inputs, everywhere, carry, noise=noise, remat_policy=policy)
        ys = ys + xs if residual and layer > 0 else ys
        xs = layers.dropout(module, ys, c.dropout, train, c.variational)
    return xs


def step_layers(
    module: nn.Module, kind: cells.Cell, weights: Sequence[cells.Weights], carries: Sequence[cells.Carry], x: Array,
    train: bool, residual: bool = False, context: Array | None = None,
) -> tuple[tuple[cells.Carry, ...], Array]:  # fmt: skip
    """Runs the layers of a decoder for one step: x [B, D], context [B, M] -> carries, [B, H]."""
    new = []
    for layer, (cell, carry) in enumerate(zip(weights, carries)):
        inputs = x if context is None else jnp.concatenate([x, context], axis=-1)
        carry, y = cells.step(kind, cell, carry, cells.project(cell, inputs))
        y = y + x if residual and layer > 0 else y
        x = layers.dropout(module, y, module.config.dropout, train)  # type: ignore[attr-defined]
        new.append(carry)
    return tuple(new), x


def read_out(kind: str, hidden: Array) -> Array:
    """Applies the nonlinearity before the output layer: tanh, or maxout over pairs (Goodfellow et al. 2013)."""
    return jnp.maximum(*jnp.split(hidden, 2, axis=-1)) if kind == "maxout" else jnp.tanh(hidden)


# ---------------------------------------------------------------------------------- RNNsearch


class SearchWeights(NamedTuple):
    """Weights of one step of RNNsearch."""

    cell: cells.Weights  # including "context" [M, G*H]
    attention: cells.Weights


class SearchState(NamedTuple):
    """State of RNNsearch between steps."""

    carry: cells.Carry
    coverage: Array | None  # [B, S] sum of all alpha so far, if the score uses it


def rnnsearch_step(
    cell: cells.Cell,
    score: attention.AttentionScore,
    weights: SearchWeights,
    memory: DecoderMemory,
    before: SearchState,
    inputs,
):
    """Computes one step: projected [B, G*H] and noise -> SearchState; state [B, H], context [B, M], alpha [B, S]."""
    (carry, coverage), (projected, noise) = before, inputs
    keys = memory.keys if coverage is None else attention.add_coverage(weights.attention, memory.keys, coverage)
    context, alpha = attention.attend_batch(score, weights.attention, carry[0], keys, memory.states, memory.mask)
    carry, state = cells.step(cell, weights.cell, carry, projected + context @ weights.cell["context"], noise)
    return SearchState(carry, None if coverage is None else coverage + alpha), (state, context, alpha)


class RNNsearchDecoder(nn.Module):
    """The query is the previous state; the cell and the readout read the context.

    s_0 = tanh(W b_1), b_1 the final backward state of the encoder
    c_t = attend(s_{t-1});  s_t = cell(s_{t-1}, [y_{t-1}; c_t]);  t_t = readout(s_t, y_{t-1}, c_t);  logits = W_o t_t
    """

    config: config.RNNsearch
    embedding: layers.Embedding
    dtype: jnp.dtype
    remat_policy: str = "none"
    parallel: ClassVar[bool] = False

    def setup(self):
        c = self.config
        tokens, memory, cell = self.embedding.width, 2 * c.width, cells.CELLS[c.cell]
        context = (memory, len(cell.gates) * c.width)
        self.score = attention.SCORES[c.score]
        self.bridge = [layers.Dense(c.width, c.width, self.dtype) for _ in range(cell.carries)]
        compared = c.attention or c.width
        coverage = {"coverage": (compared,)} if c.coverage else {}
        self.attention = layers.Weights(self.score.shapes(c.width, memory, compared) | coverage, self.dtype)
        self.cell = layers.cell_weights(c.cell, tokens, c.width, self.dtype, c.initial, context=context)
        halves, hidden = 2 if c.readout == "maxout" else 1, c.readout_width or c.embedding
        self.readout = layers.Dense(c.width + tokens + memory, halves * hidden, self.dtype)
        self.output = output_layer(c, self.embedding, hidden, self.dtype)

    def prepare(self, memory: EncoderOutput) -> DecoderMemory:
        carry = tuple(jnp.tanh(bridge(part)) for bridge, part in zip(self.bridge, memory.final[-1]))
        return DecoderMemory(memory.states, self.score.prepare(self.attention(), memory.states), memory.mask, (carry,))

    def start(self, memory: DecoderMemory, steps: int) -> SearchState:
        unseen = jnp.zeros(memory.mask.shape, attention.at_least_float32(self.dtype))
        return SearchState(memory.carry[0], unseen if self.config.coverage else None)

    def step(self, memory: DecoderMemory, before: SearchState, token: Array, train: bool = False):
        embedded = layers.dropout(self, self.embedding(token), self.config.dropout, train)
        weights, cell = self._weights(), cells.CELLS[self.config.cell]
        inputs = (
            cells.project(weights.cell, embedded),
            draw_step_noise(self, cell, (len(token), self.config.width), train),
        )
        after, (state, context, alpha) = self._step()(weights, memory, before, inputs)
        return after, self.output.logits(self._readout(state, embedded, context, train)), alpha

    def _weights(self) -> SearchWeights:
        return SearchWeights(self.cell(), self.attention())

    def _step(self):
        return partial(rnnsearch_step, cells.CELLS[self.config.cell], self.score)

    def _readout(self, state: Array, embedded: Array, context: Array, train: bool) -> Array:
        hidden = read_out(self.config.readout, self.readout(jnp.concatenate([state, embedded, context], axis=-1)))
        return layers.dropout(self, hidden, self.config.dropout, train, self.config.variational and hidden.ndim == 3)

    def hidden(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool, segments: Segments = None
    ) -> Array:
        return self.hidden_and_attention(memory, inputs, mask, train)[0]

    def hidden_and_attention(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool
    ) -> tuple[Array, Array]:
        c = self.config
        embedded = layers.dropout(self, self.embedding(inputs), c.dropout, train, c.variational)
        weights = self._weights()
        projected = cells.project(weights.cell, embedded.swapaxes(0, 1))  # [T, B, G*H]
        xs = projected, draw_noise(self, cells.CELLS[c.cell], (*projected.shape[:2], c.width), train)
        _, (states, contexts, alphas) = recurrence.scan(
            self._step(), weights, self.start(memory, 0), xs, memory, remat_policy=self.remat_policy
        )
        hidden = self._readout(states.swapaxes(0, 1), embedded, contexts.swapaxes(0, 1), train)
        return hidden, alphas.swapaxes(0, 1)


# -------------------------------------------------------------------------------------- Luong


class LuongWeights(NamedTuple):
    """Weights of one step of the decoder, read before the scan."""

    cells: list[cells.Weights]
    attention: cells.Weights
    combine: Array  # [2H, H]


class LuongState(NamedTuple):
    """State of the decoder between steps."""

    carry: tuple[cells.Carry, ...]  # one per layer
    fed: Array  # [B, H] attentional vector of the previous step; initially zeros
    position: Array  # [B] number of tokens written so far: the centre of a monotonic window


def luong_step(
    kind: cells.Cell, attend: Callable, residual: bool, weights: LuongWeights, memory: DecoderMemory,
    state: LuongState, inputs,
):  # fmt: skip
    """Computes one step: projected [B, G*H] -> LuongState; attentional vector [B, H], alpha [B, S].

    attend: see `luong_attention`
    inputs: projected, dropout masks [B, H] of each layer's output divided by 1 - rate, or None, and each layer's noise
    """
    projected, keep, noise = inputs
    if "fed" in weights.cells[0]:
        projected = projected + state.fed @ weights.cells[0]["fed"]
    carries, below = [], state.fed
    for layer, (cell, carry) in enumerate(zip(weights.cells, state.carry)):
        if layer > 0:
            projected = cells.project(cell, below)
        carry, h = cells.step(kind, cell, carry, projected, noise[layer])
        carries.append(carry)
        h = h + below if residual and layer > 0 else h
        below = h if keep is None else h * keep[layer]
    attentional, alpha = attend(attention.attend_batch, weights, memory, below, state.position)
    return LuongState(tuple(carries), attentional, state.position + 1), (attentional, alpha)


def luong_attention(
    score: attention.AttentionScore, window: local.Window | None, radius: int, attend: Callable, weights: LuongWeights,
    memory: DecoderMemory, states: Array, t: Array,
):  # fmt: skip
    """Computes a = tanh(W_c [c; h]) for one state per sentence with attend_batch, or for all states with attend_all.

    states [B, ..., H] at time steps t [B, ...] -> [B, ..., H], alpha [B, ..., S].
    """
    near = local.window_weights(window, radius, weights.attention, states, t, memory.mask) if window else None
    context, alpha = attend(score, weights.attention, states, memory.keys, memory.states, memory.mask, window=near)
    return jnp.tanh(product(jnp.concatenate([context, states], axis=-1), weights.combine)), alpha


class LuongDecoder(nn.Module):
    """The query is the current state: a_t = tanh(W_c [c_t; h_t]). With input feeding, the first cell reads a_{t-1}.

    Attends to the whole memory, or to a local window: see s2sjax/core/local.py.
    """

    config: config.Luong
    embedding: layers.Embedding
    dtype: jnp.dtype
    remat_policy: str = "none"
    parallel: ClassVar[bool] = False

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

    def prepare(self, memory: EncoderOutput) -> DecoderMemory:
        keys = self.score.prepare(self.attention(), memory.states)
        return DecoderMemory(memory.states, keys, memory.mask, memory.final)

    def start(self, memory: DecoderMemory, steps: int) -> LuongState:
        nothing = jnp.zeros_like(memory.carry[-1][0])
        return LuongState(memory.carry, nothing, jnp.zeros(len(nothing), jnp.int32))

    def _weights(self) -> LuongWeights:
        upper = [weights() for weights in self.upper]
        return LuongWeights([self.first(), *upper], self.attention(), self.combine()["kernel"])

    def step(self, memory: DecoderMemory, state: LuongState, token: Array, train: bool = False):
        weights = self._weights()
        rate = self.config.dropout
        embedded = layers.dropout(self, self.embedding(token), rate, train)
        shapes = [(len(token), width) for width in self.widths]
        keep = None
        if train and rate > 0:
            keep = tuple(layers.dropout(self, jnp.ones(shape, self.dtype), rate, train) for shape in shapes)
        noise = tuple(draw_step_noise(self, self.kind, shape, train) for shape in shapes)
        inputs = cells.project(weights.cells[0], embedded), keep, noise
        state, (attentional, alpha) = self._step()(weights, memory, state, inputs)
        return state, self.output.logits(layers.dropout(self, attentional, rate, train)), alpha

    def _step(self):
        return partial(luong_step, self.kind, self._attend(), self.config.residual)

    def _attend(self):
        return partial(luong_attention, self.score, self.window, self.config.radius)

    def hidden(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool, segments: Segments = None
    ) -> Array:
        return self.hidden_and_attention(memory, inputs, mask, train)[0]

    def hidden_and_attention(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool
    ) -> tuple[Array, Array]:
        c = self.config
        embedded = layers.dropout(self, self.embedding(inputs), c.dropout, train, c.variational)
        attentional, alpha = (self._fed if c.input_feeding else self._unfed)(memory, embedded, train)
        return layers.dropout(self, attentional, c.dropout, train, c.variational), alpha

    def _fed(self, memory: DecoderMemory, embedded: Array, train: bool) -> tuple[Array, Array]:
        """With input feeding, each step depends on the previous attention: one scan over all."""
        weights = self._weights()
        projected = cells.project(weights.cells[0], embedded.swapaxes(0, 1))  # [T, B, G*H]
        shapes = [(*projected.shape[:2], width) for width in self.widths]
        xs = (
            projected,
            self._keep_masks(shapes, train),
            tuple(draw_noise(self, self.kind, one, train) for one in shapes),
        )
        _, (attentional, alphas) = recurrence.scan(
            self._step(), weights, self.start(memory, 0), xs, memory, remat_policy=self.remat_policy
        )
        return attentional.swapaxes(0, 1), alphas.swapaxes(0, 1)

    def _unfed(self, memory: DecoderMemory, embedded: Array, train: bool) -> tuple[Array, Array]:
        """Without input feeding, the cells run first, then all steps attend in parallel."""
        weights = self._weights()
        xs = run_layers(self, self.kind, weights.cells, memory.carry, embedded, train, self.config.residual)
        t = jnp.broadcast_to(jnp.arange(xs.shape[1]), xs.shape[:2])
        return self._attend()(attention.attend_all, weights, memory, xs, t)

    def _keep_masks(self, shapes: list[tuple[int, ...]], train: bool) -> tuple[Array, ...] | None:
        """Draws the dropout multipliers of each layer's outputs, [T, B, H], or None."""
        c = self.config
        if not train or c.dropout == 0:
            return None
        ones = [jnp.ones((rows, steps, width), self.dtype) for steps, rows, width in shapes]
        return tuple(layers.dropout(self, one, c.dropout, train, c.variational).swapaxes(0, 1) for one in ones)
