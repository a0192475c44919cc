"""The contract of encoder-decoders, and the module that joins an encoder and a decoder.

    encode(source)             -> memory                      a pytree, every leaf [B, ...]
    init_state(memory, steps)  -> state                       a pytree, every leaf [B, ...]; room for `steps` tokens
    step(memory, state, token) -> state, logits, attention    token [B], logits [B, V] float32, attention [B, S] or None
    __call__(source, target)   -> logits [B, T, V]            teacher forced, all positions

`source` [B, S] and `target` [B, T] are ids with <pad> at the end of each row. With a `source_frontend`, the source is
its input: frames, pictures, or a tuple of several arrays. Search, scoring, training and the laws in
s2sjax/testing use only these functions, and the optional capabilities of a `Decoder`.

Packed rows hold several examples (data/batching/packing.py). They come with `segments` [B, S] and [B, T], the number of
the example of each token, from 1. Models whose configuration `takes_segments` keep the examples apart.

`Encoder` and `Decoder` below say what the two modules define. A complete model, which trains and decodes:

    class CopyEncoder(nn.Module):
        config: Any; inputs: int; dtype: Any; remat_policy: str = "none"
        def __call__(self, xs, mask, train, segments=None): return EncoderOutput(xs, mask, ())

    class MeanDecoder(nn.Module):  # logits_t = W (y_{t-1} + mean of the source)
        config: Any; embedding: nn.Module; dtype: Any; remat_policy: str = "none"
        parallel: ClassVar[bool] = True
        def setup(self): self.output = output_layer(self.config, self.embedding, self.embedding.width, self.dtype)
        def prepare(self, memory): return masked_mean(memory.states, memory.mask)
        def init_state(self, mean, steps): return ()
        def step(self, mean, state, token, train=False):
            return state, self.output.logits(self.embedding(token) + mean), None
        def hidden(self, mean, inputs, mask, train, segments=None): return self.embedding(inputs) + mean[:, None]

    @config.settings
    class Mean(config.ModelSettings):
        encoder_type, decoder_type = CopyEncoder, MeanDecoder
        embedding_size: int = 8; tie: str = "none"; dropout: float = 0.0
        encoder_spec = property(lambda self: config.EncoderSpec(self.embedding_size))
        decoder_spec = property(lambda self: config.DecoderSpec(None))

The configuration's `encoder_spec` describes the output of the encoder, its `decoder_spec` the requirements of the
decoder (config/models/specs.py): the width of `states`, and the cell and widths of `final`. Within a family the two
agree; in a `config.Pair` a Bridge maps one to the other, so no encoder depends on its decoder. The configuration's
`embedding_size` is the width of a token (0 for one-hot), and its `tie` says which matrices are shared.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from s2sjax import config, former_names, layers
from s2sjax.config import require
from s2sjax.core.attention import position_encodings
from s2sjax.core.backend.batch_sharding import constrain_batch_sharding
from s2sjax.core.recurrence.cells import CELLS, Carry
from s2sjax.core.search.beam_interface import Beams, as_beams
from s2sjax.core.special_tokens import PAD, SOS
from s2sjax.models.frontends import Tokens, token_embedding


class EncoderOutput(NamedTuple):
    """The output of an encoder."""

    states: Float[Array, "B S M"]  # one vector per source position
    mask: Bool[Array, "B S"]  # mask of the source positions that are not padding
    final: tuple[Carry, ...]  # final carry of each recurrent layer; () if there is none
    embedded: Float[Array, "B S M"] | None = None  # encoder input, for a decoder that attends to both (ConvS2S)


Memory = EncoderOutput
"""former name, which the stored code of runs may import"""


Segments = tuple[Int[Array, "B S"], Int[Array, "B T"]] | None
"""segments of a packed batch; None for other batches"""


class Encoder(Protocol):
    """A Flax module, built as Type(config, inputs, dtype, remat_policy). `inputs` is the width of xs."""

    has_self_attention: ClassVar[bool] = False
    """whether self_attention_heads(xs, mask) returns the weights of the layers with self-attention, by the number of
    the layer from 0, as [B, heads, S, S]"""

    def __call__(
        self,
        xs: Float[Array, "B S inputs"],
        mask: Bool[Array, "B S"],
        train: bool,
        segments: Int[Array, "B S"] | None = None,
        /,
    ) -> EncoderOutput:
        """Encodes the source; segments are given for packed rows."""


class OutputLayer(Protocol):
    """The layer above the decoder: `layers.Dense` or a tied `layers.Embedding`."""

    def logits(self, x: Float[Array, "*shape W"], /) -> Float[Array, "*shape V"]:
        """Float32 logits of all words."""

    def rows(self, ids: Int[Array, "*shape"], /) -> tuple[Float[Array, "*shape W"], Float[Array, "*shape"] | None]:
        """Weights and biases of some words; needed only for `train.softmax`."""


class Decoder(Protocol):
    """A Flax module, built as Type(config, embedding, dtype, remat_policy).

    The class variables declare optional capabilities. A class that does not declare one has the default. For the doubly
    stochastic loss, a decoder also defines hidden_and_attention(memory, inputs, mask, train): see `EncoderDecoder`.
    """

    parallel: ClassVar[bool] = False
    """whether `hidden` computes all positions in parallel; `step` is then only called with train=False"""
    has_beam_step: ClassVar[bool] = False
    """whether `tile`, `reorder`, `prepare_beams` and `step_beams` advance K prefixes of a sentence at a lower cost than
    `vmap`: see core/search/beam_interface.py and `TransformerDecoder`"""
    has_attention_heads: ClassVar[bool] = False
    """whether `step` returns the mean of several attentions, and attention_heads(memory, inputs) each of them, as
    [B, layers, heads, T, S]"""
    has_self_attention: ClassVar[bool] = False
    """whether self_attention_heads(memory, inputs) returns the weights of the layers with self-attention, by the number
    of the layer from 0, as [B, heads, T, T]"""
    output: OutputLayer

    def prepare(self, memory: EncoderOutput, /) -> PyTree[Array]:
        """Computes, once per sentence, the `memory` of the methods below: a pytree, every leaf [B, ...]."""

    def init_state(self, memory: PyTree[Array], steps: int, /) -> PyTree[Array]:
        """The state before the first token: a pytree, every leaf [B, ...], with room for `steps` tokens."""

    def step(
        self, memory: PyTree[Array], state: PyTree[Array], token: Int[Array, " B"], train: bool = False, /
    ) -> tuple[PyTree[Array], Float[Array, "B V"], Float[Array, "B S"] | None]:
        """Reads a token; returns the state, logits in float32, and attention or None."""

    def hidden(
        self,
        memory: PyTree[Array],
        inputs: Int[Array, "B T"],
        mask: Bool[Array, "B T"],
        train: bool,
        segments: Segments = None,
        /,
    ) -> Float[Array, "B T W"]:
        """The inputs of `output` at all positions. `inputs` is the target shifted right."""


class EncoderModule(nn.Module):
    """A base class with the fields of an `Encoder`."""

    config: Any
    inputs: int
    dtype: jnp.dtype
    remat_policy: str = "none"


class DecoderModule(nn.Module):
    """A base class with the fields of a `Decoder`."""

    config: Any
    embedding: Any
    dtype: jnp.dtype
    remat_policy: str = "none"


def capability(decoder_type: Any, name: str) -> bool:
    """The value of a capability that a decoder class declares, or the default of `Decoder`."""
    return getattr(decoder_type, name, getattr(Decoder, name))


def self_attention_of(encoder: Any, xs: Array, mask: Array) -> dict[int, Array]:
    """The weights of self-attention of each layer of an encoder that has some: [B, heads, S, S]."""
    return encoder.self_attention_heads(xs, mask) if capability(type(encoder), "has_self_attention") else {}


def shift_right(target: Array, segments: Array | None = None, start: int = SOS) -> Array:
    """The decoder inputs for `target`: <sos> y1 y2 ... [B, T]. Each segment begins with <sos>, or another `start`."""
    shifted = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=start)
    return shifted if segments is None else jnp.where(position_encodings.within(segments) == 0, start, shifted)


def output_layer(config: config.ModelSettings, embedding: layers.Embedding, width: int, dtype) -> nn.Module:
    """Builds the layer from [..., width] to logits: a new matrix, or the tied embedding (Press and Wolf 2017)."""
    if not config.ties_output:
        return layers.Dense(width, embedding.size, dtype, bias=config.output_bias is not False)
    return layers.TiedOutput(embedding) if config.output_bias else embedding


def check_positions(most: int, length: int) -> None:
    """Raises a UserError if `length` exceeds a table of positions, where JAX would silently read the last row."""
    require(
        length <= most,
        f"model.max_length is {most}: learned positions cannot address {length}; "
        "shorten the line or search.max_length, or train with a higher max_length",
    )


class Bridge(nn.Module):
    """Maps the output of an encoder to the memory that a decoder requires.

    The states are unchanged if the widths agree, otherwise W h. Each initial carry of the decoder is h, W h + b or
    tanh(W h + b) of a final carry of the encoder, matched from the top layer down: a decoder with more layers reuses
    the lowest layer, and a cell with more carries reuses the last carry. An encoder without carries provides the mean
    of its states.
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
        """The encoder layer of each decoder layer: [2, 3] for 4->2, [0, 0, 0, 1] for 2->4."""
        encoder = len(self.encoder.carries.widths) if self.encoder.carries else 1
        decoder = len(self.decoder.carries.widths) if self.decoder.carries else 0
        return [max(0, layer + encoder - decoder) for layer in range(decoder)]

    def __call__(self, memory: EncoderOutput) -> EncoderOutput:
        states = memory.states if self.states is None else self.states(memory.states)
        embedded = memory.embedded if self.states is None else None
        return EncoderOutput(states, memory.mask, self._carries(memory), embedded)

    def _carries(self, memory: EncoderOutput) -> tuple[Carry, ...]:
        if not self.decoder.carries or self.kind == "identity":
            return memory.final
        final = memory.final or ((masked_mean(memory.states, memory.mask),),)
        activation = jnp.tanh if self.kind == "tanh" else lambda x: x
        return tuple(
            tuple(activation(part(final[layer][min(i, len(final[layer]) - 1)])) for i, part in enumerate(parts))
            for layer, parts in zip(self._below(), self.carries)
        )


