"""The recurrent continuous translation model I (Kalchbrenner and Blunsom 2013): convolutional encoder, RNN decoder.

Letters: B batch, S source positions, T target positions, E embedding, H width of the convolutions and of the state.
"""

import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core.recurrence import cells
from s2sjax.models.encoder_decoder import (
    DecoderModule,
    EncoderModule,
    EncoderOutput,
    Segments,
    masked_mean,
    output_layer,
)
from s2sjax.models.families.recurrent_parts import run_with_context, step_with_context


def masked_max(states: Array, mask: Array) -> Array:
    """The elementwise maximum over the positions that are not padding: [B, S, M], [B, S] -> [B, M]; zeros if all are.

    If several positions have the maximum, the gradient goes to the first.
    """
    # Not jnp.max, whose gradient divides by the number of positions that equal the maximum: if XLA recomputes them
    # with different rounding, that number can be 0.
    masked = jnp.where(mask[..., None], states, jnp.finfo(states.dtype).min)
    first = jnp.argmax(jax.lax.stop_gradient(masked), axis=1, keepdims=True)
    largest = jnp.take_along_axis(states, first, axis=1)[:, 0]
    return jnp.where(mask.any(1)[:, None], largest, 0)


POOLS = {"mean": masked_mean, "max": masked_max}


class ConvolutionalEncoder(EncoderModule):
    """Convolutions over the source. The final carry is the pooled states."""

    config: config.RCTM

    def setup(self):
        c = self.config
        self.stack = layers.Convolutional(
            self.inputs, c.width, c.kernels, c.activation, c.residual, c.dropout, self.dtype, self.remat_policy
        )

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        xs = layers.dropout(self, xs, self.config.dropout, train)
        states = layers.dropout(self, self.stack(xs, mask, train), self.config.dropout, train)
        return EncoderOutput(states, mask, ((POOLS[self.config.pool](states, mask),),))


class RCTMDecoder(DecoderModule):
    """Computes h_t = cell(h_{t-1}, [y_{t-1}; c]) and logits = W_o h_t, with the sentence vector c and h_0 = 0."""

    config: config.RCTM

    def setup(self):
        c = self.config
        self.kind = cells.CELLS[c.cell]
        gates = len(self.kind.gates) * c.width
        self.cell = layers.cell_weights(c.cell, self.embedding.width, c.width, self.dtype, context=(c.width, gates))
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def prepare(self, memory: EncoderOutput) -> Array:
        """The sentence vector c [B, H]."""
        return memory.final[-1][0]

    def init_state(self, sentence: Array, steps: int) -> cells.Carry:
        return cells.start(self.kind, self.config.width, sentence.shape[:1], self.dtype)

    def step(self, sentence: Array, carry: cells.Carry, token: Array, train: bool = False):
        embedded = layers.dropout(self, self.embedding(token), self.config.dropout, train)
        carry, state = step_with_context(self.kind, self.cell(), carry, embedded, sentence)
        return carry, self.output.logits(layers.dropout(self, state, self.config.dropout, train)), None

    def hidden(self, sentence: Array, inputs: Array, mask: Array, train: bool, segments: Segments = None) -> Array:
        embedded = layers.dropout(self, self.embedding(inputs), self.config.dropout, train)
        states = run_with_context(self, self.kind, self.cell(), self.init_state(sentence, 0), embedded, sentence)
        return layers.dropout(self, states, self.config.dropout, train)
