"""Language models: decoders without an encoder, of recurrent layers, of Transformer blocks, or of both.

    hidden(inputs, carry, train)  -> Hidden       inputs [B, T], <pad> at the end of each row; with a carry, at either
                                                  end; recurrent layers alone, anywhere
    logits(states)                -> [..., V]     over all ids except <pad> and <sos>
    __call__(inputs, carry)       -> logits [B, T, V], carry
    begin(prefix, more)           -> state        after reading prefix [B, P], <pad> at the end of each row; with room
                                                  for `more` tokens
    prepare()                     -> prepared     what `advance` needs of the parameters, once for all tokens
    advance(state, token, prepared)  -> state, logits [B, ids]    one more token [B], for a search

The carry of a recurrent or hybrid model is the state of each layer at the end of a segment, from which the next segment
continues. The carry of a Transformer is (): its segments are independent. The state of a Transformer is a window of the
last tokens, with the keys and values of each layer.

A vocabulary of bytes has no unknown words. Then `has_unk` is False, and the logit of <unk> -1e30: a probability of 0.

Letters: B batch, T positions, W model width, V ids from <eos> on, L length of a Transformer's window, N heads, D width
of a head.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import config, layers
from s2sjax.core import losses, mixers, recurrence
from s2sjax.core.attention import kv_cache
from s2sjax.core.backend.matmul import at_least_float32, product_with_table
from s2sjax.core.recurrence import regularization as reg
from s2sjax.core.recurrence.cells import CELLS
from s2sjax.core.search.constraints import DEAD
from s2sjax.core.special_tokens import EOS, PAD, SOS, UNK
from s2sjax.layers.linear import add_bias
from s2sjax.layers.parameters import param
from s2sjax.models.families.transformer import EncoderBlock, Positions, final_norm, self_weights_of
from s2sjax.models.families.transformer_parts import Attention, FeedForward, Residual, join_query_key_value
from s2sjax.tasks.language_model import local_attention
from s2sjax.tasks.language_model.settings import HybridLM, RecurrentLM, TransformerLM

FIRST = EOS
"""first id of the softmax; <pad> and <sos>, which no text contains, have smaller ids"""
LOCAL = "local_attention"
"""the mixer that is attention"""
Carry = tuple


class Hidden(NamedTuple):
    """Inputs of the output layer."""

    states: Array  # [B, T, W] after dropout
    plain: Array  # [B, T, W] before dropout
    carry: Carry


def start(c: RecurrentLM | TransformerLM | HybridLM, rows: int, dtype) -> Carry:
    """The initial carry. What sums over time, such as an LSTM's cell state, is at least float32."""
    if isinstance(c, TransformerLM):
        return ()
    if isinstance(c, HybridLM):
        blocks = c.blocks()
        return tuple(_start_of(kind, blocks, rows, dtype) for kind in blocks.sides()[1])
    kinds = (dtype, *(at_least_float32(dtype),) * (CELLS[c.cell].carries - 1))
    return tuple(tuple(jnp.zeros((rows, width), kind) for kind in kinds) for width in c.widths)


