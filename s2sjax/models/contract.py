"""The contract that every encoder-decoder obeys, and the module that joins an encoder and a decoder.

    encode(source)             -> memory                      a pytree, every leaf [B, ...]
    start(memory, steps)       -> state                       a pytree, every leaf [B, ...]; room for `steps` tokens
    step(memory, state, token) -> state, logits, attention    token [B], logits [B, V] float32, attention [B, S] or None
    __call__(source, target)   -> logits [B, T, V]            teacher forced, all positions

`source` [B, S] and `target` [B, T] are ids with <pad> at their end. Search, scoring, training and the laws in
tests/models/test_laws.py know nothing else of a model, but for one thing: a decoder that writes K prefixes of a
sentence side by side more cheaply than `vmap` does it has `spread`, `step_beams` and `follow` too (core/beams.py).

Rows of several examples one behind the other (data/packing.py) come with `segments`, two of [B, S] and [B, T]: which
example each token belongs to, from 1. Only a Transformer takes them, as the last argument of the two below.

How a front end, an encoder and a decoder join. An encoder is built as Type(config, inputs, dtype), `inputs` being the
width of the vectors it reads; a decoder as Type(config, embedding, dtype).

    frontend(source)                                   -> xs [B, S, inputs], mask [B, S]: see models/frontends.py
    encoder(xs, mask, train)                           -> Memory
    decoder.prepare(memory)                            -> what `encode` returns: the memory made ready, once a sentence
    decoder.start, decoder.step                        as above; one that is not `parallel` over time takes `train`
    decoder.hidden(memory, inputs, mask, train)        -> [B, T, W]: `inputs` is `target` shifted right
    decoder.output                                     the layer above: `logits` of all words, `rows` of some

The configuration's `reader` says what the encoder's Memory is, its `writer` what the decoder asks for
(s2sjax/config/joints.py): the width of `states`, and the cell and widths of `final`. Within a family the two agree;
in a `config.Pair` a Bridge makes the one of the other, so no encoder or decoder knows whom it is joined to. Its
`embedding` is the width of a token (0 for one-hot) and its `tie` says which matrices are one: both are seen to here.
"""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core import positions
from s2sjax.core.beams import Beams, side_by_side
from s2sjax.core.cells import CELLS, Carry
from s2sjax.core.tokens import PAD, SOS
from s2sjax.models.frontends import Tokens


class Memory(NamedTuple):
    """What an encoder hands to a decoder."""

    states: Array  # [B, S, M] one vector a source position
    mask: Array  # [B, S] where the source is real
    final: tuple[Carry, ...]  # the last carry of each recurrent layer; () where there is none
    embedded: Array | None = None  # [B, S, M] what the encoder read, for a decoder that looks at both (ConvS2S)


def shift_right(target: Array, segments: Array | None = None) -> Array:
    """What the decoder reads while it writes `target`: <sos> y1 y2 ... [B, T]; of each segment its own <sos>."""
    shifted = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=SOS)
    return shifted if segments is None else jnp.where(positions.within(segments) == 0, SOS, shifted)


def output_layer(config: Any, embedding: layers.Embedding, width: int, dtype) -> nn.Module:
    """What turns [..., width] into logits: a matrix of its own, or the target embedding (Press and Wolf 2017)."""
    return layers.Dense(width, embedding.size, dtype) if config.tie == "none" else embedding


class Bridge(nn.Module):
    """Makes the memory that a decoder asks for of the one that an encoder hands over.

    states: as they are where the widths agree, else W h. Each first carry of the decoder is h, W h + b or
    tanh(W h + b) of a last carry of the encoder, counted from the top layer down: a decoder with more layers, or a cell
    with more carries, takes the lowest layer, or the last carry, again. An encoder without any gives the mean of its
    states.
    """

    kind: str
    given: config.Reader
    asked: config.Writer
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        given, asked = self.given, self.asked
        wanted = asked.states or given.states
        self.states = None if wanted == given.states else layers.Dense(given.states, wanted, self.dtype, bias=False)
        if asked.carries and self.kind != "identity":
            below = given.carries.widths if given.carries else (given.states,)
            parts = CELLS[asked.carries.cell].carries
            self.carries = [
                [layers.Dense(below[layer], width, self.dtype) for _ in range(parts)]
                for layer, width in zip(self._below(), asked.carries.widths)
            ]

    def _below(self) -> list[int]:
        """The encoder's layer for each of the decoder's: 4 under 2 gives [2, 3], 2 under 4 gives [0, 0, 0, 1]."""
        given = len(self.given.carries.widths) if self.given.carries else 1
        asked = len(self.asked.carries.widths) if self.asked.carries else 0
        return [max(0, layer + given - asked) for layer in range(asked)]

    def __call__(self, memory: Memory) -> Memory:
        states = memory.states if self.states is None else self.states(memory.states)
        embedded = memory.embedded if self.states is None else None
        return Memory(states, memory.mask, self._carries(memory), embedded)

    def _carries(self, memory: Memory) -> tuple[Carry, ...]:
        if not self.asked.carries or self.kind == "identity":
            return memory.final
        final = memory.final or ((masked_mean(memory.states, memory.mask),),)
        curve = jnp.tanh if self.kind == "tanh" else lambda x: x
        return tuple(
            tuple(curve(part(final[layer][min(i, len(final[layer]) - 1)])) for i, part in enumerate(parts))
            for layer, parts in zip(self._below(), self.carries)
        )


