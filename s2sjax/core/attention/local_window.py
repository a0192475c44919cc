"""Local attention (Luong et al. 2015): a state attends to a window of the memory around one position.

Letters: B batch, S positions of the memory, Q query width. Axes of the queries, `...`, are free: one state per sentence
[B, Q] or all of them [B, T, Q].

    monotonic     p_t = t                                      window_s = 1
    predictive    p_t = length * sigmoid(v . tanh(W h_t))      window_s = exp(-(s - p_t)^2 / (2 sigma^2)), sigma = D/2

for |s - p_t| <= D, the radius, and 0 beyond; s counts from 0. `attention.attend` takes the softmax over the positions
where the window is above 0, and multiplies by the window. As published, the result is not normalised again.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from s2sjax.core.attention.scores import Weights
from s2sjax.core.backend.matmul import at_least_float32


class Window(NamedTuple):
    """A window function, as listed in `WINDOWS`."""

    shapes: Callable[[int], dict[str, tuple[int, ...]]]  # Q -> shape of each weight
    centre: Callable[[Weights, Array, Array, Array], Array]  # states [..., Q], t [...], lengths -> p_t [...]
    shape: Callable[[Array, int], Array]  # distances from the centre [..., S], radius -> factors [..., S]


def _monotonic_centre(weights: Weights, states: Array, t: Array, lengths: Array) -> Array:
    """p_t = t: source and target advance together. Targets more than D beyond the source's end attend to nothing."""
    return t.astype(at_least_float32(states.dtype))


def _predictive_centre(weights: Weights, states: Array, t: Array, lengths: Array) -> Array:
    """p_t = length * sigmoid(v . tanh(W h_t)), in (0, length): a window always contains a real position."""
    pointed = jnp.tanh(states @ weights["pointer"]) @ weights["point"]
    return lengths * jax.nn.sigmoid(pointed.astype(at_least_float32(pointed.dtype)))


WINDOWS = {
    "monotonic": Window(lambda q: {}, _monotonic_centre, lambda distance, radius: jnp.ones_like(distance)),
    "predictive": Window(
        lambda q: {"pointer": (q, q), "point": (q,)},
        _predictive_centre,
        lambda distance, radius: jnp.exp(-(distance**2) / (2 * (radius / 2) ** 2)),
    ),
}


def window_weights(
    window: Window,
    radius: int,
    weights: Weights,
    states: Float[Array, "B ... Q"],
    t: Int[Array, "B ..."],
    mask: Bool[Array, "B S"],
) -> Float[Array, "B ... S"]:
    """The window of each state: factors of the attention weights, 0 outside the window.

    `t` are the target positions of the states; the mask is True for real positions of the memory.

    >>> window_weights(WINDOWS["monotonic"], 1, {}, jnp.zeros((1, 2)), jnp.array([3]), jnp.ones((1, 6), bool))
    Array([[0., 0., 1., 1., 1., 0.]], dtype=float32)
    """
    lengths = mask.sum(-1).reshape(-1, *(1,) * (t.ndim - 1))  # without padding, which must not move the centre
    centre = window.centre(weights, states, t, lengths)
    place = lax.broadcast_to_rank(jnp.arange(mask.shape[-1]), centre.ndim + 1)
    distance = place - centre[..., None]
    return jnp.where(jnp.abs(distance) <= radius, window.shape(distance, radius), 0)
