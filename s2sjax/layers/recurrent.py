"""Stacks of recurrent layers.

Letters: B batch, T time, D input width, H state width, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax.config.models.specs import Initial, Join
from s2sjax.core import recurrence
from s2sjax.core.nn.dropout import keep_mask
from s2sjax.core.recurrence import cells
from s2sjax.layers.linear import Dense, dropout
from s2sjax.layers.parameters import param

Shapes = Mapping[str, tuple[int, ...]]


class Weights(nn.Module):
    """The weights that a table row of the core names, as a dict of arrays in the computation dtype.

    Biases are initialized with zero, the bias of a forget gate with one (Gers et al. 2000), and norms with one. The
    square blocks of a state-to-state matrix are orthogonal, which keeps the initial gradient from growing or vanishing,
    or Glorot uniform as all other matrices. Other vectors are normal with an expected length of about one.
    """

    shapes: Shapes
    dtype: jnp.dtype = jnp.float32
    gates: tuple[str, ...] = ()
    """names of a cell's gates, in the order of its bias"""
    initial: Initial = "orthogonal"
    """initialization of the state-to-state matrices"""

    def setup(self):
        self.weights = {name: param(self, name, self._initial(name), shape) for name, shape in self.shapes.items()}

    def _initial(self, name: str):
        match name:
            case "bias" | "shift" if "forget" in self.gates:
                return self._open_forget_gate
            case "bias" | "shift" | "state_bias" | "cell_shift":
                return nn.initializers.zeros
            case "input_scale" | "state_scale" | "cell_scale":
                return nn.initializers.ones
            case "state" | "candidate":
                return partial(square_blocks, STATE_INITIAL[self.initial])
            case _ if len(self.shapes[name]) == 1:
                return nn.initializers.normal(self.shapes[name][0] ** -0.5)
            case _:
                return nn.initializers.glorot_uniform()

    def _open_forget_gate(self, key: Array, shape: tuple[int, ...]) -> Array:
        width, place = shape[0] // len(self.gates), self.gates.index("forget")
        return jnp.zeros(shape, jnp.float32).at[place * width : (place + 1) * width].set(1)

    def __call__(self) -> dict[str, Array]:
        return {name: value.astype(self.dtype) for name, value in self.weights.items()}


STATE_INITIAL = {"orthogonal": nn.initializers.orthogonal(), "glorot": nn.initializers.glorot_uniform()}