def _start_of(kind: str, c: config.Hybrid, rows: int, dtype) -> local_attention.Past | mixers.State:
    """The initial state of a layer of a hybrid model. It depends on no weight, only on shapes."""
    if kind == LOCAL:
        return local_attention.start(rows, c.window, c.heads, c.attention_width // c.heads, dtype)
    mixer = mixers.MIXERS[kind]
    declared = mixer.weights(c.sizes).items()
    weights = {name: jnp.zeros(w.shape, dtype if len(w.shape) > 1 else jnp.float32) for name, w in declared}
    return _stored(mixers.start(mixer, c.sizes, weights, rows, dtype))


def _stored(state: mixers.State) -> mixers.State:
    """Leaves out empty arrays, which checkpoints cannot hold: a short convolution over one position has no past."""
    return state._replace(past={name: past for name, past in state.past.items() if past.size})


class Output(nn.Module):
    """Computes x E^T + b over the ids from <eos> on. E is the embedding table if tied, otherwise separate."""

    size: int
    width: int
    tied: bool
    dtype: jnp.dtype
    has_bias: bool = True
    has_unk: bool = True

    def setup(self):
        self.bias = param(self, "bias", nn.initializers.zeros, (self.size,)) if self.has_bias else None
        if not self.tied:
            self.own = param(self, "table", nn.initializers.normal(self.width**-0.5), (self.size, self.width))

    def __call__(self, x: Array, embedding: Array) -> Array:
        logits = self._from(x, embedding, FIRST)
        return logits if self.has_unk else logits.at[..., UNK - FIRST].set(DEAD)

    def all_ids(self, x: Array, embedding: Array) -> Array:
        """The logits of all ids, for a search: <pad> and <sos> are impossible. The table is read as it is stored."""
        impossible = [PAD, SOS] if self.has_unk else [PAD, SOS, UNK]
        return self._from(x, embedding, 0).at[..., jnp.array(impossible)].set(DEAD)

    def _from(self, x: Array, embedding: Array, first: int) -> Array:
        table = (embedding if self.tied else self.own)[first:].astype(self.dtype)  # [V, W]
        return add_bias(product_with_table(x, table), None if self.bias is None else self.bias[first:])


class LanguageModel(nn.Module):
    """Base class. Subclasses define `hidden`, `begin`, `advance`, and `_layers`, which sets up the hidden layers."""

    config: Any
    size: int
    """size of the vocabulary"""
    steps: int
    """length of a segment"""
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"
    has_unk: bool = True
    """whether <unk> can follow"""

    def setup(self):
        c = self.config
        width, scale, top = self._layers()
        self.embedding = layers.Embedding(self.size, width, self.dtype, scale)
        has_bias = getattr(c, "output_bias", True)
        self.output = Output(self.size, top, c.tie, self.dtype, has_bias, self.has_unk)

    @property
    def words(self) -> int:
        """The number of ids that can follow."""
        return self.size - FIRST - (not self.has_unk)

    def _embedded(self, inputs: Array, train: bool) -> Array:
        embedded, rate = self.embedding(inputs), self.config.word_dropout
        if not train or rate == 0:
            return embedded
        return reg.drop_words(self.make_rng("dropout"), inputs, embedded, self.size, rate)

    def logits(self, states: Array) -> Array:
        return self.output(states, self.embedding.table)

    def __call__(self, inputs: Array, carry: Carry) -> tuple[Array, Carry]:
        found = self.hidden(inputs, carry, False)
        return self.logits(found.states), found.carry

    def nats(self, inputs: Array, targets: Array, carry: Carry) -> tuple[Array, Carry]:
        """Computes -log p of each target, 0 at <pad>: [B, T], [B, T] -> [B, T], carry."""
        logits, carry = self(inputs, carry)
        of_target = jnp.take_along_axis(logits, labels(targets)[..., None], axis=-1)[..., 0]
        return jnp.where(targets != PAD, jax.nn.logsumexp(logits, axis=-1) - of_target, 0), carry

    def loss(self, inputs: Array, targets: Array, carry: Carry) -> tuple[dict[str, tuple[Array, Array]], Carry]:
        """Computes the training loss: the cross-entropy per token, plus the penalties of a recurrent model."""
        found = self.hidden(inputs, carry, True)
        mask = targets != PAD
        total, tokens = losses.cross_entropy(self.logits(found.states), labels(targets), mask)
        penalty = self._penalty(found, mask)
        if penalty is None:
            return {"loss": (total, tokens)}, found.carry
        return {"loss": (total + penalty, tokens), "cross_entropy": (total, tokens)}, found.carry

    def _penalty(self, found: Hidden, mask: Array) -> Array | None:
        return None

    def prepare(self) -> Any:
        return ()

    def self_attention_heads(self, inputs: Array) -> dict[int, Array]:
        """The weights of the layers with self-attention, by the number of the layer: [B, N, T, T].

        inputs: [B, T] one segment, <pad> at the end of each row
        """
        return {}

    def _next_logits(self, states: Array) -> Array:
        """The logits of the next token, for a search: [..., W] -> [..., ids]."""
        return self.output.all_ids(states, self.embedding.table)


def labels(targets: Array) -> Array:
    """Converts ids to indices of logits; <pad> becomes an arbitrary one."""
    return jnp.maximum(targets - FIRST, 0)


class RecurrentModel(LanguageModel):
    """A stack of recurrent layers (Mikolov et al. 2010), regularised as by Merity et al. 2017."""

    config: RecurrentLM

    def _layers(self) -> tuple[int, float, int]:
        c = self.config
        inputs = (c.embedding_size, *c.widths[:-1])
        self.stack = [layers.cell_weights(c.cell, i, w, self.dtype) for i, w in zip(inputs, c.widths)]
        return c.embedding_size, 1.0, c.widths[-1]

    def hidden(self, inputs: Array, carry: Carry, train: bool) -> Hidden:
        c, mask, after = self.config, inputs != PAD, []
        drop = lambda xs, rate: layers.dropout(self, xs, rate, train, c.variational_dropout)
        xs = drop(self._embedded(inputs, train), c.input_dropout)
        for layer, (weights, before) in enumerate(zip(self.stack, carry)):
            xs = drop(xs, c.dropout) if layer else xs
            matrices = weights()
            if train and c.weight_drop:
                matrices = reg.drop_weights(self.make_rng("dropout"), matrices, c.weight_drop)
            cell = CELLS[c.cell]
            xs, last = recurrence.run(cell, matrices, xs, mask, before, remat_policy=self.remat_policy)
            after.append(last)
        return Hidden(drop(xs, c.output_dropout), xs, tuple(after))

    def _penalty(self, found: Hidden, mask: Array) -> Array | None:
        """alpha times AR of the states after dropout, plus beta times TAR of the states before it."""
        c = self.config
        if not (c.activation_penalty or c.temporal_penalty):
            return None
        changes = reg.temporal_penalty(found.plain, mask) if c.temporal_penalty else 0.0
        return c.activation_penalty * reg.activation_penalty(found.states, mask) + c.temporal_penalty * changes

    def begin(self, prefix: Array, more: int | None = None) -> Carry:
        return self.hidden(prefix, start(self.config, len(prefix), self.dtype), False).carry

    def advance(self, state: Carry, token: Array, prepared: Any = ()) -> tuple[Carry, Array]:
        found = self.hidden(token[:, None], state, False)
        return found.carry, self._next_logits(found.states[:, 0])


class Window(NamedTuple):
    """The last tokens, which a Transformer reads to predict the next, and their keys and values."""

    tokens: Array  # [B, L]
    length: Array  # [B] number of tokens that are not padding
    caches: tuple[tuple[Array, Array], ...]  # keys and values [B, N, L, D] of each layer


class CausalBlock(EncoderBlock):
    """Causal self-attention and a feed-forward network, with a cache for single tokens."""

    causal: bool = True

    def read(self, x: Array, bias: Array | None) -> tuple[Array, tuple[Array, Array]]:
        """Computes all positions x [B, T, W], and their keys and values [B, N, T, D]."""
        keys, values = self.attention.keys_values(self.around_attention.before(x), jnp.arange(x.shape[1]))
        return self(x, jnp.full(x.shape[0], x.shape[1]), False, bias), (keys.swapaxes(1, 2), values.swapaxes(1, 2))

    def step(self, x: Array, joined: dict, cache: kv_cache.Cache, position: Array, bias: Array | None):
        """Computes one position x [B, 1, W] with a cache [B, N, L, 1, D]. `joined` is of `join_query_key_value`."""
        h, only = self.around_attention.before(x), jnp.zeros((len(x), 1, cache[0].shape[2]), jnp.int32)
        attended, cache = self.attention.self_attention_step(h, joined, cache, only, position, bias)
        return self.feed(self.around_attention.after(x, attended, False), False), cache


Prepared = tuple[tuple[dict, dict], ...]


class TransformerModel(LanguageModel):
    """Blocks of causal self-attention (Vaswani et al. 2017; Radford et al. 2018)."""

    config: TransformerLM

    def _layers(self) -> tuple[int, float, int]:
        c = self.config.blocks(self.steps)
        self.positions = Positions(c, self.dtype, causal=True)
        block = CausalBlock(c, self.dtype, parent=None)
        self.blocks = layers.Stacked(block, c.decoder_layers, (c.width,), self.dtype, self.remat_policy)
        self.final_norm = final_norm(c, self.dtype)
        return c.width, c.width**0.5 if c.scale_embedding else 1.0, c.width

    def hidden(self, inputs: Array, carry: Carry, train: bool) -> Hidden:
        """Needs no mask: padding follows the text, so the causal mask hides it."""
        rows, length = inputs.shape
        x = self.positions.everywhere(self._embedded(inputs, train), train)
        x = self.blocks(x, jnp.full(rows, length), train=train, bias=self.positions.bias(length))
        x = self.final_norm(x)
        return Hidden(x, x, carry)

    def self_attention_heads(self, inputs: Array) -> dict[int, Array]:
        rows, length = inputs.shape
        blocks, everywhere = map(self.blocks.bind_block, self.blocks.unstacked()), jnp.full(rows, length)
        x, bias = self.positions.everywhere(self.embedding(inputs), False), self.positions.bias(length)
        return self_weights_of(blocks, x, everywhere, bias, lambda block, x: block(x, everywhere, False, bias))

    def prepare(self) -> Prepared:
        """The parameters of each block: all, and those of `join_query_key_value`."""
        scale = self.config.adapter_scale
        blocks = tuple((params, join_query_key_value(params["attention"], scale)) for params in self.blocks.unstacked())
        return tuple(tuple(map(layers.kernels_as_tables, block)) for block in blocks)  # type: ignore[misc]

    def begin(self, prefix: Array, more: int | None = None) -> Window:
        """Reads the last tokens of each prefix. The window is as long as a segment, or shorter if nothing needs more.

        more: maximum number of tokens after the prefix; None for any number.
        """
        length = self.steps if more is None else min(self.steps, prefix.shape[1] + more)
        count = jnp.sum(prefix != PAD, axis=1)
        kept = jnp.minimum(count, length - 1)
        place = (count - kept)[:, None] + jnp.arange(length)
        found = jnp.take_along_axis(jnp.pad(prefix, ((0, 0), (0, length))), place, axis=1)
        tokens = jnp.where(jnp.arange(length) < kept[:, None], found, PAD)
        read = min(prefix.shape[1], length)
        room = [(0, 0), (0, 0), (0, length - read), (0, 0)]
        _, caches = self._read(tokens[:, :read], self.prepare())
        return Window(tokens, kept, jax.tree.map(lambda leaf: jnp.pad(leaf, room), caches))

    def advance(self, state: Window, token: Array, prepared: Prepared | None = None) -> tuple[Window, Array]:
        """Reads one token with the cache. Once a window of a whole segment is full, it slides, which changes every
        position: then all of it is read again."""
        prepared, length = prepared or self.prepare(), state.tokens.shape[1]
        last = jnp.minimum(state.length, length - 1)
        here = jnp.arange(length) == last[:, None]

        def step() -> tuple[Window, Array]:
            x, caches = self._read_one(token, last, state.caches, prepared)
            return Window(jnp.where(here, token[:, None], state.tokens), last + 1, caches), x

        def slide() -> tuple[Window, Array]:
            full = (state.length == length)[:, None]
            tokens = jnp.where(full, jnp.roll(state.tokens, -1, axis=1), state.tokens)
            tokens = jnp.where(here, token[:, None], tokens)
            x, caches = self._read(tokens, prepared)
            return Window(tokens, last + 1, caches), jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]

        can_slide = length == self.steps  # a shorter window has room for all
        state, x = jax.lax.cond(jnp.any(state.length == length), slide, step) if can_slide else step()
        return state, self._next_logits(self.final_norm(x))

    def _read(self, tokens: Array, prepared: Prepared) -> tuple[Array, tuple[tuple[Array, Array], ...]]:
        """The output of the last block at all positions of tokens [B, T], and the keys and values of each layer."""
        x, caches = self.positions.everywhere(self.embedding(tokens), False), []
        bias = self.positions.bias(tokens.shape[1])
        for params, _ in prepared:
            x, cache = self.blocks.bind_block(params).read(x, bias)
            caches.append(cache)
        return x, tuple(caches)

    def _read_one(self, token: Array, position: Array, caches: Any, prepared: Prepared) -> tuple[Array, Any]:
        """The output of the last block for token [B] at position [B], with the caches of each layer: [B, W], caches."""
        x, after = self.positions(self.embedding(token[:, None]), position[:, None]), []
        bias = self.positions.bias_of_one(position, caches[0][0].shape[2])
        for (params, joined), cache in zip(prepared, caches):
            cache = jax.tree.map(lambda leaf: leaf[:, :, :, None], cache)  # of one prefix
            x, cache = self.blocks.bind_block(params).step(x, joined, cache, position, bias)
            after.append(jax.tree.map(lambda leaf: leaf[:, :, :, 0], cache))
        return x[:, 0], tuple(after)


