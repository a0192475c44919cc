"""Convolution over time, for all steps at once or one step at a time, and the gated linear unit.

Letters: B batch, T time, D input width, O output width, k kernel width, d dilation.

    y_t = b + sum_j W_j x_{t + d (j - before)},  j = 0 .. k-1;  x is zero outside the sentence

`before` of the k inputs are in the past: k-1 if the convolution is causal, (k-1)//2 if it is centred. With k = 3:

    centred   y_1 = W_0 x_0 + W_1 x_1 + W_2 x_2 + b
    causal    y_2 = W_0 x_0 + W_1 x_1 + W_2 x_2 + b
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

Weights = Mapping[str, Array]
"""kernel [k, D, O] and bias [O]"""


def convolve(
    weights: Weights, xs: Float[Array, "B T D"], mask: Bool[Array, "B T"], causal: bool = False, dilation: int = 1
) -> Float[Array, "B T O"]:
    """Convolves all steps at once. Padding, where the mask is False, is read as zeros and written as zeros."""
    kernel = weights["kernel"]
    reach = kernel.shape[0] - 1
    before = reach if causal else reach // 2
    ys = lax.conv_general_dilated(
        jnp.where(mask[..., None], xs, 0), kernel,
        window_strides=(1,),
        padding=((before * dilation, (reach - before) * dilation),),
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )  # fmt: skip
    return jnp.where(mask[..., None], ys + weights["bias"][None, None], 0)


def halve(
    weights: Weights, xs: Float[Array, "B T D"], lengths: Int[Array, " B"]
) -> tuple[Float[Array, "B (T+1)//2 O"], Int[Array, " B"]]:
    """A convolution over time with stride 2 -> ys, ceil(lengths / 2).

    The kernel is [3, D, O]: y_t sees x_{2t-1}, x_{2t} and x_{2t+1}. The first `lengths` steps are real; padding is
    read as zeros, so it has no effect.
    """
    real = jnp.arange(xs.shape[1])[None] < lengths[:, None]
    ys = lax.conv_general_dilated(
        jnp.where(real[..., None], xs, 0), weights["kernel"],
        window_strides=(2,),
        padding=((1, 1),),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )  # fmt: skip
    return ys + weights["bias"][None, None], -(-lengths // 2)


def start(weights: Weights, rows: int, dtype, dilation: int = 1) -> Float[Array, "{rows} past D"]:
    """The (k-1)*d inputs before the first step: zeros."""
    width, inputs, _ = weights["kernel"].shape
    return jnp.zeros((rows, (width - 1) * dilation, inputs), dtype)


def step(
    weights: Weights, past: Float[Array, "B past D"], x: Float[Array, "B D"], dilation: int = 1
) -> tuple[Float[Array, "B past D"], Float[Array, "B O"]]:
    """One step of a causal convolution: the past (k-1)*d inputs and x -> the new past, y."""
    kernel = weights["kernel"]
    seen = jnp.concatenate([past, x[:, None]], axis=1)
    window = seen[:, ::dilation].reshape(len(x), -1)  # [B, k*D]
    return seen[:, 1:], window @ kernel.reshape(-1, kernel.shape[-1]) + weights["bias"][None]


def gated(x: Float[Array, "*shape D"]) -> Float[Array, "*shape D//2"]:
    """The gated linear unit a * sigmoid(b) of x = [a; b] (Dauphin et al. 2017)."""
    value, gate = jnp.split(x, 2, axis=-1)
    return value * jax.nn.sigmoid(gate)


def length(direction: Float[Array, "... O"]) -> Float[Array, " O"]:
    """The Euclidean norm of the weights of each output."""
    return jnp.sqrt(jnp.sum(direction**2, axis=tuple(range(direction.ndim - 1))))


def weight_norm(direction: Float[Array, "*shape O"], lengths: Float[Array, " O"]) -> Float[Array, "*shape O"]:
    """The kernel W = g v / |v| with direction v and lengths g (Salimans and Kingma 2016)."""
    return direction * lax.broadcast_to_rank(lengths / length(direction), direction.ndim)


def halve_plane(
    weights: Weights, planes: Float[Array, "B T F D"], lengths: Int[Array, " B"]
) -> tuple[Float[Array, "B (T+1)//2 (F+1)//2 O"], Int[Array, " B"]]:
    """A convolution over time and features with stride 2 -> planes, ceil(lengths / 2).

    The kernel is [3, 3, D, O]: y_t sees x_{2t-1}, x_{2t} and x_{2t+1}. The first `lengths` steps are real; padding is
    read as zeros, so it has no effect.
    """
    real = jnp.arange(planes.shape[1])[None] < lengths[:, None]
    ys = lax.conv_general_dilated(
        jnp.where(real[..., None, None], planes, 0), weights["kernel"],
        window_strides=(2, 2),
        padding=((1, 1), (1, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    return ys + weights["bias"][None, None, None], -(-lengths // 2)