def square_blocks(initial: Callable, key: Array, shape: tuple[int, ...]) -> Array:
    """Initializes [H, G*H] as one square matrix per gate."""
    height, width = shape
    keys = jax.random.split(key, width // height)
    return jnp.concatenate([initial(k, (height, height)) for k in keys], axis=1)


def cell_weights(
    cell: str, inputs: int, width: int, dtype, initial: Initial = "orthogonal", **extra: tuple[int, ...]
) -> Weights:
    """The weights of a named cell. `extra` gives the shapes of further matrices that a decoder uses in the cell."""
    row = cells.CELLS[cell]
    return Weights(row.shapes(inputs, width) | extra, dtype, row.gates, initial)


class Recurrent(nn.Module):
    """A stack of recurrent layers over a padded batch: xs [B, T, D] -> ys [B, T, H] and the final carry of each layer.

    The first `bidirectional` layers run in both directions, and `join` combines the two: "concatenate" gives each
    direction half of the width; with "mean" and "project" (a learned map) each has the full width. Final carries are
    joined in the same way as outputs. With `residual`, layers from the second on add their input to their output.
    """

    cell: str
    width: int | tuple[int, ...]
    """width of all layers, or one width per layer"""
    layers: int
    inputs: int
    bidirectional: int = 0
    residual: bool = False
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32
    join: Join = "concatenate"
    initial: Initial = "orthogonal"
    variational: bool = False
    """whether dropout uses one mask per sentence, also for the recurrent state"""
    zoneout: float = 0.0
    remat_policy: str = "none"

    def setup(self):
        self.forward = [self._weights(i) for i in range(self.layers)]
        self.backward = [self._weights(i) for i in range(self.bidirectional)]
        if self.join == "project":
            carries = cells.CELLS[self.cell].carries
            widths = self.widths[: self.bidirectional]
            self.joins = [[Dense(2 * width, width, self.dtype) for _ in range(carries)] for width in widths]

    @property
    def widths(self) -> tuple[int, ...]:
        """The output width of each layer."""
        return (self.width,) * self.layers if isinstance(self.width, int) else self.width

    def _one_way(self, layer: int) -> int:
        """The width of one direction of a layer."""
        halved = layer < self.bidirectional and self.join == "concatenate"
        return self.widths[layer] // 2 if halved else self.widths[layer]

    def _weights(self, layer: int) -> Weights:
        inputs = self.inputs if layer == 0 else self.widths[layer - 1]
        return cell_weights(self.cell, inputs, self._one_way(layer), self.dtype, self.initial)

    def __call__(self, xs: Array, mask: Array, train: bool = False) -> tuple[Array, tuple[cells.Carry, ...]]:
        final = []
        for layer in range(self.layers):
            directions = (self.forward[layer], *self.backward[layer : layer + 1])
            passes = [
                self._run(layer, weights(), xs, mask, reverse, train)
                for weights, reverse in zip(directions, (False, True))
            ]
            ys = self._joined(layer, 0, [ys for ys, _ in passes])
            members = zip(*(carry for _, carry in passes))
            final.append(tuple(self._joined(layer, member, parts) for member, parts in enumerate(members)))
            xs = xs + ys if self.residual and layer > 0 else ys
            if layer < self.layers - 1:
                xs = dropout(self, xs, self.dropout, train, self.variational)
        return xs, tuple(final)

    def _run(self, layer: int, weights: cells.Weights, xs: Array, mask: Array, reverse: bool, train: bool):
        cell, width = cells.CELLS[self.cell], self._one_way(layer)
        rows, steps, _ = xs.shape
        begin = cells.start(cell, width, (rows,), self.dtype)
        rate = self.dropout if self.variational else 0.0
        noise = draw_noise(self, cell, (steps, rows, width), rate, self.zoneout, self.dtype, train)
        return recurrence.run(cell, weights, xs, mask, begin, reverse, noise, self.remat_policy)

    def _joined(self, layer: int, member: int, parts: Sequence[Array]) -> Array:
        """Joins one or two directions of one array of the carry (outputs belong to the first array): [..., H]."""
        if len(parts) == 1:
            return parts[0]
        if self.join == "mean":
            return (parts[0] + parts[1]) / 2
        both = jnp.concatenate(parts, axis=-1)
        return self.joins[layer][member](both) if self.join == "project" else both


def draw_noise(
    module: nn.Module, cell: cells.Cell, shape: tuple[int, ...], rate: float, zoneout: float, dtype, train: bool
) -> cells.Noise:
    """Draws the noise of one layer for all steps, time first: [T, B, H]. There is none where both rates are zero.

    `rate` is the dropout rate of the recurrent state, with one mask per sentence (Gal and Ghahramani 2016). `zoneout`
    draws a mask at every step, and uses its expectation outside of training (Krueger et al. 2017).
    """
    steps, rows, width = shape
    keep = zone = None
    if train and rate > 0:
        once = keep_mask(module.make_rng("dropout"), (rows, width), rate).astype(dtype) / (1 - rate)
        keep = jnp.broadcast_to(once, shape)
    if train and zoneout > 0:
        zone = ~keep_mask(module.make_rng("dropout"), (steps, cell.carries, rows, width), zoneout)
        zone = zone.astype(dtype)
    elif zoneout > 0:
        zone = jnp.full((steps, cell.carries, 1, 1), zoneout, dtype)
    return cells.Noise(keep, zone)
