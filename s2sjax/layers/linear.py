"""Dense layers, layer norm, RMS norm and dropout."""

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
from s2sjax.core.nn.normalization import EPSILON, layer_norm, rms_norm
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
    adapter_rank: int = 0
    """rank r of a low-rank adapter, x A B * adapter_scale with A [inputs, r] and B [r, outputs]; 0 for none"""
    adapter_scale: float = 1.0

    def setup(self):
        self.adapter = self._adapter()
        self.table: Any = self.get_variable("params", TABLE) if self.has_variable("params", TABLE) else None
        self.kernel = kernel_param(self, (self.inputs, self.outputs)) if self.table is None else self.table.T
        self.offset = param(self, "bias", nn.initializers.zeros, (self.outputs,)) if self.bias else None

    def __call__(self, x: Array) -> Array:
        if self.table is None:
            y = product(x, self.kernel.astype(self.dtype))
        else:
            y = product_with_table(x, self.table.astype(self.dtype)).astype(self.dtype)
        if self.adapter:
            y = y + self._low_rank(x, self.adapter[1])
        return add_bias(y, self.offset, self.dtype)

    def in_parts(self, x: Array, parts: int) -> list[Array]:
        """The outputs as a list of equal parts, one product each: slicing the kernel costs less."""
        part = lambda array, i: jax.tree.map(lambda leaf: jnp.split(leaf, parts, axis=-1)[i], array.astype(self.dtype))
        kernels = [part(self.kernel, i) for i in range(parts)]
        offsets = [None if self.offset is None else part(self.offset, i) for i in range(parts)]
        outputs = [product(x, kernel) for kernel in kernels]
        if self.adapter:
            outputs = [y + self._low_rank(x, part(self.adapter[1], i)) for i, y in enumerate(outputs)]
        return [add_bias(y, offset) for y, offset in zip(outputs, offsets)]

    def _adapter(self) -> tuple[Array, Array] | None:
        """The matrices A and B of the adapter. Parameters into which it is merged have none."""
        if not self.adapter_rank or not (self.is_initializing() or self.has_variable("params", ADAPTER[0])):
            return None
        scaled = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        shapes = (self.inputs, self.adapter_rank), (self.adapter_rank, self.outputs)
        initial = scaled, nn.initializers.zeros  # B is 0: training starts from the kernel alone
        a, b = (param(self, *each) for each in zip(ADAPTER, initial, shapes))
        return a, b

    def _low_rank(self, x: Array, b: Array) -> Array:
        """x A B * adapter_scale, where B may be a part of the columns."""
        assert self.adapter is not None
        low = product(x, self.adapter[0].astype(self.dtype))
        return product(low, b.astype(self.dtype)) * jnp.asarray(self.adapter_scale, self.dtype)

    def logits(self, x: Array) -> Array:
        y = product_in_float32(x, self.kernel.astype(self.dtype))
        return add_bias(y, self.offset)

    def rows(self, ids: Array) -> tuple[Array, Array | None]:
        """The weights [..., inputs] and biases [...] of the output layer for these words."""
        weights = jnp.moveaxis(jnp.take(self.kernel, ids, axis=1), 0, -1).astype(self.dtype)
        return weights, None if self.offset is None else self.offset[ids]


TABLE = "kernel_table"
ADAPTER = ("adapter_a", "adapter_b")
"""parameters of a low-rank adapter (Hu et al. 2021)"""


def merge_adapters(params: Any, scale: Any) -> Any:
    """Adds each low-rank adapter to its kernel, W + A B * scale, also in stacks of layers, and removes it."""
    if not isinstance(params, Mapping):
        return params
    found = {name: merge_adapters(leaf, scale) for name, leaf in params.items()}
    if ADAPTER[0] not in found:
        return found
    a, b = (found.pop(name) for name in ADAPTER)
    return found | {"kernel": found["kernel"] + jnp.matmul(a, b, precision="highest") * scale}


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
    """Layer norm (x - mean) / sqrt(var + epsilon) * scale + bias, with statistics in float32 (Ba et al. 2016)."""

    width: int
    dtype: jnp.dtype = jnp.float32
    epsilon: float = EPSILON

    def setup(self):
        self.scale = param(self, "scale", nn.initializers.ones, (self.width,))
        self.bias = param(self, "bias", nn.initializers.zeros, (self.width,))

    def __call__(self, x: Array) -> Array:
        return layer_norm(x.astype(self.dtype), self.scale, self.bias, float(self.epsilon))


class RMSNorm(nn.Module):
    """RMS norm x / sqrt(mean(x^2) + epsilon) * scale, with statistics in float32 (Zhang and Sennrich 2019)."""

    width: int
    dtype: jnp.dtype = jnp.float32
    epsilon: float = EPSILON

    def setup(self):
        self.scale = param(self, "scale", nn.initializers.ones, (self.width,))

    def __call__(self, x: Array) -> Array:
        return rms_norm(x.astype(self.dtype), self.scale, float(self.epsilon))
