"""Blocks as in the Transformer whose self-attention is a recurrence of core/mixers, in all layers or in some of them.

    recurrences alone      Gu and Dao 2023 (Mamba), Beck et al. 2024 (xLSTM)
    with local attention   De et al. 2024 (Griffin): mixers=("rg_lru", "rg_lru", "local_attention")
    with attention         Lieber et al. 2024 (Jamba): mixers=("ssd",) * 7 + ("attention",)

An encoder's recurrence reads in both directions. The decoder attends to the source as in the Transformer. Its state has
constant size in the layers with recurrences: only attention keeps a cache.

Letters: B batch, S source positions, T target positions, W model width, N heads, D width of a head, K prefixes, L cache
length.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.config.models.hybrid_settings import ATTENTION
from s2sjax.core import attention, mixers
from s2sjax.core.search.hypotheses import gather
from s2sjax.models.encoder_decoder import EncoderModule, EncoderOutput, Segments, output_layer
from s2sjax.models.families.transformer import (
    DecoderBlock,
    DecoderMemory,
    EncoderBlock,
    TransformerDecoder,
    self_weights_of,
)
from s2sjax.models.families.transformer_parts import (
    Attention,
    FeedForward,
    Positions,
    Residual,
    final_norm,
    join_query_key_value,
)


class HybridEncoderBlock(EncoderBlock):
    """A mixer and a feed-forward network."""

    config: config.Hybrid
    kind: str = "attention"
    """the mixer: see `config.Hybrid.mixers`"""
    directions: tuple[bool, ...] = (False,)
    """for each direction of a recurrence, whether it reads from the end"""

    def setup(self):
        c = self.config
        if self.kind in ATTENTION:
            self.attention = Attention(c.attention_settings(self.kind), self.dtype)
        else:
            self.mixer = layers.Mixer(self.kind, c.sizes, self.dtype)
            self.backward = layers.Mixer(self.kind, c.sizes, self.dtype) if len(self.directions) > 1 else None
        self.feedforward = FeedForward(c, self.dtype)
        self.around_attention = Residual(c, self.dtype)
        self.around_feedforward = Residual(c, self.dtype)

    def self_weights(self, x: Array, lengths: Array, bias: None) -> Array | None:  # type: ignore[override]
        return super().self_weights(x, lengths, bias) if self.kind in ATTENTION else None

    def attend(  # type: ignore[override]
        self, x: Array, lengths: Array | None, train: bool, bias: None, segments: Array | None
    ) -> Array:
        """The mixer and its residual connection, x [B, T, W]. segments [B, T] replace the lengths of packed rows."""
        h = self.around_attention.before(x)
        if self.kind in ATTENTION:
            mask = None if segments is None else attention.same_segment(segments, segments)
            mixed = self.attention.self_attention(h, lengths, self.causal, None, mask)
        else:
            mask = _real(h, lengths, segments) if any(self.directions) else None  # else padding follows the text
            mixed = self.mixer(h, mask, segments, reverse=self.directions[0])[0]
            if self.backward is not None:
                mixed = mixed + self.backward(h, mask, segments, reverse=self.directions[1])[0]
        return self.around_attention.after(x, mixed, train)


def _real(x: Array, lengths: Array | None, segments: Array | None) -> Array | None:
    """The mask of real positions [B, T]."""
    if segments is not None:
        return segments > 0
    return None if lengths is None else jnp.arange(x.shape[1])[None] < lengths[:, None]


class HybridDecoderBlock(HybridEncoderBlock, DecoderBlock):
    """A mixer that reads from left to right, cross-attention and a feed-forward network."""

    causal: bool = True

    def setup(self):
        HybridEncoderBlock.setup(self)
        self.cross = Attention(self.config, self.dtype)
        self.around_cross = Residual(self.config, self.dtype)

    def step(  # type: ignore[override]
        self, x: Array, joined: dict | None, source: tuple[Array, Array], mask: Array, state: Any,
        beam_index: Array | None, position: Array,
    ):  # fmt: skip
        """Computes one position of K prefixes, x [B, K, W]; returns x, the layer's state, and alpha [B, K, S].

        The other arguments are as in `DecoderBlock.step`; `state` is a cache, or the state of a recurrence [B, K, ...].
        """
        h = self.around_attention.before(x)
        if self.kind in ATTENTION:
            assert joined is not None and beam_index is not None
            mixed, state = self.attention.self_attention_step(h, joined, state, beam_index, position, None)
        else:
            rows = x.shape[:2]
            y, state = self.mixer.step(h.reshape(-1, h.shape[-1]), _reshaped(state, 2, (rows[0] * rows[1],)))
            mixed, state = y.reshape(h.shape), _reshaped(state, 1, rows)
        x = self.around_attention.after(x, mixed, False)
        attended, alpha = self.cross.attend_step(self.around_cross.before(x), *source, mask)
        return self.feed(self.around_cross.after(x, attended, False), False), state, alpha


def _reshaped(tree: Any, axes: int, shape: tuple[int, ...]) -> Any:
    """Replaces the first axes of all leaves."""
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[axes:]), tree)


class HybridEncoder(EncoderModule):
    """Position encoding and encoder blocks over xs [B, S, W]."""

    config: config.Hybrid
    has_self_attention: ClassVar[bool] = True

    def setup(self):
        c = self.config
        self.positions = Positions(c, self.dtype)
        kinds, before = c.sides()[0], 0
        blocks = []
        for kind in kinds:
            one = (before % 2 == 1,)
            directions = (False, True) if c.directions == "both" else one
            before += kind not in ATTENTION
            blocks.append(HybridEncoderBlock(c, self.dtype, False, kind, directions))
        self.layer = blocks
        self.final_norm = final_norm(c, self.dtype)

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        """Encodes xs. segments [B, S] are given for rows that hold several sources."""
        x = self.positions.everywhere(xs, train, segments)
        lengths = mask.sum(1) if segments is None else None
        for block in self.layer:
            one: Callable = lambda self, x, block=block: block(x, lengths, train, None, segments)
            x = layers.remat_block(self.remat_policy, self, one, x)
        return EncoderOutput(self.final_norm(x), mask, ())

    def self_attention_heads(self, xs: Array, mask: Array) -> dict[int, Array]:
        """The weights of self-attention of each layer that is attention: [B, N, S, S]."""
        x, lengths = self.positions.everywhere(xs, False), mask.sum(1)
        return self_weights_of(self.layer, x, lengths, None, lambda block, x: block(x, lengths, False, None, None))


class State(NamedTuple):
    """The decoder state of one prefix per sentence; see `transformer.State` for the caches, and for K prefixes."""

    position: Array  # [B] number of tokens written so far
    beam_index: dict[str, Array]  # for each kind of attention: [B, L] row of the cache that holds each position
    layers: tuple[Any, ...]  # of each layer: keys and values [B, N, L, D], or the state of a recurrence [B, ...]


def _is_recurrent(layer: Any) -> bool:
    return isinstance(layer, mixers.State)


class HybridDecoder(TransformerDecoder):
    """Position encoding and decoder blocks; for single steps, each has a state of constant size or a cache."""

    config: config.Hybrid

    def setup(self):
        c = self.config
        self.positions = Positions(c, self.dtype, causal=True)
        self.layer = [HybridDecoderBlock(c, self.dtype, True, kind) for kind in c.sides()[1]]
        self.final_norm = final_norm(c, self.dtype)
        self.output = output_layer(c, self.embedding, c.width, self.dtype)

    def bound_blocks(self) -> Sequence[DecoderBlock]:
        return self.layer

    def init_state(self, memory: DecoderMemory, steps: int) -> State:  # type: ignore[override]
        self.positions.check_length(steps)
        c, rows = self.config, memory.mask.shape[0]
        lengths = {"attention": steps, "local_attention": min(steps, c.window + 1)}
        states: list[Any] = []
        beam_index = {}
        for kind, block in zip(c.sides()[1], self.layer):
            if kind in ATTENTION:
                empty = jnp.zeros((rows, c.heads, lengths[kind], c.attention_width // c.heads), self.dtype)
                beam_index[kind] = jnp.zeros((rows, lengths[kind]), jnp.int32)
                states.append((empty, empty))
            else:
                states.append(block.mixer.start(rows))
        return State(jnp.zeros(rows, jnp.int32), beam_index, tuple(states))

    def step(self, memory: DecoderMemory, state: State, token: Array, train: bool = False):  # type: ignore[override]
        state, logits, alpha = self.step_beams(memory, self.prepare_beams(), self.tile(state, 1), token[:, None])
        first = lambda leaf, axis: jnp.take(leaf, 0, axis=axis)
        one = lambda layer: jax.tree.map(lambda leaf: first(leaf, 1 if _is_recurrent(layer) else 3), layer)
        beam_index = {kind: first(index, 1) for kind, index in state.beam_index.items()}
        return State(state.position, beam_index, tuple(map(one, state.layers))), logits[:, 0], alpha[:, 0]

    @staticmethod
    def tile(state: State, width: int) -> State:  # type: ignore[override]
        """Repeats one prefix per sentence to K equal prefixes."""
        repeat = lambda leaf, axis: jnp.repeat(jnp.expand_dims(leaf, axis), width, axis=axis)
        tiled = lambda layer: jax.tree.map(lambda leaf: repeat(leaf, 1 if _is_recurrent(layer) else 3), layer)
        beam_index = {kind: repeat(index, 1) for kind, index in state.beam_index.items()}
        return State(state.position, beam_index, tuple(map(tiled, state.layers)))

    @staticmethod
    def reorder(state: State, origin: Array) -> State:  # type: ignore[override]
        """Makes prefix k a copy of prefix origin[k]: recurrences move their states, caches stay where they are."""
        moved = lambda tree: jax.tree.map(lambda leaf: gather(leaf, origin), tree)
        states = tuple(moved(layer) if _is_recurrent(layer) else layer for layer in state.layers)
        return State(state.position, moved(state.beam_index), states)

    def prepare_beams(self) -> tuple[dict | None, ...]:  # type: ignore[override]
        """For each layer with attention, the parameters of `join_query_key_value`."""
        blocks = [block.variables["params"] for block in self.layer]
        join = lambda params: layers.kernels_as_tables(join_query_key_value(params["attention"]))
        return tuple(join(params) if "attention" in params else None for params in blocks)

    def step_beams(  # type: ignore[override]
        self, memory: DecoderMemory, joined: tuple[dict | None, ...], state: State, token: Array
    ):
        """Advances K prefixes of equal length by token [B, K] -> state, logits [B, K, V], alpha [B, K, S]."""
        now = state.position[:, None]
        x = self.positions(self.embedding(token), now)
        prefix = jnp.arange(token.shape[1])

        def written(index: Array) -> Array:  # [B, K, L]
            place = jnp.arange(index.shape[2])
            return jnp.where((place[None, None] == (now % len(place))[..., None]), prefix[:, None], index)

        beam_index = {kind: written(index) for kind, index in state.beam_index.items()}
        mask = jnp.broadcast_to(memory.mask[:, None], (*token.shape, memory.mask.shape[1]))
        states, alphas = [], []
        for block, own, source, layer in zip(self.layer, joined, memory.layers, state.layers):
            index = beam_index.get(block.kind)
            x, layer, alpha = block.step(x, own, source, mask, layer, index, state.position)
            states.append(layer)
            alphas.append(alpha)
        logits = self.output.logits(self._top(x))
        return State(state.position + 1, beam_index, tuple(states)), logits, sum(alphas) / len(alphas)

    def hidden(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool, segments: Segments = None
    ) -> Array:
        """Computes all positions. segments [B, S] and [B, T] are given for rows that hold several pairs."""
        own = source_mask = None
        if segments is not None:
            source, own = segments
            source_mask = attention.same_segment(own, source)
        x = self.positions.everywhere(self.embedding(inputs), train, own)
        lengths = memory.mask.sum(1) if own is None else None
        for block in self.layer:
            one: Callable = lambda self, x, states, block=block: block(
                x, states, lengths, train, None, own, source_mask
            )
            x = layers.remat_block(self.remat_policy, self, one, x, memory.states)
        return self._top(x)
