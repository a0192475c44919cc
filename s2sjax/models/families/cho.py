"""The RNN encoder-decoder of Cho et al. 2014, which represents the source by one vector.

Letters: B batch, T target positions, E width of a token, H state width, V vocabulary.
"""

import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core.recurrence import cells
from s2sjax.models.encoder_decoder import DecoderModule, EncoderOutput, Segments, output_layer
from s2sjax.models.families.recurrent_parts import read_out, run_with_context, step_with_context


class ChoDecoder(DecoderModule):
    """A recurrent decoder whose cell and readout read the source vector c at every step.

    c = tanh(V h_S), h_S the final encoder state;  s_0 = tanh(V' c)
    s_t = cell(s_{t-1}, [y_{t-1}; c]);  t_t = readout(s_t, y_{t-1}, c);  logits = W_o t_t

    As in RNNsearch, c is an input like y. In the paper, the reset gate also acts on the term of c in the candidate.
    """

    config: config.Cho

    def setup(self):
        c, tokens = self.config, self.embedding.width
        self.kind = cells.CELLS[c.cell]
        gates = len(self.kind.gates) * c.width
        self.summary = layers.Dense(c.width, c.width, self.dtype)
        self.bridge = [layers.Dense(c.width, c.width, self.dtype) for _ in range(self.kind.carries)]
        self.cell = layers.cell_weights(c.cell, tokens, c.width, self.dtype, context=(c.width, gates))
        halves, hidden = 2 if c.readout == "maxout" else 1, c.readout_width or c.embedding_size
        self.readout = layers.Dense(c.width + tokens + c.width, halves * hidden, self.dtype)
        self.output = output_layer(c, self.embedding, hidden, self.dtype)

    def prepare(self, memory: EncoderOutput) -> Array:
        """The source vector c [B, H]."""
        return jnp.tanh(self.summary(memory.final[-1][0]))

    def init_state(self, summary: Array, steps: int) -> cells.Carry:
        return tuple(jnp.tanh(bridge(summary)) for bridge in self.bridge)

    def step(self, summary: Array, carry: cells.Carry, token: Array, train: bool = False):
        embedded = layers.dropout(self, self.embedding(token), self.config.dropout, train)
        carry, state = step_with_context(self.kind, self.cell(), carry, embedded, summary)
        return carry, self.output.logits(self._readout(state, embedded, summary, train)), None

    def _readout(self, states: Array, embedded: Array, summary: Array, train: bool) -> Array:
        hidden = read_out(self.config.readout, self.readout(jnp.concatenate([states, embedded, summary], axis=-1)))
        return layers.dropout(self, hidden, self.config.dropout, train)

    def hidden(self, summary: Array, inputs: Array, mask: Array, train: bool, segments: Segments = None) -> Array:
        embedded = layers.dropout(self, self.embedding(inputs), self.config.dropout, train)
        states = run_with_context(self, self.kind, self.cell(), self.init_state(summary, 0), embedded, summary)
        everywhere = jnp.broadcast_to(summary[:, None], (*embedded.shape[:2], summary.shape[-1]))
        return self._readout(states, embedded, everywhere, train)
