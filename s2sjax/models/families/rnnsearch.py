"""RNNsearch (Bahdanau et al. 2014): a bidirectional encoder, and a decoder that attends before each step.

Letters: B batch, S source positions, T target positions, E embedding, H state width, M memory width, V vocabulary.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core import attention, recurrence
from s2sjax.core.backend.matmul import at_least_float32
from s2sjax.core.recurrence import cells
from s2sjax.models.encoder_decoder import EncoderOutput, output_layer
from s2sjax.models.families.recurrent_parts import (
    AttentionDecoder,
    DecoderMemory,
    RecurrentEncoder,
    draw_noise,
    draw_step_noise,
    read_out,
)


class BidirectionalEncoder(RecurrentEncoder):
    """A bidirectional stack. The decoder starts from the final backward state of the top layer."""

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        memory = super().__call__(xs, mask, train)
        backward = tuple(part[:, self.config.width :] for part in memory.final[-1])
        return memory._replace(final=(backward,))


class SearchWeights(NamedTuple):
    """Weights of one step of RNNsearch."""

    cell: cells.Weights  # including "context" [M, G*H]
    attention: cells.Weights


class SearchState(NamedTuple):
    """State of RNNsearch between steps."""

    carry: cells.Carry
    coverage: Array | None  # [B, S] sum of all alpha so far, if the score uses it


def rnnsearch_step(
    cell: cells.Cell, score: attention.AttentionScore, weights: SearchWeights, memory: DecoderMemory,
    before: SearchState, inputs,
):  # fmt: skip
    """Computes one step: projected [B, G*H] and noise -> SearchState; state [B, H], context [B, M], alpha [B, S]."""
    (carry, coverage), (projected, noise) = before, inputs
    keys = memory.keys if coverage is None else attention.add_coverage(weights.attention, memory.keys, coverage)
    context, alpha = attention.attend_batch(score, weights.attention, carry[0], keys, memory.states, memory.mask)
    carry, state = cells.step(cell, weights.cell, carry, projected + context @ weights.cell["context"], noise)
    return SearchState(carry, None if coverage is None else coverage + alpha), (state, context, alpha)


class RNNsearchDecoder(AttentionDecoder):
    """The query is the previous state; the cell and the readout read the context.

    s_0 = tanh(W b_1), b_1 the final backward state of the encoder
    c_t = attend(s_{t-1});  s_t = cell(s_{t-1}, [y_{t-1}; c_t]);  t_t = readout(s_t, y_{t-1}, c_t);  logits = W_o t_t
    """

    config: config.RNNsearch

    def setup(self):
        c = self.config
        tokens, memory, cell = self.embedding.width, 2 * c.width, cells.CELLS[c.cell]
        context = (memory, len(cell.gates) * c.width)
        self.score = attention.SCORES[c.score]
        self.bridge = [layers.Dense(c.width, c.width, self.dtype) for _ in range(cell.carries)]
        compared = c.attention_size or c.width
        coverage = {"coverage": (compared,)} if c.coverage else {}
        self.attention = layers.Weights(self.score.shapes(c.width, memory, compared) | coverage, self.dtype)
        self.cell = layers.cell_weights(c.cell, tokens, c.width, self.dtype, c.recurrent_init, context=context)
        halves, hidden = 2 if c.readout == "maxout" else 1, c.readout_width or c.embedding_size
        self.readout = layers.Dense(c.width + tokens + memory, halves * hidden, self.dtype)
        self.output = output_layer(c, self.embedding, hidden, self.dtype)

    def prepare(self, memory: EncoderOutput) -> DecoderMemory:
        carry = tuple(jnp.tanh(bridge(part)) for bridge, part in zip(self.bridge, memory.final[-1]))
        return DecoderMemory(memory.states, self.score.prepare(self.attention(), memory.states), memory.mask, (carry,))

    def init_state(self, memory: DecoderMemory, steps: int) -> SearchState:
        unseen = jnp.zeros(memory.mask.shape, at_least_float32(self.dtype))
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
        return layers.dropout(
            self, hidden, self.config.dropout, train, self.config.variational_dropout and hidden.ndim == 3
        )

    def hidden_and_attention(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool
    ) -> tuple[Array, Array]:
        c = self.config
        embedded = layers.dropout(self, self.embedding(inputs), c.dropout, train, c.variational_dropout)
        weights = self._weights()
        projected = cells.project(weights.cell, embedded.swapaxes(0, 1))  # [T, B, G*H]
        xs = projected, draw_noise(self, cells.CELLS[c.cell], (*projected.shape[:2], c.width), train)
        _, (states, contexts, alphas) = recurrence.scan(
            self._step(), weights, self.init_state(memory, 0), xs, memory, remat_policy=self.remat_policy
        )
        hidden = self._readout(states.swapaxes(0, 1), embedded, contexts.swapaxes(0, 1), train)
        return hidden, alphas.swapaxes(0, 1)
