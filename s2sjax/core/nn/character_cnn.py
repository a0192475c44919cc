"""Word vectors from characters (Kim et al. 2016): convolutions, max pooling over time, highway layers.

Letters: C characters of a word, A width of a character, F features, M width of a kernel.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def max_over_time(
    kernel: Float[Array, "M A F"],
    bias: Float[Array, " F"],
    characters: Float[Array, "*shape C A"],
    real: Bool[Array, "*shape C"],
) -> Float[Array, "*shape F"]:
    """max over t of tanh(b + sum_m c_{t+m} W_m), for the embedded characters of each word, at least one.

    A window begins at every real character and reads zeros after the last one, so that short words have windows too,
    and padding has no effect.
    """
    length, width = characters.shape[-2], len(kernel)
    before = [(0, 0)] * (characters.ndim - 2)
    padded = jnp.pad(jnp.where(real[..., None], characters, 0), [*before, (0, width - 1), (0, 0)])
    windows = sum(padded[..., m : m + length, :] @ kernel[m] for m in range(width))  # [..., C, F]
    states = jnp.where(real[..., None], jnp.tanh(windows + jax.lax.broadcast_to_rank(bias, real.ndim + 1)), -1)
    # Not jnp.max, whose gradient divides by the number of positions equal to the maximum: if XLA recomputes them with
    # different rounding, that number can be 0.
    first = jnp.argmax(jax.lax.stop_gradient(states), axis=-2, keepdims=True)
    place = jax.lax.broadcast_to_rank(jnp.arange(length)[:, None], first.ndim)
    return jnp.sum(jnp.where(place == first, states, 0), axis=-2)


def features(
    convolutions: Sequence[tuple[Array, Array]], characters: Float[Array, "*shape C A"], real: Bool[Array, "*shape C"]
) -> Float[Array, "*shape F"]:
    """Concatenates the features of several convolutions (kernel, bias)."""
    return jnp.concatenate([max_over_time(*each, characters, real) for each in convolutions], axis=-1)


def highway(
    transform: Float[Array, "*shape F"], gate: Float[Array, "*shape F"], y: Float[Array, "*shape F"]
) -> Float[Array, "*shape F"]:
    """t relu(transform) + (1 - t) y with t = sigmoid(gate - 2) (Srivastava et al. 2015).

    `transform` and `gate` are linear functions of y. The constant -2 makes the layer pass y on initially.
    """
    t = jax.nn.sigmoid(gate - 2)
    return t * jax.nn.relu(transform) + (1 - t) * y
