"""The contract that every encoder-decoder obeys, and the module that joins an encoder and a decoder.

    encode(source)             -> memory                      a pytree, every leaf [B, ...]
    start(memory, steps)       -> state                       a pytree, every leaf [B, ...]; room for `steps` tokens
    step(memory, state, token) -> state, logits, attention    token [B], logits [B, V] float32, attention [B, S] or None
    __call__(source, target)   -> logits [B, T, V]            teacher forced, all positions

`source` [B, S] and `target` [B, T] are ids with <pad> at their end; with a `source_frontend`, the source is what that
reads: frames, pictures, or a tuple of several arrays. Search, scoring, training and the laws in
tests/models/test_laws.py know nothing else of a model, except for one thing: a decoder that advances K prefixes of a
sentence more cheaply than `vmap` does has `tile`, `reorder`, `prepare_beams` and `step_beams` too (core/beams.py).

Rows of several examples one behind the other (data/packing.py) come with `segments`, two of [B, S] and [B, T]: which
example each token belongs to, from 1. A configuration that `takes_segments` keeps the examples apart.

How a front end, an encoder and a decoder join. An encoder is built as Type(config, inputs, dtype, remat_policy),
`inputs` being the width of the vectors it reads; a decoder as Type(config, embedding, dtype, remat_policy).

    frontend(source)                                       -> xs [B, S, inputs], mask [B, S]: see models/frontends.py
    encoder(xs, mask, train, segments)                     -> Memory
    decoder.prepare(memory)                                -> what `encode` returns: computed once a sentence
    decoder.start(memory, steps)                           as above
    decoder.step(memory, state, token, train)              as above; `train` is False where the decoder is `parallel`
    decoder.hidden(memory, inputs, mask, train, segments)  -> [B, T, W]: `inputs` is `target` shifted right
    decoder.output                                         the layer above: `logits` of all words, `rows` of some
    decoder.parallel                                       whether training sees all positions at once
    decoder.attention_heads(memory, inputs)                -> [B, layers, heads, T, S], optional: where the attention of
                                                           `step` is a mean of several, each of them

The configuration's `encoder_spec` says what the encoder's Memory is, its `decoder_spec` what the decoder requires
(s2sjax/config/specs.py): the width of `states`, and the cell and widths of `final`. Within a family the two agree; in a
`config.Pair` a Bridge maps the one to the other, so no encoder depends on its decoder. The configuration's `embedding`
is the width of a token (0 for one-hot) and its `tie` says which matrices are shared: both are handled here.
"""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.config import require
from s2sjax.core import positions
from s2sjax.core.beams import Beams, as_beams
from s2sjax.core.cells import CELLS, Carry
from s2sjax.core.rows import keep_rows_split
from s2sjax.core.tokens import PAD, SOS
from s2sjax.models.frontends import Tokens, token_embedding


class Memory(NamedTuple):
    """What an encoder returns."""

    states: Array  # [B, S, M] one vector a source position
    mask: Array  # [B, S] where the source is real
    final: tuple[Carry, ...]  # the last carry of each recurrent layer; () where there is none
    embedded: Array | None = None  # [B, S, M] what the encoder read, for a decoder that attends to both (ConvS2S)


Segments = tuple[Array, Array] | None
"""of a packed batch: [B, S] and [B, T]"""


def shift_right(target: Array, segments: Array | None = None) -> Array:
    """What the decoder reads while it writes `target`: <sos> y1 y2 ... [B, T]; of each segment its own <sos>."""
    shifted = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=SOS)
    return shifted if segments is None else jnp.where(positions.within(segments) == 0, SOS, shifted)


def output_layer(config: Any, embedding: layers.Embedding, width: int, dtype) -> nn.Module:
    """What turns [..., width] into logits: a matrix of its own, or the target embedding (Press and Wolf 2017)."""
    return layers.Dense(width, embedding.size, dtype) if config.tie == "none" else embedding


def check_positions(most: int, length: int) -> None:
    """Refuses what a table of positions cannot address: JAX would read its last row for every index beyond it."""
    require(
        length <= most,
        f"model.max_length is {most}: learned positions cannot address {length}; "
        "shorten the line or search.max_length, or train with a higher max_length",
    )


