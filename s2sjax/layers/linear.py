"""Dense layers, layer normalization and dropout."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from s2sjax.core.backend import device
from s2sjax.core.backend.matmul import at_least_float32, product, product_in_float32, product_with_table
from s2sjax.core.backend.quantization import Quantised
from s2sjax.core.backend.remat import POLICIES
from s2sjax.core.nn import convolution
from s2sjax.core.nn.dropout import keep_mask
from s2sjax.core.nn.normalization import layer_norm
from s2sjax.layers.parameters import param


def remat_block(policy: str, module: nn.Module, function: Callable, *arrays: Array) -> Any:
    """Calls function(module, *arrays) as a layer of the module, with a policy of core/backend/remat.py."""
    return (function if policy == "none" else nn.remat(function, policy=POLICIES[policy]))(module, *arrays)


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
        self.kernel = kernel_param(self, (self.inputs, self.outputs)) if self.table is None else self.table.T
        self.offset = param(self, "bias", nn.initializers.zeros, (self.outputs,)) if self.bias else None

    def __call__(self, x: Array) -> Array:
        if self.table is None:
            y = product(x, self.kernel.astype(self.dtype))
        else:
            y = product_with_table(x, self.table.astype(self.dtype)).astype(self.dtype)
        return add_bias(y, self.offset, self.dtype)

    def in_parts(self, x: Array, parts: int) -> list[Array]:
        """The outputs as a list of equal parts, one product each: slicing the kernel costs less."""
        part = lambda array, i: jax.tree.map(lambda leaf: jnp.split(leaf, parts, axis=-1)[i], array.astype(self.dtype))
        kernels = [part(self.kernel, i) for i in range(parts)]
        offsets = [None if self.offset is None else part(self.offset, i) for i in range(parts)]
        return [add_bias(product(x, kernel), offset) for kernel, offset in zip(kernels, offsets)]

    def logits(self, x: Array) -> Array:
        y = product_in_float32(x, self.kernel.astype(self.dtype))
        return add_bias(y, self.offset)

    def rows(self, ids: Array) -> tuple[Array, Array | None]:
        """The weights [..., inputs] and biases [...] of the output layer for these words."""
        weights = jnp.moveaxis(jnp.take(self.kernel, ids, axis=1), 0, -1).astype(self.dtype)
        return weights, None if self.offset is None else self.offset[ids]


TABLE = "kernel_table"


def add_bias(y: Float[Array, "... D"], bias: Float[Array, " D"] | None, dtype: Any = None) -> Float[Array, "... D"]:
    """y + bias, the bias converted to a dtype."""
    return y if bias is None else y + lax.broadcast_to_rank(bias.astype(dtype or bias.dtype), y.ndim)


def kernels_as_tables(params: Any) -> Any:
    """Transposes the kernels of `Dense` on a CPU, for inputs of a few rows: see `product_with_table`."""
    if not isinstance(params, Mapping) or not device.reads_table_as_stored(1):
        return params
    found = {name: kernels_as_tables(leaf) for name, leaf in params.items()}
    if "kernel" in found and found["kernel"].ndim == 2 and not isinstance(found["kernel"], Quantised):
        found[TABLE] = found.pop("kernel").T
    return found


def kernel_param(module, shape: tuple[int, ...]) -> Array:
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
