"""Dense decoders, which predict token t of the target from state t of the source, all positions in parallel.

Letters: B batch, S source positions, T target positions, N positions, M memory width, V vocabulary.

The output tokens do not depend on each other, so decoding takes the time of one position. This suits sources and
targets of matched lengths. All positions after the end of the source share one learned state: a target can be longer by
its <eos>, but all further tokens are equal.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.layers.parameters import param
from s2sjax.models.encoder_decoder import DecoderModule, EncoderModule, EncoderOutput, Segments, output_layer


class WindowEncoder(EncoderModule):
    """Computes h_t = relu(W [e_{t-r}; ...; e_{t+r}] + b) for a window of radius r, then further dense layers."""

    config: config.DenseDense

    def setup(self):
        c = self.config
        kernels = (c.window, *(1,) * (c.encoder_layers - 1))
        self.stack = layers.Convolutional(
            self.inputs, c.width, kernels, "relu", False, c.dropout, self.dtype, self.remat_policy
        )

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        states = self.stack(layers.dropout(self, xs, self.config.dropout, train), mask, train)
        return EncoderOutput(layers.dropout(self, states, self.config.dropout, train), mask, ())


def matched(states: Array, mask: Array, beyond: Array, position: Array) -> Array:
    """Looks up the source state of each target position, or `beyond` after the end of the source: [B, N, M].

    For a source a b c, the positions 1, 2, 3, 9 have the states of b and c, and twice `beyond`.

    states: [B, S, M] source states
    mask: [B, S] mask of the source positions that are not padding
    beyond: [M] state of all positions after the end
    position: [B, N] target positions, from 0
    """
    inside = jnp.minimum(position, states.shape[1] - 1)[..., None]
    found = jnp.take_along_axis(states, inside, axis=1)
    return jnp.where((position < mask.sum(1, keepdims=True))[..., None], found, beyond)


class DenseDecoder(DecoderModule):
    """Computes logits_t = W_o relu(W ... relu(W h_t + b) + b). The attention weights of step t are one-hot at t."""

    config: config.LSTMDense | config.DenseDense
    parallel: ClassVar[bool] = True

    def setup(self):
        c = self.config
        self.beyond = param(self, "beyond", nn.initializers.normal(c.width**-0.5), (c.width,))
        self.inner = [layers.Dense(c.width, c.width, self.dtype) for _ in range(c.decoder_layers)]
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def prepare(self, memory: EncoderOutput) -> EncoderOutput:
        return EncoderOutput(memory.states, memory.mask, ())

    def init_state(self, memory: EncoderOutput, steps: int) -> Array:
        """The number of tokens written so far: [B]."""
        return jnp.zeros(memory.mask.shape[0], jnp.int32)

    def step(self, memory: EncoderOutput, position: Array, token: Array, train: bool = False):
        looked_at = jax.nn.one_hot(position, memory.mask.shape[1]) * memory.mask
        return position + 1, self.output.logits(self._read_off(memory, position[:, None], False)[:, 0]), looked_at

    def hidden(
        self, memory: EncoderOutput, inputs: Array, mask: Array, train: bool, segments: Segments = None
    ) -> Array:
        return self._read_off(memory, jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape), train)

    def _read_off(self, memory: EncoderOutput, position: Array, train: bool) -> Array:
        x = matched(memory.states, memory.mask, self.beyond.astype(self.dtype), position)
        for inner in self.inner:
            x = layers.dropout(self, jax.nn.relu(inner(x)), self.config.dropout, train)
        return x
