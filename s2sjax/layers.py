"""Shared Flax layers: modules that declare and name parameters, then call the functions of s2sjax/core.

Letters: B batch, T time, D input width, H state width, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.config.specs import Initial, Join
from s2sjax.core import cells, convolution, device, recurrence, spelling
from s2sjax.core.dropout import keep_mask
from s2sjax.core.norms import layer_norm
from s2sjax.core.precision import Quantised
from s2sjax.core.products import at_least_float32, product, product_in_float32, product_with_table
from s2sjax.core.remat import POLICIES, remat
from s2sjax.core.rows import constrain_batch_sharding, gather_whole
from s2sjax.parameters import param

Shapes = Mapping[str, tuple[int, ...]]


def remat_block(policy: str, module: nn.Module, function: Callable, *arrays: Array) -> Any:
    """Calls function(module, *arrays) as a layer of the module, rematerialized as `policy` says (core/remat.py)."""
    return (function if policy == "none" else nn.remat(function, policy=POLICIES[policy]))(module, *arrays)


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


ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "gated": convolution.gated}


class Convolutional(nn.Module):
    """A stack of centred convolutions over a padded batch: xs [B, T, D] -> ys [B, T, H], y = activation(W * x).

    `kernels` gives the kernel width of each layer. With `residual`, layers add their input to their output where the
    shapes agree.
    """

    inputs: int
    width: int
    kernels: tuple[int, ...]
    activation: str
    residual: bool = False
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        outputs = 2 * self.width if self.activation == "gated" else self.width
        inputs = (self.inputs, *(self.width,) * (len(self.kernels) - 1))
        self.convolution = [Convolution(i, outputs, k, self.dtype) for i, k in zip(inputs, self.kernels)]

    def __call__(self, xs: Array, mask: Array, train: bool = False) -> Array:
        for layer in range(len(self.kernels)):
            xs = dropout(self, xs, self.dropout, train) if layer > 0 else xs
            ys = remat_block(self.remat_policy, self, lambda self, xs, at=layer: self._layer(at, xs, mask), xs)
            xs = xs + ys if self.residual and xs.shape == ys.shape else ys
        return xs

    def _layer(self, layer: int, xs: Array, mask: Array) -> Array:
        return ACTIVATIONS[self.activation](self.convolution[layer](xs, mask))


class Stacked(nn.Module):
    """Applies `depth` blocks of one shape in sequence, with their parameters stacked [depth, ...].

    A scan over the blocks compiles in the time of one block, and XLA does not fuse a block's residual chain into the
    blocks above it. Accelerators run the blocks unrolled where that is faster.
    `widths` gives the widths of the block's array arguments [B, T, width]. A block is called as
    block(x, ..., lengths [B], train), with the keyword arguments of the call of the stack.
    """

    block: nn.Module
    depth: int
    widths: tuple[int, ...]
    dtype: jnp.dtype = jnp.float32
    remat_policy: str = "none"

    def setup(self):
        arrays = [jnp.zeros((1, 1, width), self.dtype) for width in self.widths]
        init = lambda key: self.block.init(key, *arrays, jnp.ones(1, jnp.int32), False)["params"]
        stacked = lambda key: jax.vmap(init)(jax.random.split(key, self.depth))
        exists = self.has_variable("params", "stack")  # so that Flax does not trace `init` again: see `param`
        self.stack: Any = self.get_variable("params", "stack") if exists else self.param("stack", stacked)

    def __call__(self, x: Array, *arguments: Array | None, train: bool, **shared) -> Array:
        keys = jax.random.split(self.make_rng("dropout"), self.depth) if train else None

        def body(x, inputs):
            params, key = inputs
            rngs = None if key is None else {"dropout": key}
            x = self.block.apply(
                {"params": params}, constrain_batch_sharding(x), *arguments, train, rngs=rngs, **shared
            )
            return constrain_batch_sharding(x), None

        unroll = device.block_unroll(self.depth)
        body = remat(device.block_remat(self.remat_policy, unroll), body, looped=unroll == 1)
        return jax.lax.scan(body, x, (self.stack, keys), unroll=unroll)[0]

    def unstacked(self) -> tuple[dict, ...]:
        """The parameters of each block, for decoding one position at a time.

        Call this outside of a loop over positions, which would otherwise copy them out of the stack at every step.
        """
        return tuple(
            jax.tree.map(lambda stacked, layer=layer: stacked[layer], self.stack) for layer in range(self.depth)
        )

    def bind_block(self, params: dict) -> Any:
        """Binds one block to parameters from `unstacked`."""
        return self.block.bind({"params": params})


def dropout(module: nn.Module, x: Array, rate: float, train: bool, once: bool = False) -> Array:
    """Computes x * keep / (1 - rate), with keep drawn from the module's "dropout" stream (Srivastava et al. 2014).

    With `once`, all positions of a sentence share one mask, x [B, T, D] (Gal and Ghahramani 2016).
    """
    if not train or rate == 0:
        return x
    shape = (x.shape[0], 1, x.shape[2]) if once else x.shape
    keep = keep_mask(module.make_rng("dropout"), shape, rate)
    exact = at_least_float32(x.dtype)  # bfloat16 cannot represent 1 / (1 - rate)
    return (x.astype(exact) * jnp.where(keep, jnp.asarray(1 / (1 - rate), exact), 0)).astype(x.dtype)


class Embedding(nn.Module):
    """Looks up a row of weights per id: [...] -> [..., width]. `logits` is the transpose, for a tied output layer."""

    size: int
    width: int
    dtype: jnp.dtype = jnp.float32
    scale: float = 1.0
    """multiplier of the rows when they are read; they are initialized with standard deviation width^-1/2"""
    initial: float = 1.0
    """multiplier of the initial standard deviation"""

    def setup(self):
        drawn = nn.initializers.normal(self.initial * self.width**-0.5)
        self.table = param(self, "table", drawn, (self.size, self.width))

    def __call__(self, ids: Array) -> Array:
        # Cast after reading, so that the many gradients of a frequent word are summed in float32.
        read = constrain_batch_sharding(gather_whole(self.table)[ids].astype(self.dtype))
        return read * jnp.asarray(self.scale, self.dtype)

    def logits(self, x: Array) -> Array:
        return product_with_table(x, gather_whole(self.table.astype(self.dtype)))

    def rows(self, ids: Array) -> tuple[Array, None]:
        """The weights [..., width] of the output layer for these words; it has no biases."""
        return self.table[ids].astype(self.dtype), None


@dataclass(frozen=True, eq=False)
class Spelling:
    """The characters of each word of a vocabulary, and the settings of the network that reads them."""

    table: np.ndarray  # int32 [V, C], 0 after a word's last character
    options: config.Spelling


class CharacterNetwork(nn.Module):
    """Computes word vectors from character ids, padded with 0: [..., C] -> [..., width]. See core/spelling.py."""

    options: config.Spelling
    alphabet: int
    width: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        o = self.options
        features = o.filters * sum(o.kernels)
        self.characters = Embedding(self.alphabet, o.width, self.dtype, o.width**0.5)
        self.kernels = [
            Weights({"kernel": (m, o.width, m * o.filters), "bias": (m * o.filters,)}, self.dtype) for m in o.kernels
        ]
        self.transforms = [Dense(features, features, self.dtype) for _ in range(o.highways)]
        self.gates = [Dense(features, features, self.dtype) for _ in range(o.highways)]
        self.project = Dense(features, self.width, self.dtype)

    def __call__(self, spelt: Array) -> Array:
        convolutions = [(weights["kernel"], weights["bias"]) for weights in (kernel() for kernel in self.kernels)]
        y = spelling.features(convolutions, self.characters(spelt), spelt > 0)
        for transform, gate in zip(self.transforms, self.gates):
            y = spelling.highway(transform(y), gate(y), y)
        return self.project(y)


class OneHot(nn.Module):
    """Represents token i by the unit vector e_i: [...] -> [..., V]."""

    size: int
    dtype: jnp.dtype = jnp.float32

    @property
    def width(self) -> int:
        return self.size

    def __call__(self, ids: Array) -> Array:
        return jax.nn.one_hot(ids, self.size, dtype=self.dtype)


class Dense(nn.Module):
    """x W + b: [..., inputs] -> [..., outputs]."""

    inputs: int
    outputs: int
    dtype: jnp.dtype = jnp.float32
    bias: bool = True
    gain: float | None = None
    """ratio of output to input variance: weights are drawn from N(0, gain / inputs); None for Glorot uniform"""
    weight_norm: bool = False

    def setup(self):
        self.table: Any = self.get_variable("params", TABLE) if self.has_variable("params", TABLE) else None
        self.kernel = _kernel(self, (self.inputs, self.outputs)) if self.table is None else self.table.T
        self.offset = param(self, "bias", nn.initializers.zeros, (self.outputs,)) if self.bias else None

    def __call__(self, x: Array) -> Array:
        if self.table is None:
            y = product(x, self.kernel.astype(self.dtype))
        else:
            y = product_with_table(x, self.table.astype(self.dtype)).astype(self.dtype)
        return y if self.offset is None else y + self.offset.astype(self.dtype)

    def in_parts(self, x: Array, parts: int) -> list[Array]:
        """The outputs as a list of equal parts, one product each: slicing the kernel costs less."""
        part = lambda array, i: jax.tree.map(lambda leaf: jnp.split(leaf, parts, axis=-1)[i], array.astype(self.dtype))
        kernels = [part(self.kernel, i) for i in range(parts)]
        offsets = [None if self.offset is None else part(self.offset, i) for i in range(parts)]
        products = [product(x, kernel) for kernel in kernels]
        return [y if offset is None else y + offset for y, offset in zip(products, offsets)]

    def logits(self, x: Array) -> Array:
        y = product_in_float32(x, self.kernel.astype(self.dtype))
        return y if self.offset is None else y + self.offset

    def rows(self, ids: Array) -> tuple[Array, Array | None]:
        """The weights [..., inputs] and biases [...] of the output layer for these words."""
        weights = jnp.moveaxis(jnp.take(self.kernel, ids, axis=1), 0, -1).astype(self.dtype)
        return weights, None if self.offset is None else self.offset[ids]


TABLE = "kernel_table"


def kernels_as_tables(params: Any) -> Any:
    """Transposes the kernels of `Dense` on a CPU, for inputs of a few rows: see `product_with_table`."""
    if not isinstance(params, Mapping) or not device.reads_table_as_stored(1):
        return params
    found = {name: kernels_as_tables(leaf) for name, leaf in params.items()}
    if "kernel" in found and found["kernel"].ndim == 2 and not isinstance(found["kernel"], Quantised):
        found[TABLE] = found.pop("kernel").T
    return found


class Convolution(nn.Module):
    """A convolution over time: see s2sjax/core/convolution.py. `gain` and `weight_norm` are as in `Dense`."""

    inputs: int
    outputs: int
    width: int
    dtype: jnp.dtype = jnp.float32
    causal: bool = False
    gain: float | None = None
    weight_norm: bool = False

    def setup(self):
        self.kernel = _kernel(self, (self.width, self.inputs, self.outputs))
        self.offset = param(self, "bias", nn.initializers.zeros, (self.outputs,))

    def _weights(self) -> convolution.Weights:
        return {"kernel": self.kernel.astype(self.dtype), "bias": self.offset.astype(self.dtype)}

    def __call__(self, xs: Array, mask: Array) -> Array:
        """Maps xs [B, T, inputs] with mask [B, T] to [B, T, outputs]."""
        return convolution.convolve(self._weights(), xs, mask, self.causal)

    def start(self, rows: int) -> Array:
        return convolution.start(self._weights(), rows, self.dtype)

    def one(self, past: Array, x: Array) -> tuple[Array, Array]:
        """Computes one step: past [B, width-1, inputs], x [B, inputs] -> past, [B, outputs]."""
        return convolution.step(self._weights(), past, x)


def _kernel(module, shape: tuple[int, ...]) -> Array:
    """Declares a kernel [..., inputs, outputs] of a module that has a `gain` and a `weight_norm`."""
    scaled = lambda gain: nn.initializers.variance_scaling(gain, "fan_in", "normal")
    initial = nn.initializers.glorot_uniform() if module.gain is None else scaled(module.gain)
    if not module.weight_norm:
        return param(module, "kernel", initial, shape)
    direction = param(module, "direction", initial, shape)
    return convolution.weight_norm(direction, module.param("length", lambda key: convolution.length(direction)))


class LayerNorm(nn.Module):
    """Layer norm (x - mean) / sqrt(var + 1e-6) * scale + bias, with statistics in float32 (Ba et al. 2016)."""

    width: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        self.scale = param(self, "scale", nn.initializers.ones, (self.width,))
        self.bias = param(self, "bias", nn.initializers.zeros, (self.width,))

    def __call__(self, x: Array) -> Array:
        return layer_norm(x.astype(self.dtype), self.scale, self.bias)
