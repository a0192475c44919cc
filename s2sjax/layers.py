"""The shared Flax rim: modules that declare and name parameters, then call the core.

Letters: B batch, T time, D input width, H state width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from s2sjax import config
from s2sjax.core import cells, convolution, recurrence, spelling
from s2sjax.core.attention import at_least_float32

Shapes = Mapping[str, tuple[int, ...]]


class Weights(nn.Module):
    """The weights that a row of the core's tables asks for, as a dict of arrays in the computing type.

    Biases start at zero, an LSTM's forget gate at one (Gers et al. 2000); square blocks of a state-to-state
    matrix start orthogonal, so that the gradient neither grows nor dies at first; the rest is Glorot's.
    """

    shapes: Shapes
    dtype: jnp.dtype = jnp.float32
    forget_gate: bool = False

    def setup(self):
        self.weights = {name: self.param(name, self._initial(name), shape) for name, shape in self.shapes.items()}

    def _initial(self, name: str):
        match name:
            case "bias" if self.forget_gate:
                return lambda key, shape: jnp.zeros(shape).at[: shape[0] // 4].set(1)
            case "bias":
                return nn.initializers.zeros
            case "state" | "candidate":
                return orthogonal_blocks
            case "vector":
                return nn.initializers.normal(self.shapes[name][0] ** -0.5)
            case _:
                return nn.initializers.glorot_uniform()

    def __call__(self) -> dict[str, Array]:
        return {name: value.astype(self.dtype) for name, value in self.weights.items()}


def orthogonal_blocks(key: Array, shape: tuple[int, ...]) -> Array:
    """[H, G*H]: one orthogonal matrix a gate."""
    height, width = shape
    keys = jax.random.split(key, width // height)
    return jnp.concatenate([nn.initializers.orthogonal()(k, (height, height)) for k in keys], axis=1)


def cell_weights(cell: str, inputs: int, width: int, dtype, **extra: tuple[int, ...]) -> Weights:
    """The weights of a named cell; `extra` are further matrices that a decoder adds to its projection."""
    return Weights(cells.CELLS[cell].shapes(inputs, width) | extra, dtype, forget_gate=cell == "lstm")


class Recurrent(nn.Module):
    """A stack of recurrent layers over a padded batch: xs [B, T, D] -> ys [B, T, H] and the last carry of each layer.

    The first `bidirectional` layers read both ways; each direction then has half of `width`, and the two are
    concatenated. With `residual`, a layer's input is added to its output from the second layer on.
    """

    cell: str
    width: int
    layers: int
    inputs: int
    bidirectional: int = 0
    residual: bool = False
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        self.forward = [self._weights(i) for i in range(self.layers)]
        self.backward = [self._weights(i) for i in range(self.bidirectional)]

    def _weights(self, layer: int) -> Weights:
        width = self.width // 2 if layer < self.bidirectional else self.width
        return cell_weights(self.cell, self.inputs if layer == 0 else self.width, width, self.dtype)

    def __call__(self, xs: Array, mask: Array, train: bool = False) -> tuple[Array, tuple[cells.Carry, ...]]:
        cell, final = cells.CELLS[self.cell], []
        for layer in range(self.layers):
            directions = (self.forward[layer], *self.backward[layer : layer + 1])
            width = self.width // len(directions)
            begin = cells.start(cell, width, xs.shape[:1], self.dtype)
            passes = [
                recurrence.run(cell, weights(), xs, mask, begin, reverse=reverse)
                for weights, reverse in zip(directions, (False, True))
            ]
            ys = jnp.concatenate([ys for ys, _ in passes], axis=-1)
            final.append(tuple(jnp.concatenate(parts, axis=-1) for parts in zip(*(carry for _, carry in passes))))
            xs = xs + ys if self.residual and layer > 0 else ys
            if layer < self.layers - 1:
                xs = dropout(self, xs, self.dropout, train)
        return xs, tuple(final)


ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "gated": convolution.gated}


class Convolutional(nn.Module):
    """A stack of centred convolutions over a padded batch: xs [B, T, D] -> ys [B, T, H], y = activation(W * x).

    `kernels`: how many positions each of them sees. With `residual`, a layer's input is added to its output where it is
    as wide.
    """

    inputs: int
    width: int
    kernels: tuple[int, ...]
    activation: str
    residual: bool = False
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        outputs = 2 * self.width if self.activation == "gated" else self.width
        inputs = (self.inputs, *(self.width,) * (len(self.kernels) - 1))
        self.convolution = [Convolution(i, outputs, k, self.dtype) for i, k in zip(inputs, self.kernels)]

    def __call__(self, xs: Array, mask: Array, train: bool = False) -> Array:
        for layer, convolve in enumerate(self.convolution):
            xs = dropout(self, xs, self.dropout, train) if layer > 0 else xs
            ys = ACTIVATIONS[self.activation](convolve(xs, mask))
            xs = xs + ys if self.residual and xs.shape == ys.shape else ys
        return xs


class Stacked(nn.Module):
    """`depth` blocks of one shape, one after the other, their parameters stacked [depth, ...].

    One compiled body serves all of them: a scan over the blocks compiles in the time of one, and XLA does not fuse
    a block's residual chain into the blocks above it. Accelerators still run them unrolled, where that is faster.
    `widths`: of the block's array arguments [B, T, width]; a block is called as block(x, ..., lengths [B], train).
    """

    block: nn.Module
    depth: int
    widths: tuple[int, ...]
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        arrays = [jnp.zeros((1, 1, width), self.dtype) for width in self.widths]
        init = lambda key: self.block.init(key, *arrays, jnp.ones(1, jnp.int32), False)["params"]
        self.stack = self.param("stack", lambda key: jax.vmap(init)(jax.random.split(key, self.depth)))

    def __call__(self, x: Array, *arguments: Array, train: bool) -> Array:
        keys = jax.random.split(self.make_rng("dropout"), self.depth) if train else None

        def body(x, inputs):
            params, key = inputs
            rngs = None if key is None else {"dropout": key}
            return self.block.apply({"params": params}, x, *arguments, train, rngs=rngs), None

        return jax.lax.scan(body, x, (self.stack, keys), unroll=1 if jax.default_backend() == "cpu" else self.depth)[0]

    def each(self) -> Iterator[Callable]:
        """Each block by itself, for one position at a time: block(..., method=NAME)."""
        for layer in range(self.depth):
            params = jax.tree.map(lambda stacked, layer=layer: stacked[layer], self.stack)
            yield partial(self.block.apply, {"params": params})


def dropout(module: nn.Module, x: Array, rate: float, train: bool) -> Array:
    """x * keep / (1 - rate), keep drawn from the module's "dropout" stream (Srivastava et al. 2014).

    Sixteen random bits an element are enough for the rate, and cost half of what a float does.
    """
    if not train or rate == 0:
        return x
    return jnp.where(keep_mask(module.make_rng("dropout"), x.shape, rate), x / (1 - rate), 0)


def keep_mask(key: Array, shape: tuple[int, ...], rate: float) -> Array:
    return jax.random.bits(key, shape, jnp.uint16) >= round(rate * 2**16)


class Embedding(nn.Module):
    """A row of weights for each id: [...] -> [..., width]; `logits` is its transpose, for a tied output layer."""

    size: int
    width: int
    dtype: jnp.dtype = jnp.float32
    scale: float = 1.0
    """rows are drawn with standard deviation width^-1/2 and multiplied by this when they are read"""

    def setup(self):
        self.table = self.param("table", nn.initializers.normal(self.width**-0.5), (self.size, self.width))

    def __call__(self, ids: Array) -> Array:
        return self.table.astype(self.dtype)[ids] * jnp.asarray(self.scale, self.dtype)

    def logits(self, x: Array) -> Array:
        return product_in_float32(x, self.table.astype(self.dtype).T)

    def rows(self, ids: Array) -> tuple[Array, None]:
        """As an output layer: the weights [..., width] of these words, and no biases."""
        return self.table[ids].astype(self.dtype), None


@dataclass(frozen=True, eq=False)
class Spelling:
    """The characters of each word of a vocabulary, and the shape of the network that reads them."""

    table: np.ndarray  # int32 [V, C], 0 behind a word's last character
    options: config.Spelling


class SpelledEmbedding(nn.Module):
    """A vector for each id, made of the characters of its word: [...] -> [..., width]. See s2sjax/core/spelling.py."""

    words: Spelling
    width: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        o = self.words.options
        features = o.filters * sum(o.kernels)
        self.characters = Embedding(int(self.words.table.max()) + 1, o.width, self.dtype, o.width**0.5)
        self.kernels = [
            Weights({"kernel": (m, o.width, m * o.filters), "bias": (m * o.filters,)}, self.dtype) for m in o.kernels
        ]
        self.transforms = [Dense(features, features, self.dtype) for _ in range(o.highways)]
        self.gates = [Dense(features, features, self.dtype) for _ in range(o.highways)]
        self.project = Dense(features, self.width, self.dtype)

    @property
    def size(self) -> int:
        return len(self.words.table)

    def __call__(self, ids: Array) -> Array:
        spelt = jnp.asarray(self.words.table)[ids]  # [..., C]
        convolutions = [(weights["kernel"], weights["bias"]) for weights in (kernel() for kernel in self.kernels)]
        y = spelling.features(convolutions, self.characters(spelt), spelt > 0)
        for transform, gate in zip(self.transforms, self.gates):
            y = spelling.highway(transform(y), gate(y), y)
        return self.project(y)


class OneHot(nn.Module):
    """No embedding: token i is the unit vector e_i, and the matrix above it is the table: [...] -> [..., V]."""

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
    """weights are drawn from N(0, gain / inputs), so that variances are multiplied by it; None draws Glorot's"""
    weight_norm: bool = False

    def setup(self):
        self.kernel = _kernel(self, (self.inputs, self.outputs))
        self.offset = self.param("bias", nn.initializers.zeros, (self.outputs,)) if self.bias else None

    def __call__(self, x: Array) -> Array:
        y = x @ self.kernel.astype(self.dtype)
        return y if self.offset is None else y + self.offset.astype(self.dtype)

    def logits(self, x: Array) -> Array:
        y = product_in_float32(x, self.kernel.astype(self.dtype))
        return y if self.offset is None else y + self.offset

    def rows(self, ids: Array) -> tuple[Array, Array | None]:
        """As an output layer: the weights [..., inputs] and biases [...] of these words."""
        weights = jnp.moveaxis(jnp.take(self.kernel, ids, axis=1), 0, -1).astype(self.dtype)
        return weights, None if self.offset is None else self.offset[ids]


