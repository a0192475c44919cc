"""Dense decoders: token t of the target is read off state t of the source, all of them at once.

Letters: B batch, S source positions, T target positions, N positions, M memory width, V vocabulary.

No token waits for another: decoding takes as long as one position, and there is no language model of the output. That
serves where source and target match in length. Beyond its end the source has one learned state, which all further
positions share: a target may be longer by its <eos>, but all that follows is the same token.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.models.contract import Memory, Segments, output_layer
from s2sjax.parameters import param


class WindowEncoder(nn.Module):
    """h_t = relu(W [e_{t-r}; ...; e_{t+r}] + b), r to either side, then further dense layers: position by position."""

    config: config.DenseDense
    inputs: int
    dtype: jnp.dtype
    remat_policy: str = "none"

    def setup(self):
        c = self.config
        kernels = (c.window, *(1,) * (c.encoder_layers - 1))
        self.stack = layers.Convolutional(
            self.inputs, c.width, kernels, "relu", False, c.dropout, self.dtype, self.remat_policy
        )

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> Memory:
        states = self.stack(layers.dropout(self, xs, self.config.dropout, train), mask, train)
        return Memory(layers.dropout(self, states, self.config.dropout, train), mask, ())


def matched(states: Array, mask: Array, beyond: Array, position: Array) -> Array:
    """The state of each position: [B, S, M], [B, S], beyond [M], position [B, N] -> [B, N, M].

    Of a source a b c, the positions 1, 2, 3, 9 have the states of b and c, and twice the state beyond the end.
    """
    inside = jnp.minimum(position, states.shape[1] - 1)[..., None]
    found = jnp.take_along_axis(states, inside, axis=1)
    return jnp.where((position < mask.sum(1, keepdims=True))[..., None], found, beyond)


class DenseDecoder(nn.Module):
    """logits_t = W_o relu(W ... relu(W h_t + b) + b): the token before is not read. Attention is what t is read off."""

    config: config.LSTMDense | config.DenseDense
    embedding: layers.Embedding
    dtype: jnp.dtype
    remat_policy: str = "none"
    parallel: ClassVar = True

    def setup(self):
        c = self.config
        self.beyond = param(self, "beyond", nn.initializers.normal(c.width**-0.5), (c.width,))
        self.inner = [layers.Dense(c.width, c.width, self.dtype) for _ in range(c.decoder_layers)]
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def prepare(self, memory: Memory) -> Memory:
        return Memory(memory.states, memory.mask, ())

    def start(self, memory: Memory, steps: int) -> Array:
        """How many tokens are written: [B]."""
        return jnp.zeros(memory.mask.shape[0], jnp.int32)

    def step(self, memory: Memory, position: Array, token: Array, train: bool = False):
        looked_at = jax.nn.one_hot(position, memory.mask.shape[1]) * memory.mask
        return position + 1, self.output.logits(self._read_off(memory, position[:, None], False)[:, 0]), looked_at

    def hidden(self, memory: Memory, inputs: Array, mask: Array, train: bool, segments: Segments = None) -> Array:
        return self._read_off(memory, jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape), train)

    def _read_off(self, memory: Memory, position: Array, train: bool) -> Array:
        x = matched(memory.states, memory.mask, self.beyond.astype(self.dtype), position)
        for inner in self.inner:
            x = layers.dropout(self, jax.nn.relu(inner(x)), self.config.dropout, train)
        return x
