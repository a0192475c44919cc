"""Convolutions over time as Flax modules."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from s2sjax.core.backend import device
from s2sjax.core.backend.batch_sharding import constrain_batch_sharding
from s2sjax.core.backend.remat import remat
from s2sjax.core.nn import convolution
from s2sjax.layers.linear import dropout, kernel_param, remat_block
from s2sjax.layers.parameters import param

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


class Convolution(nn.Module):
    """A convolution over time: see s2sjax/core/nn/convolution.py. `gain` and `weight_norm` are as in `Dense`."""

    inputs: int
    outputs: int
    width: int
    dtype: jnp.dtype = jnp.float32
    causal: bool = False
    gain: float | None = None
    weight_norm: bool = False

    def setup(self):
        self.kernel = kernel_param(self, (self.width, self.inputs, self.outputs))
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