class Convolution(nn.Module):
    """A convolution over time, see s2sjax/core/convolution.py; `gain` and `weight_norm` as of `Dense`."""

    inputs: int
    outputs: int
    width: int
    dtype: jnp.dtype = jnp.float32
    causal: bool = False
    gain: float | None = None
    weight_norm: bool = False

    def setup(self):
        self.kernel = _kernel(self, (self.width, self.inputs, self.outputs))
        self.offset = self.param("bias", nn.initializers.zeros, (self.outputs,))

    def _weights(self) -> convolution.Weights:
        return {"kernel": self.kernel.astype(self.dtype), "bias": self.offset.astype(self.dtype)}

    def __call__(self, xs: Array, mask: Array) -> Array:
        """[B, T, inputs], mask [B, T] -> [B, T, outputs]."""
        return convolution.convolve(self._weights(), xs, mask, self.causal)

    def start(self, rows: int) -> Array:
        return convolution.start(self._weights(), rows, self.dtype)

    def one(self, past: Array, x: Array) -> tuple[Array, Array]:
        """One step: past [B, width-1, inputs], x [B, inputs] -> past, [B, outputs]."""
        return convolution.step(self._weights(), past, x)


def _kernel(module, shape: tuple[int, ...]) -> Array:
    """Declares a kernel [..., inputs, outputs] of a module with a `gain` and a `weight_norm`."""
    scaled = lambda gain: nn.initializers.variance_scaling(gain, "fan_in", "normal")
    initial = nn.initializers.glorot_uniform() if module.gain is None else scaled(module.gain)
    if not module.weight_norm:
        return module.param("kernel", initial, shape)
    direction = module.param("direction", initial, shape)
    return convolution.weight_norm(direction, module.param("length", lambda key: convolution.length(direction)))


def product_in_float32(x: Array, kernel: Array) -> Array:
    """x W with float32 accumulation and result, whatever the type of its operands."""
    return jnp.dot(x, kernel, preferred_element_type=at_least_float32(x.dtype))


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + 1e-6) * scale + bias, statistics in float32 (Ba et al. 2016)."""

    width: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        self.scale = self.param("scale", nn.initializers.ones, (self.width,))
        self.bias = self.param("bias", nn.initializers.zeros, (self.width,))

    def __call__(self, x: Array) -> Array:
        x = x.astype(at_least_float32(x.dtype))
        centred = x - x.mean(-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-6)
        return (normal * self.scale + self.bias).astype(self.dtype)