def _given(segments: Any) -> tuple:
    """The last arguments of those who know nothing of packed rows, or of those who do."""
    return () if segments is None else (segments,)


def masked_mean(states: Array, mask: Array) -> Array:
    """The mean of the real positions: [B, S, M], [B, S] -> [B, M]; of an empty row, zeros."""
    real = mask[..., None].astype(states.dtype)
    return (states * real).sum(1) / jnp.maximum(real.sum(1), 1)


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
    remat: str = "none"
    """what training keeps for the backward pass: see s2sjax/core/remat.py"""

    def setup(self):
        reads, writes = config.sides(self.config)
        self.target_embedding = self._embedding(self.target_size, writes.embedding, self.target_spelling)
        self.source_embedding = (
            self.target_embedding
            if writes.tie == "all"
            else self._embedding(self.source_size, reads.embedding, self.source_spelling)
        )
        self.frontend = Tokens(self.source_embedding)
        self.encoder = self.encoder_type(reads, self.frontend.width, self.dtype)
        shared = {"encoder": self.encoder} if getattr(writes, "share", False) else {}
        self.decoder = self.decoder_type(writes, self.target_embedding, self.dtype, **shared)
        joined = isinstance(self.config, config.Pair)
        self.bridge = Bridge(self.config.bridge, reads.reader, writes.writer, self.dtype) if joined else None

    def _embedding(self, size: int, width: int, spelling: layers.Spelling | None) -> nn.Module:
        if spelling is not None:
            return layers.SpelledEmbedding(spelling, width, self.dtype)
        if width == 0:
            return layers.OneHot(size, self.dtype)
        # A Transformer's tied embeddings are read times sqrt(width) (Vaswani et al. 2017, section 3.4).
        return layers.Embedding(size, width, self.dtype, scale=width**0.5)

    @property
    def attends(self) -> bool:
        """Whether `step` tells what the decoder looked at."""
        return self.config.writer.states is not None

    @property
    def longest(self) -> int | None:
        """The most tokens of a source or a target that the model can tell apart; None: any number."""
        return self.config.max_length if getattr(self.config, "positions", None) == "learned" else None

    def encode(self, source: Array, train: bool = False, segments: Array | None = None):
        memory = self.encoder(*self.frontend(source), train, *_given(segments))
        return self.decoder.prepare(memory if self.bridge is None else self.bridge(memory))

    def start(self, memory, steps: int):
        return self.decoder.start(memory, steps)

    def step(self, memory, state, token: Array, train: bool = False):
        """With `train` dropout acts: a decoder that is not `parallel` learns from its own outputs step by step."""
        return self.decoder.step(memory, state, token, *([True] if train else []))

    def hidden(
        self, memory, inputs: Array, mask: Array, train: bool = False, segments: tuple[Array, Array] | None = None
    ) -> Array:
        """What the output layer sees at each position [B, T, ...] when the decoder reads `inputs` [B, T]."""
        return self.decoder.hidden(memory, inputs, mask, train, *_given(segments))

    def logits(self, hidden: Array) -> Array:
        return self.decoder.output.logits(hidden)

    def output_rows(self, ids: Array) -> tuple[Array, Array | None]:
        """The output layer's weights [..., W] and biases [...] of these words alone."""
        return self.decoder.output.rows(ids)

    def own_beams(self, name: str, *arguments):
        """A decoder's own way to write K prefixes: see `beams`."""
        return getattr(self.decoder, name)(*arguments)

    def forced(
        self, source: Array, target: Array, train: bool = False, segments: tuple[Array, Array] | None = None
    ) -> Array:
        """Teacher forced, what the output layer sees at each position: [B, T, ...]."""
        of_source, of_target = segments or (None, None)
        memory = self.encode(source, train, of_source)
        return self.hidden(memory, shift_right(target, of_target), target != PAD, train, segments)

    def __call__(
        self, source: Array, target: Array, train: bool = False, segments: tuple[Array, Array] | None = None
    ) -> Array:
        return self.logits(self.forced(source, target, train, segments))

    @nn.nowrap
    def beams(self, params: Any, memory: Any) -> Beams:
        """What search sees of a model that has read. What it can do before the search begins is done here."""
        apply = partial(self.apply, {"params": params})
        if not hasattr(self.decoder_type, "step_beams"):
            return side_by_side(partial(apply, memory, method="step"))  # type: ignore[arg-type]
        own: Any = lambda name: partial(apply, name, method="own_beams")
        return Beams(own("spread"), partial(own("step_beams"), memory, own("unstacked")()), own("follow"))
