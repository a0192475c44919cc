"""The decoder of Luong et al. (2015), which attends after each step.

Letters: B batch, S source positions, T target positions, E embedding, H state width, M memory width, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core import attention, recurrence
from s2sjax.core.attention import local_window
from s2sjax.core.backend.matmul import product
from s2sjax.core.recurrence import cells
from s2sjax.models.encoder_decoder import EncoderOutput, output_layer
from s2sjax.models.families.recurrent_parts import (
    AttentionDecoder,
    DecoderMemory,
    draw_noise,
    draw_step_noise,
    run_layers,
)


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
    score: attention.AttentionScore, window: local_window.Window | None, radius: int, attend: Callable,
    weights: LuongWeights, memory: DecoderMemory, states: Array, t: Array,
):  # fmt: skip
    """Computes a = tanh(W_c [c; h]) for one state per sentence with attend_batch, or for all states with attend_all.

    states [B, ..., H] at time steps t [B, ...] -> [B, ..., H], alpha [B, ..., S].
    """
    near = local_window.window_weights(window, radius, weights.attention, states, t, memory.mask) if window else None
    context, alpha = attend(score, weights.attention, states, memory.keys, memory.states, memory.mask, window=near)
    return jnp.tanh(product(jnp.concatenate([context, states], axis=-1), weights.combine)), alpha


class LuongDecoder(AttentionDecoder):
    """The query is the current state: a_t = tanh(W_c [c_t; h_t]). With input feeding, the first cell reads a_{t-1}.

    Attends to the whole memory, or to a local window: see s2sjax/core/attention/local_window.py.
    """

    config: config.Luong

    def setup(self):
        c = self.config
        self.kind = cells.CELLS[c.cell]
        self.widths = c.widths or (c.width,) * c.layers
        fed = {"fed": (c.width, len(self.kind.gates) * self.widths[0])} if c.input_feeding else {}
        self.first = layers.cell_weights(
            c.cell, self.embedding.width, self.widths[0], self.dtype, c.recurrent_init, **fed
        )
        self.upper = [
            layers.cell_weights(c.cell, below, width, self.dtype, c.recurrent_init)
            for below, width in zip(self.widths, self.widths[1:])
        ]
        self.score = attention.SCORES[c.score]
        self.window = local_window.WINDOWS.get(c.window)
        pointing = self.window.shapes(c.width) if self.window else {}
        self.attention = layers.Weights(self.score.shapes(c.width, c.width, c.width) | pointing, self.dtype)
        self.combine = layers.Weights({"kernel": (2 * c.width, c.width)}, self.dtype)
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def prepare(self, memory: EncoderOutput) -> DecoderMemory:
        keys = self.score.prepare(self.attention(), memory.states)
        return DecoderMemory(memory.states, keys, memory.mask, memory.final)

    def init_state(self, memory: DecoderMemory, steps: int) -> LuongState:
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

    def hidden_and_attention(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool
    ) -> tuple[Array, Array]:
        c = self.config
        embedded = layers.dropout(self, self.embedding(inputs), c.dropout, train, c.variational_dropout)
        attentional, alpha = (self._fed if c.input_feeding else self._unfed)(memory, embedded, train)
        return layers.dropout(self, attentional, c.dropout, train, c.variational_dropout), alpha

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
            self._step(), weights, self.init_state(memory, 0), xs, memory, remat_policy=self.remat_policy
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
        return tuple(layers.dropout(self, one, c.dropout, train, c.variational_dropout).swapaxes(0, 1) for one in ones)