class Bridge(nn.Module):
    """Maps the memory that an encoder returns to the one that a decoder requires.

    states: as they are where the widths agree, else W h. Each first carry of the decoder is h, W h + b or
    tanh(W h + b) of a last carry of the encoder, counted from the top layer down: a decoder with more layers, or a cell
    with more carries, takes the lowest layer, or the last carry, again. An encoder without any gives the mean of its
    states.
    """

    kind: str
    encoder: config.EncoderSpec
    decoder: config.DecoderSpec
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        encoder, decoder = self.encoder, self.decoder
        width = decoder.states or encoder.states
        self.states = None if width == encoder.states else layers.Dense(encoder.states, width, self.dtype, bias=False)
        if decoder.carries and self.kind != "identity":
            below = encoder.carries.widths if encoder.carries else (encoder.states,)
            parts = CELLS[decoder.carries.cell].carries
            self.carries = [
                [layers.Dense(below[layer], width, self.dtype) for _ in range(parts)]
                for layer, width in zip(self._below(), decoder.carries.widths)
            ]

    def _below(self) -> list[int]:
        """The encoder's layer for each of the decoder's: 4 under 2 gives [2, 3], 2 under 4 gives [0, 0, 0, 1]."""
        encoder = len(self.encoder.carries.widths) if self.encoder.carries else 1
        decoder = len(self.decoder.carries.widths) if self.decoder.carries else 0
        return [max(0, layer + encoder - decoder) for layer in range(decoder)]

    def __call__(self, memory: Memory) -> Memory:
        states = memory.states if self.states is None else self.states(memory.states)
        embedded = memory.embedded if self.states is None else None
        return Memory(states, memory.mask, self._carries(memory), embedded)

    def _carries(self, memory: Memory) -> tuple[Carry, ...]:
        if not self.decoder.carries or self.kind == "identity":
            return memory.final
        final = memory.final or ((masked_mean(memory.states, memory.mask),),)
        curve = jnp.tanh if self.kind == "tanh" else lambda x: x
        return tuple(
            tuple(curve(part(final[layer][min(i, len(final[layer]) - 1)])) for i, part in enumerate(parts))
            for layer, parts in zip(self._below(), self.carries)
        )


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
    remat_policy: str = "none"
    """what training saves for the backward pass: see s2sjax/core/remat.py"""
    source_frontend: nn.Module | None = None
    """for a source that is a tuple of arrays instead of ids: called as frontend(*source, train), and
    frontend.mask(*source) -> [B, S] needs no parameters; `source_size` and `source_spelling` are not used"""

    def setup(self):
        encodes, decodes = config.encoder_and_decoder(self.config)
        self.target_embedding = token_embedding(self.target_size, decodes.embedding, self.dtype, self.target_spelling)
        self.source_embedding = (
            self.target_embedding
            if decodes.tie == "all"
            else token_embedding(self.source_size, encodes.embedding, self.dtype, self.source_spelling)
        )
        given = self.source_frontend
        self.frontend: Any = Tokens(self.source_embedding) if given is None else given
        self.encoder = self.encoder_type(encodes, self.frontend.width, self.dtype, self.remat_policy)
        shared = {"encoder": self.encoder} if decodes.share else {}
        self.decoder = self.decoder_type(decodes, self.target_embedding, self.dtype, self.remat_policy, **shared)
        self.bridge = None
        if isinstance(self.config, config.Pair):
            self.bridge = Bridge(self.config.bridge, encodes.encoder_spec, decodes.decoder_spec, self.dtype)

    @property
    def attends(self) -> bool:
        """Whether `step` returns attention weights."""
        return self.config.decoder_spec.states is not None

    @property
    def longest_source(self) -> int | None:
        """The most tokens of a source that the model can address; None: any number."""
        return config.encoder_and_decoder(self.config)[0].max_positions

    @property
    def longest_target(self) -> int | None:
        return config.encoder_and_decoder(self.config)[1].max_positions

    @nn.nowrap
    def source_mask(self, source: Any) -> Array:
        """Where the memory of a source is real: [B, S]."""
        return source != PAD if self.source_frontend is None else self.source_frontend.mask(*source)  # type: ignore[attr-defined]

    def encode(self, source: Any, train: bool = False, segments: Array | None = None):
        self._check_segments(segments)
        read = self.frontend(source) if self.source_frontend is None else self.frontend(*source, train)
        memory = keep_rows_split(self.encoder(*keep_rows_split(read), train, segments))
        return self.decoder.prepare(memory if self.bridge is None else self.bridge(memory))

    def _check_segments(self, segments: Any) -> None:
        require(
            segments is None or all(side.takes_segments for side in config.encoder_and_decoder(self.config)),
            f"{config.model_name(self.config)} does not keep the examples of a packed row apart: unset data.packing",
        )

    def start(self, memory, steps: int):
        return self.decoder.start(memory, steps)

    def step(self, memory, state, token: Array, train: bool = False):
        """With `train` dropout acts: a decoder that is not `parallel` learns from its own outputs step by step."""
        return self.decoder.step(memory, state, token, train)

    def hidden(self, memory, inputs: Array, mask: Array, train: bool = False, segments: Segments = None) -> Array:
        """What the output layer sees at each position [B, T, ...] when the decoder reads `inputs` [B, T]."""
        self._check_segments(segments)
        return keep_rows_split(self.decoder.hidden(memory, inputs, mask, train, segments))

    def hidden_and_attention(self, memory, inputs: Array, mask: Array, train: bool = False) -> tuple[Array, Array]:
        """The same, and the attention weights of all positions [B, T, S], which a loss may use."""
        return self.decoder.hidden_and_attention(memory, inputs, mask, train)

    @property
    def has_attention_heads(self) -> bool:
        """Whether the attention that `step` returns is a mean of several, which `attention_heads` gives one by one."""
        return hasattr(self.decoder_type, "attention_heads")

    def attention_heads(self, source: Any, target: Array) -> Array:
        """The attention weights of each layer and head while the model writes `target`: [B, layers, heads, T, S]."""
        return self.decoder.attention_heads(self.encode(source), shift_right(target))

    def logits(self, hidden: Array) -> Array:
        return keep_rows_split(self.decoder.output.logits(hidden))

    def output_rows(self, ids: Array) -> tuple[Array, Array | None]:
        """The output layer's weights [..., W] and biases [...] of these words alone."""
        return self.decoder.output.rows(ids)

    def forced(self, source: Any, target: Array, train: bool = False, segments: Segments = None) -> Array:
        """Teacher forced, what the output layer sees at each position: [B, T, ...]."""
        of_source, of_target = segments or (None, None)
        memory = self.encode(source, train, of_source)
        return self.hidden(memory, shift_right(target, of_target), target != PAD, train, segments)

    def __call__(self, source: Any, target: Array, train: bool = False, segments: Segments = None) -> Array:
        return self.logits(self.forced(source, target, train, segments))

    def prepare_beams(self) -> Any:
        return self.decoder.prepare_beams()

    def step_beams(self, memory, prepared, state, token: Array):
        return self.decoder.step_beams(memory, prepared, state, token)

    @nn.nowrap
    def prepared(self, params: Any) -> Any:
        """What `beams` needs of the parameters: computed once, however often a slot of a search is filled again."""
        has_own = hasattr(self.decoder_type, "step_beams")
        return self.apply({"params": params}, method="prepare_beams") if has_own else None

    @nn.nowrap
    def beams(self, params: Any, memory: Any, prepared: Any = None) -> Beams:
        """What search sees of a model and its memory. What can be computed before the search is computed here."""
        apply: Any = partial(self.apply, {"params": params})
        if not hasattr(self.decoder_type, "step_beams"):
            return as_beams(partial(apply, memory, method="step"))
        step = partial(apply, memory, prepared or self.prepared(params), method="step_beams")
        return Beams(self.decoder_type.tile, step, self.decoder_type.reorder)  # type: ignore[attr-defined]
