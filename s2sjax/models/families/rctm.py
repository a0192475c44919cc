"""The recurrent continuous translation model I (Kalchbrenner and Blunsom 2013): convolutional encoder, RNN decoder.

Letters: B batch, S source positions, T target positions, E embedding, H width of the convolutions and of the state.
"""

from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core import recurrence
from s2sjax.core.recurrence import cells
from s2sjax.models.encoder_decoder import EncoderOutput, Segments, masked_mean, output_layer


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


class ConvolutionalEncoder(nn.Module):
    """Convolutions over the source. The final carry is the pooled states."""

    config: config.RCTM
    inputs: int
    dtype: jnp.dtype
    remat_policy: str = "none"

    def setup(self):
        c = self.config
        self.stack = layers.Convolutional(
            self.inputs, c.width, c.kernels, c.activation, c.residual, c.dropout, self.dtype, self.remat_policy
        )

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        xs = layers.dropout(self, xs, self.config.dropout, train)
        states = layers.dropout(self, self.stack(xs, mask, train), self.config.dropout, train)
        return EncoderOutput(states, mask, ((POOLS[self.config.pool](states, mask),),))


class RCTMDecoder(nn.Module):
    """Computes h_t = cell(h_{t-1}, [y_{t-1}; c]) and logits = W_o h_t, with the sentence vector c and h_0 = 0."""

    config: config.RCTM
    embedding: layers.Embedding
    dtype: jnp.dtype
    remat_policy: str = "none"
    parallel: ClassVar[bool] = False

    def setup(self):
        c = self.config
        self.kind = cells.CELLS[c.cell]
        gates = len(self.kind.gates) * c.width
        self.cell = layers.cell_weights(c.cell, self.embedding.width, c.width, self.dtype, context=(c.width, gates))
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def prepare(self, memory: EncoderOutput) -> Array:
        """The sentence vector c [B, H]."""
        return memory.final[-1][0]

    def start(self, sentence: Array, steps: int) -> cells.Carry:
        return cells.start(self.kind, self.config.width, sentence.shape[:1], self.dtype)

    def _project(self, sentence: Array, embedded: Array) -> Array:
        """Projects inputs and sentence vector to the gates: [..., B, E] -> [..., B, G*H]."""
        weights = self.cell()
        return cells.project(weights, embedded) + sentence @ weights["context"]

    def step(self, sentence: Array, carry: cells.Carry, token: Array, train: bool = False):
        embedded = layers.dropout(self, self.embedding(token), self.config.dropout, train)
        carry, state = cells.step(self.kind, self.cell(), carry, self._project(sentence, embedded))
        return carry, self.output.logits(layers.dropout(self, state, self.config.dropout, train)), None

    def hidden(self, sentence: Array, inputs: Array, mask: Array, train: bool, segments: Segments = None) -> Array:
        embedded = layers.dropout(self, self.embedding(inputs), self.config.dropout, train).swapaxes(0, 1)
        projected = self._project(sentence, embedded)  # [T, B, G*H]
        step, start = partial(recurrence.plain_step, self.kind), self.start(sentence, 0)
        _, states = recurrence.scan(step, self.cell(), start, projected, remat_policy=self.remat_policy)
        return layers.dropout(self, states.swapaxes(0, 1), self.config.dropout, train)
