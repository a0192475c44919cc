"""The recurrent encoder, and parts that recurrent decoders share.

Letters: B batch, S source positions, T target positions, E embedding, H state width, M memory width, V vocabulary.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax import layers
from s2sjax.core import recurrence
from s2sjax.core.recurrence import cells
from s2sjax.models.encoder_decoder import DecoderModule, EncoderModule, EncoderOutput, Segments


class RecurrentEncoder(EncoderModule):
    """A stack of recurrent layers over the source, or over the reversed source: see `layers.Recurrent`."""

    config: Any
    """settings with a `recurrent_encoder`: see `config.RecurrentSpec`"""

    def setup(self):
        c = self.config
        self.stack = layers.Recurrent(
            inputs=self.inputs, dropout=c.dropout, dtype=self.dtype, remat_policy=self.remat_policy,
            **c.recurrent_encoder._asdict(),
        )  # fmt: skip

    def __call__(self, xs: Array, mask: Array, train: bool, segments: Array | None = None) -> EncoderOutput:
        c = self.config
        drop = lambda xs: layers.dropout(self, xs, c.dropout, train, c.variational_dropout)
        in_order = recurrence.reverse_sequences if c.reverse else lambda xs, mask: xs
        states, final = self.stack(in_order(drop(xs), mask), mask, train=train)
        # Restores the order of the source, so that attention refers to its positions.
        return EncoderOutput(drop(in_order(states, mask)), mask, final)


class DecoderMemory(NamedTuple):
    """A memory prepared for a recurrent decoder."""

    states: Array  # [B, S, M]
    keys: Array  # [B, S, ...] keys of the score
    mask: Array  # [B, S]
    carry: tuple[cells.Carry, ...]  # initial carry of each decoder layer


class AttentionDecoder(DecoderModule):
    """The base of decoders that attend while they scan: `hidden_and_attention` computes both."""

    def hidden(
        self, memory: DecoderMemory, inputs: Array, mask: Array, train: bool, segments: Segments = None
    ) -> Array:
        return self.hidden_and_attention(memory, inputs, mask, train)[0]


def draw_noise(module: nn.Module, cell: cells.Cell, shape: tuple[int, ...], train: bool) -> cells.Noise:
    """Draws the noise of a decoder layer, [T, B, H], with the rates of its configuration: see `layers.draw_noise`."""
    c: Any = module.config  # type: ignore[attr-defined]
    rate = c.dropout if c.variational_dropout else 0.0
    return layers.draw_noise(module, cell, shape, rate, c.zoneout, module.dtype, train)  # type: ignore[attr-defined]


def draw_step_noise(module: nn.Module, cell: cells.Cell, shape: tuple[int, int], train: bool) -> cells.Noise:
    """Draws the noise of a decoder layer for one step, [B, H]."""
    return jax.tree.map(lambda leaf: leaf[0], draw_noise(module, cell, (1, *shape), train))


def run_layers(
    module: nn.Module, kind: cells.Cell, weights: Sequence[cells.Weights], carries: Sequence[cells.Carry], xs: Array,
    train: bool, residual: bool = False, context: Array | None = None,
) -> Array:  # fmt: skip
    """Runs the layers of a decoder, each over all time steps before the next: xs [B, T, D] -> [B, T, H].

    Every layer reads the output of the layer below and, if given, context [B, T, M]. With `residual`, layers above the
    first add their input to their output.
    """
    everywhere = jnp.ones(xs.shape[:2], bool)
    c: Any = module.config  # type: ignore[attr-defined]
    policy: str = module.remat_policy  # type: ignore[attr-defined]
    for layer, (cell, carry) in enumerate(zip(weights, carries)):
        inputs = xs if context is None else jnp.concatenate([xs, context], axis=-1)
        noise = draw_noise(module, kind, (*everywhere.T.shape, carry[0].shape[-1]), train)
        ys, _ = recurrence.run(kind, cell, inputs, everywhere, carry, noise=noise, remat_policy=policy)
        ys = ys + xs if residual and layer > 0 else ys
        xs = layers.dropout(module, ys, c.dropout, train, c.variational_dropout)
    return xs


def run_with_context(
    module: nn.Module, kind: cells.Cell, weights: cells.Weights, carry: cells.Carry, embedded: Array, context: Array
) -> Array:
    """Runs a cell that reads tokens [B, T, E] and, at each step, context [B, M]: [B, T, H]."""
    projected = cells.project(weights, embedded.swapaxes(0, 1)) + (context @ weights["context"])[None]  # [T, B, G*H]
    step, policy = partial(recurrence.plain_step, kind), module.remat_policy  # type: ignore[attr-defined]
    return recurrence.scan(step, weights, carry, projected, remat_policy=policy)[1].swapaxes(0, 1)


def step_with_context(
    kind: cells.Cell, weights: cells.Weights, carry: cells.Carry, embedded: Array, context: Array
) -> tuple[cells.Carry, Array]:
    """One step of `run_with_context`: token [B, E] -> carry, [B, H]."""
    return cells.step(kind, weights, carry, cells.project(weights, embedded) + context @ weights["context"])


def step_layers(
    module: nn.Module, kind: cells.Cell, weights: Sequence[cells.Weights], carries: Sequence[cells.Carry], x: Array,
    train: bool, residual: bool = False, context: Array | None = None,
) -> tuple[tuple[cells.Carry, ...], Array]:  # fmt: skip
    """Runs the layers of a decoder for one step: x [B, D], context [B, M] -> carries, [B, H]."""
    new = []
    for layer, (cell, carry) in enumerate(zip(weights, carries)):
        inputs = x if context is None else jnp.concatenate([x, context], axis=-1)
        carry, y = cells.step(kind, cell, carry, cells.project(cell, inputs))
        y = y + x if residual and layer > 0 else y
        x = layers.dropout(module, y, module.config.dropout, train)  # type: ignore[attr-defined]
        new.append(carry)
    return tuple(new), x


def read_out(kind: str, hidden: Array) -> Array:
    """Applies the nonlinearity before the output layer: tanh, or maxout over pairs (Goodfellow et al. 2013)."""
    return jnp.maximum(*jnp.split(hidden, 2, axis=-1)) if kind == "maxout" else jnp.tanh(hidden)
