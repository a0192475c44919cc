"""Shapes and initial values of the weights of the layers in layers.py."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, nn

Initial = Callable[[Array, tuple[int, ...]], Array]
"""key, shape -> the initial value of a weight"""


class Weight(NamedTuple):
    """The shape of a weight, and its initial value."""

    shape: tuple[int, ...]
    initial: Initial


def matrix(inputs: int, outputs: int) -> Weight:
    """A matrix of a projection (Glorot and Bengio 2010)."""
    return Weight((inputs, outputs), nn.initializers.glorot_uniform())


def ones(*shape: int) -> Weight:
    """Scales that change nothing at first."""
    return Weight(shape, nn.initializers.ones)


def kernel(taps: int, features: int) -> Weight:
    """The kernel of a short convolution."""
    return Weight((taps, features), nn.initializers.normal(taps**-0.5))


def spread(key: Array, shape: tuple[int, ...], least: float, most: float) -> Array:
    """Values from `least` to `most` in equal steps."""
    return jnp.linspace(least, most, shape[0])


def log_rates(key: Array, shape: tuple[int, ...]) -> Array:
    """Logarithms of numbers from 1 to 16: rates of decay (Dao and Gu 2024)."""
    return jnp.log(jax.random.uniform(key, shape, minval=1.0, maxval=16.0))


def inverse_softplus_of_times(key: Array, shape: tuple[int, ...]) -> Array:
    """b with softplus(b) from 0.001 to 0.1, uniform in the logarithm: times between two positions."""
    times = jnp.exp(jax.random.uniform(key, shape, minval=math.log(1e-3), maxval=math.log(0.1)))
    return times + jnp.log(-jnp.expm1(-times))


def griffin_rates(key: Array, shape: tuple[int, ...]) -> Array:
    """L with a^8 from 0.9 to 0.999, where a = exp(-softplus(L)) (De et al. 2024)."""
    decay = jax.random.uniform(key, shape, minval=0.9, maxval=0.999) ** (1 / 8)
    return jnp.log(jnp.expm1(-jnp.log(decay)))