class LocalAttention(Attention):
    """Attention to the last positions, those of earlier segments included."""

    def __call__(  # type: ignore[override]
        self, x: Array, mask: Array, state: local_attention.Past
    ) -> tuple[Array, local_attention.Past]:
        """x [B, T, W], mask [B, T] -> [B, T, W], the positions that the next segment sees."""
        attended, state = local_attention.attend(
            self._heads(self.query(x)), *self.keys_values(x), state, mask, self._rotate
        )
        return self._joined(attended), state


class HybridBlock(EncoderBlock):
    """A mixer that reads from left to right and keeps its state, and a feed-forward network."""

    config: config.Hybrid
    kind: str = LOCAL
    """the mixer: see `HybridLM.mixers`"""

    def setup(self):
        c = self.config
        if self.kind == LOCAL:
            self.attention = LocalAttention(c, self.dtype)
        else:
            self.mixer = layers.Mixer(self.kind, c.sizes, self.dtype)
        self.feedforward = FeedForward(c, self.dtype)
        self.around_attention = Residual(c, self.dtype)
        self.around_feedforward = Residual(c, self.dtype)

    def __call__(self, x: Array, mask: Array, state: Any, train: bool) -> tuple[Array, Any]:  # type: ignore[override]
        """Computes all positions of a segment: x [B, T, W], mask [B, T] -> x, the state after it."""
        h = self.around_attention.before(x)
        if self.kind == LOCAL:
            attention: Any = self.attention
            mixed, state = attention(h, mask, state)
        else:
            mixed, state = self.mixer(h, mask, state=self._whole(state))
            state = _stored(state)
        return self.feed(self.around_attention.after(x, mixed, train), train), state

    def self_weights(self, x: Array, lengths: Array, bias: None) -> Array | None:  # type: ignore[override]
        return super().self_weights(x, lengths, bias) if self.kind == LOCAL else None

    def step(self, x: Array, state: Any) -> tuple[Array, Any]:  # type: ignore[override]
        """Computes one position: x [B, W] -> x, state."""
        if self.kind == LOCAL:
            x, state = self(x[:, None], jnp.ones((len(x), 1), bool), state, False)
            return x[:, 0], state
        mixed, state = self.mixer.step(self.around_attention.before(x), self._whole(state))
        return self.feed(self.around_attention.after(x, mixed, False), False), _stored(state)

    def _whole(self, state: mixers.State) -> mixers.State:
        """Adds the empty arrays that `_stored` has left out."""
        return state._replace(past=self.mixer.start(len(state.position)).past | state.past)


