"""Sequence to sequence learning (Sutskever, Vinyals and Le 2014): the decoder starts from the final encoder states."""

from jax import Array

from s2sjax import config, layers
from s2sjax.core.recurrence import cells
from s2sjax.models.encoder_decoder import DecoderModule, EncoderOutput, Segments, output_layer
from s2sjax.models.families.recurrent_parts import RecurrentEncoder, run_layers, step_layers

Carries = tuple[cells.Carry, ...]


class SutskeverDecoder(DecoderModule):
    """Computes h_t = stack(h_{t-1}, y_{t-1}) and logits = W_o h_t, starting from the final states of the encoder.

    With `share`, the decoder uses the stack of the encoder: one network encodes a sentence and decodes its translation.
    """

    config: config.Sutskever
    encoder: RecurrentEncoder | None = None
    """encoder whose stack the decoder shares, or None"""

    def setup(self):
        c = self.config
        self.kind = cells.CELLS[c.cell]
        inputs = [self.embedding.width] + [c.width] * (c.layers - 1)
        own = self.encoder is None
        self.layer = [layers.cell_weights(c.cell, width, c.width, self.dtype) for width in inputs] if own else ()
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def _weights(self) -> list[cells.Weights]:
        stack = self.layer if self.encoder is None else self.encoder.stack.forward
        return [weights() for weights in stack]

    def prepare(self, memory: EncoderOutput) -> Carries:
        return memory.final

    def init_state(self, memory: Carries, steps: int) -> Carries:
        return memory

    def step(self, memory: Carries, carries: Carries, token: Array, train: bool = False):
        embedded = layers.dropout(self, self.embedding(token), self.config.dropout, train)
        carries, x = step_layers(self, self.kind, self._weights(), carries, embedded, train)
        return carries, self.output.logits(x), None

    def hidden(self, memory: Carries, inputs: Array, mask: Array, train: bool, segments: Segments = None) -> Array:
        embedded = layers.dropout(self, self.embedding(inputs), self.config.dropout, train)
        return run_layers(self, self.kind, self._weights(), memory, embedded, train)