def masked_mean(states: Array, mask: Array) -> Array:
    """The mean over the positions that are not padding: [B, S, M], [B, S] -> [B, M]; zeros for an empty row."""
    real = mask[..., None].astype(states.dtype)
    return (states * real).sum(1) / jnp.maximum(real.sum(1), 1)


class EncoderDecoder(nn.Module):
    """Joins a front end, an encoder and a decoder."""

    config: config.ModelConfig
    encoder_type: Callable[..., Encoder]
    decoder_type: Callable[..., Decoder]
    source_size: int
    target_size: int
    dtype: jnp.dtype = jnp.float32
    source_spelling: layers.Spelling | None = None
    target_spelling: layers.Spelling | None = None
    remat_policy: str = "none"
    """activations saved for the backward pass: see s2sjax/core/backend/remat.py"""
    source_frontend: nn.Module | None = None
    """front end for a source that is a tuple of arrays instead of ids: called as frontend(*source, train), and without
    parameters as frontend.mask(*source) -> [B, S]; `source_size` and `source_spelling` are then not used"""

    def setup(self):
        encodes, decodes = config.encoder_and_decoder(self.config)
        self.target_embedding = token_embedding(
            self.target_size, decodes.embedding_size, self.dtype, self.target_spelling, scaled=decodes.scale_embedding
        )
        self.source_embedding = (
            self.target_embedding
            if decodes.ties_embeddings
            else token_embedding(
                self.source_size, encodes.embedding_size, self.dtype, self.source_spelling,
                scaled=encodes.scale_embedding,
            )
        )  # fmt: skip
        given = self.source_frontend
        self.frontend: Any = Tokens(self.source_embedding) if given is None else given
        self.encoder = self.encoder_type(encodes, self.frontend.width, self.dtype, self.remat_policy)
        shared = {"encoder": self.encoder} if decodes.share else {}
        if isinstance(self.decoder_type, type):
            former_names.add_present_method(self.decoder_type, "start", "init_state")
        self.decoder: Any = self.decoder_type(decodes, self.target_embedding, self.dtype, self.remat_policy, **shared)
        self.bridge = None
        if isinstance(self.config, config.Pair):
            self.bridge = Bridge(self.config.bridge, encodes.encoder_spec, decodes.decoder_spec, self.dtype)

    @property
    def attends(self) -> bool:
        """Whether `step` returns attention weights."""
        return self.config.decoder_spec.states is not None

    @property
    def start_token(self) -> int:
        """The id of the token that the decoder reads first."""
        return config.encoder_and_decoder(self.config)[1].start_token

    @property
    def longest_source(self) -> int | None:
        """The maximum source length; None for no limit."""
        return config.encoder_and_decoder(self.config)[0].max_positions

    @property
    def longest_target(self) -> int | None:
        """The maximum target length; None for no limit."""
        return config.encoder_and_decoder(self.config)[1].max_positions

    @nn.nowrap
    def source_mask(self, source: Any) -> Array:
        """The mask of the memory positions that are not padding: [B, S]."""
        return source != PAD if self.source_frontend is None else self.source_frontend.mask(*source)  # type: ignore[attr-defined]

    def _read(self, source: Any, train: bool = False) -> tuple[Array, Array]:
        """The vectors [B, S, inputs] that the encoder reads, and their mask."""
        return self.frontend(source) if self.source_frontend is None else self.frontend(*source, train)

    def encode(self, source: Any, train: bool = False, segments: Array | None = None):
        self._check_segments(segments)
        xs, mask = constrain_batch_sharding(self._read(source, train))
        memory = constrain_batch_sharding(self.encoder(xs, mask, train, segments))
        return self.decoder.prepare(memory if self.bridge is None else self.bridge(memory))

    def _check_segments(self, segments: Any) -> None:
        require(
            segments is None or all(side.takes_segments for side in config.encoder_and_decoder(self.config)),
            f"{config.model_name(self.config)} does not keep the examples of a packed row apart: unset data.packing",
        )

    def init_state(self, memory, steps: int):
        return self.decoder.init_state(memory, steps)

    def start(self, memory, steps: int):
        """Former name of `init_state`."""
        former_names.warn_field("EncoderDecoder", "start", "init_state")
        return self.init_state(memory, steps)

    def step(self, memory, state, token: Array, train: bool = False):
        """Advances by token [B]. `train` enables dropout, for scheduled sampling without `parallel`."""
        return self.decoder.step(memory, state, token, train)

    def hidden(self, memory, inputs: Array, mask: Array, train: bool = False, segments: Segments = None) -> Array:
        """The inputs of the output layer [B, T, W] when the decoder reads `inputs` [B, T]."""
        self._check_segments(segments)
        return constrain_batch_sharding(self.decoder.hidden(memory, inputs, mask, train, segments))

    def hidden_and_attention(self, memory, inputs: Array, mask: Array, train: bool = False) -> tuple[Array, Array]:
        """`hidden`, and the attention weights of all positions [B, T, S], for losses that use them."""
        return self.decoder.hidden_and_attention(memory, inputs, mask, train)

    @property
    def has_attention_heads(self) -> bool:
        """Whether the attention that `step` returns is the mean of those of `attention_heads`."""
        return capability(self.decoder_type, "has_attention_heads")

    def attention_heads(self, source: Any, target: Array) -> Array:
        """The attention weights of each layer and head for `target`: [B, layers, heads, T, S]."""
        return self.decoder.attention_heads(self.encode(source), shift_right(target, start=self.start_token))

    @property
    def self_attends(self) -> tuple[str, ...]:
        """Those of "encoder" and "decoder" whose self-attention `self_attention_heads` can return."""
        sides = {"encoder": self.encoder_type, "decoder": self.decoder_type}
        return tuple(side for side, of in sides.items() if capability(of, "has_self_attention"))

    def self_attention_heads(self, side: str, source: Any, target: Array) -> dict[int, Array]:
        """The self-attention of the encoder, or of the decoder for `target`, by layer: [B, heads, T, T].

        A layer without self-attention has no weights.
        """
        if side == "encoder":
            return self_attention_of(self.encoder, *self._read(source))
        inputs = shift_right(target, start=self.start_token)
        return self.decoder.self_attention_heads(self.encode(source), inputs) if side in self.self_attends else {}

    def logits(self, hidden: Array) -> Array:
        return constrain_batch_sharding(self.decoder.output.logits(hidden))

    def output_rows(self, ids: Array) -> tuple[Array, Array | None]:
        """The weights [..., W] and biases [...] of the output layer for these words."""
        return self.decoder.output.rows(ids)

    def forced(self, source: Any, target: Array, train: bool = False, segments: Segments = None) -> Array:
        """The inputs of the output layer [B, T, W] under teacher forcing."""
        of_source, of_target = segments or (None, None)
        memory = self.encode(source, train, of_source)
        return self.hidden(memory, shift_right(target, of_target, self.start_token), target != PAD, train, segments)

    def __call__(self, source: Any, target: Array, train: bool = False, segments: Segments = None) -> Array:
        return self.logits(self.forced(source, target, train, segments))

    @nn.nowrap
    def prepared(self, params: Any) -> Any:
        """Prepares the parameters for `beams`, once for all sentences of a search."""
        has_beam_step = capability(self.decoder_type, "has_beam_step")
        prepare = lambda self: self.decoder.prepare_beams()
        return self.apply({"params": params}, method=prepare) if has_beam_step else None

    @nn.nowrap
    def beams(self, params: Any, memory: Any, prepared: Any = None) -> Beams:
        """The functions by which a search advances the prefixes of these sentences."""
        apply: Any = partial(self.apply, {"params": params})
        if not capability(self.decoder_type, "has_beam_step"):
            return as_beams(partial(apply, memory, method="step"))
        advance = lambda self, *arguments: self.decoder.step_beams(*arguments)
        step = partial(apply, memory, prepared or self.prepared(params), method=advance)
        decoder: Any = self.decoder_type
        return Beams(decoder.tile, step, decoder.reorder)