class HybridModel(LanguageModel):
    """Blocks whose mixers are recurrences and local attention: see models/families/hybrid.py."""

    config: HybridLM

    def _layers(self) -> tuple[int, float, int]:
        c = self.config.blocks()
        self.blocks = [HybridBlock(c, self.dtype, True, kind) for kind in c.sides()[1]]
        self.final_norm = final_norm(c, self.dtype)
        return c.width, c.width**0.5 if c.scale_embedding else 1.0, c.width

    def hidden(self, inputs: Array, carry: Carry, train: bool) -> Hidden:
        mask, after = inputs != PAD, []
        x = layers.dropout(self, self._embedded(inputs, train), self.config.dropout, train)
        for layer, before in enumerate(carry):
            one: Any = lambda self, x, state, layer=layer: self.blocks[layer](x, mask, state, train)
            x, last = layers.remat_block(self.remat_policy, self, one, x, before)
            after.append(last)
        x = self.final_norm(x)
        return Hidden(x, x, tuple(after))

    def self_attention_heads(self, inputs: Array) -> dict[int, Array]:
        mask, carries = inputs != PAD, iter(start(self.config, len(inputs), self.dtype))
        advance = lambda block, x: block(x, mask, next(carries), False)[0]
        return self_weights_of(self.blocks, self.embedding(inputs), mask.sum(1), None, advance)

    def begin(self, prefix: Array, more: int | None = None) -> Carry:
        return self.hidden(prefix, start(self.config, len(prefix), self.dtype), False).carry

    def advance(self, state: Carry, token: Array, prepared: Any = ()) -> tuple[Carry, Array]:
        x, after = self.embedding(token), []
        for block, before in zip(self.blocks, state):
            x, last = block.step(x, before)
            after.append(last)
        return tuple(after), self._next_logits(self.final_norm(x))


def build(
    c: RecurrentLM | TransformerLM | HybridLM, size: int, steps: int, dtype, remat: str, has_unk: bool = True
) -> LanguageModel:
    """Builds the Flax module of a language model for a vocabulary of `size` and segments of `steps` tokens."""
    kinds: Any = {RecurrentLM: RecurrentModel, TransformerLM: TransformerModel, HybridLM: HybridModel}
    kind = next(module for settings, module in kinds.items() if isinstance(c, settings))
    return kind(c, size, steps, jnp.dtype(dtype), remat, has_unk)
