"""The contract that every encoder-decoder obeys, and the module that joins an encoder and a decoder.

    encode(source)             -> memory                      a pytree, every leaf [B, ...]
    start(memory, steps)       -> state                       a pytree, every leaf [B, ...]; room for `steps` tokens
    step(memory, state, token) -> state, logits, attention    token [B], logits [B, V] float32, attention [B, S] or None
    __call__(source, target)   -> logits [B, T, V]            teacher forced, all positions

`source` [B, S] and `target` [B, T] are ids with <pad> at their end. Search, scoring, training and the laws in
tests/models/test_laws.py know nothing else of a model.

A decoder tells whether it is `parallel` over time, and splits the last two in

    hidden(memory, inputs, mask, train) -> [B, T, W]          what its output layer sees; inputs are <sos> y1 y2 ...
    output                                                    a layer with `logits` (all words) and `rows` (some)
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import layers
from s2sjax.core.cells import Carry
from s2sjax.core.tokens import PAD, SOS


class Memory(NamedTuple):
    """What an encoder hands to a decoder."""

    states: Array  # [B, S, M] one vector a source position
    mask: Array  # [B, S] where the source is real
    final: tuple[Carry, ...]  # the last carry of each recurrent layer; () where there is none


def shift_right(target: Array) -> Array:
    """What the decoder reads while it writes `target`: <sos> y1 y2 ... [B, T]."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=SOS)


class EncoderDecoder(nn.Module):
    """An encoder and a decoder of `s2sjax/models`, joined."""

    config: Any
    encoder_type: type[nn.Module]
    decoder_type: type[nn.Module]
    source_size: int
    target_size: int
    dtype: jnp.dtype = jnp.float32
    source_spelling: layers.Spelling | None = None
    target_spelling: layers.Spelling | None = None

    def setup(self):
        width = getattr(self.config, "embedding", None) or self.config.width
        tied = getattr(self.config, "tie", "none") == "all"
        self.target_embedding = self._embedding(self.target_size, width, self.target_spelling)
        self.source_embedding = (
            self.target_embedding if tied else self._embedding(self.source_size, width, self.source_spelling)
        )
        self.encoder = self.encoder_type(self.config, self.source_embedding, self.dtype)
        self.decoder = self.decoder_type(self.config, self.target_embedding, self.dtype)

    def _embedding(self, size: int, width: int, spelling: layers.Spelling | None) -> nn.Module:
        if spelling is not None:
            return layers.SpelledEmbedding(spelling, width, self.dtype)
        # A Transformer's tied embeddings are read times sqrt(width) (Vaswani et al. 2017, section 3.4).
        return layers.Embedding(size, width, self.dtype, scale=width**0.5)

    def encode(self, source: Array, train: bool = False):
        return self.decoder.prepare(self.encoder(source, source != PAD, train))

    def start(self, memory, steps: int):
        return self.decoder.start(memory, steps)

    def step(self, memory, state, token: Array, train: bool = False):
        """With `train` dropout acts: a decoder that is not `parallel` learns from its own outputs step by step."""
        return self.decoder.step(memory, state, token, *([True] if train else []))

    def hidden(self, memory, inputs: Array, mask: Array, train: bool = False) -> Array:
        """What the output layer sees at each position [B, T, ...] when the decoder reads `inputs` [B, T]."""
        return self.decoder.hidden(memory, inputs, mask, train)

    def logits(self, hidden: Array) -> Array:
        return self.decoder.output.logits(hidden)

    def output_rows(self, ids: Array) -> tuple[Array, Array | None]:
        """The output layer's weights [..., W] and biases [...] of these words alone."""
        return self.decoder.output.rows(ids)

    def __call__(self, source: Array, target: Array, train: bool = False) -> Array:
        return self.logits(self.hidden(self.encode(source, train), shift_right(target), target != PAD, train))
