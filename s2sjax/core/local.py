"""Local attention (Luong et al. 2015): a state attends to the memory near one position, not to all of it.

Letters: B batch, S positions of the memory, Q query width. Axes of the queries, `...`, are free: one state a sentence
[B, Q] or all of them [B, T, Q].

    monotonic     p_t = t                                      window_s = 1
    predictive    p_t = length * sigmoid(v . tanh(W h_t))      window_s = exp(-(s - p_t)^2 / (2 sigma^2)), sigma = D/2

for |s - p_t| <= D, the radius, and 0 beyond; s counts from 0. `attention.attend` takes the softmax over the positions
where the window is above 0, and multiplies by it. As published, the products with the Gaussian are not made to sum to
one again.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from s2sjax.core.attention import Weights
from s2sjax.core.products import at_least_float32


class Window(NamedTuple):
    """One row of the table of windows."""

    shapes: Callable[[int], dict[str, tuple[int, ...]]]  # Q -> shape of each weight
    centre: Callable[[Weights, Array, Array, Array], Array]  # states [..., Q], t, lengths -> p_t [...]
    shape: Callable[[Array, int], Array]  # distance from the centre, radius -> factor


def _at_the_same_place(weights: Weights, states: Array, t: Array, lengths: Array) -> Array:
    """p_t = t: source and target advance together. A target longer than its source by D attends to nothing."""
    return t.astype(at_least_float32(states.dtype))


def _where_it_points(weights: Weights, states: Array, t: Array, lengths: Array) -> Array:
    """p_t = length * sigmoid(v . tanh(W h_t)): in (0, length), so a window always holds a real position."""
    pointed = jnp.tanh(states @ weights["pointer"]) @ weights["point"]
    return lengths * jax.nn.sigmoid(pointed.astype(at_least_float32(pointed.dtype)))


WINDOWS = {
    "monotonic": Window(lambda q: {}, _at_the_same_place, lambda distance, radius: jnp.ones_like(distance)),
    "predictive": Window(
        lambda q: {"pointer": (q, q), "point": (q,)},
        _where_it_points,
        lambda distance, radius: jnp.exp(-(distance**2) / (2 * (radius / 2) ** 2)),
    ),
}


def window_weights(window: Window, radius: int, weights: Weights, states: Array, t: Array, mask: Array) -> Array:
    """The window of each state: states [B, ..., Q], t [B, ...], mask [B, S] -> factors [B, ..., S], 0 outside.

    Example: monotonic, t = 3, radius 1, S = 6 -> 0 0 1 1 1 0.
    """
    lengths = mask.sum(-1).reshape(-1, *(1,) * (t.ndim - 1))  # the sentence's own: padding must not move the centre
    centre = window.centre(weights, states, t, lengths)
    distance = jnp.arange(mask.shape[-1]) - centre[..., None]
    return jnp.where(jnp.abs(distance) <= radius, window.shape(distance, radius), 0)
