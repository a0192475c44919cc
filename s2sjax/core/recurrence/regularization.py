"""Regularisation of recurrent language models (Merity, Keskar and Socher 2017).

Letters: B batch, T time, H state width, V vocabulary.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from s2sjax.core.nn.dropout import keep_mask
from s2sjax.core.traced_numbers import Scalar

STATE_MATRICES = ("state", "candidate")
"""names of the weights of a cell that multiply its last state: see cells.py"""


def drop_weights(key: PRNGKeyArray, weights: Mapping[str, Array], rate: Scalar) -> dict[str, Array]:
    """Applies DropConnect (Wan et al. 2013) to the state-to-state matrices of a cell: M * keep / (1 - rate).

    All steps of all rows share one mask, so it is applied once, before the scan.
    """
    found = dict(weights)
    for name in STATE_MATRICES:
        if name in found:
            key, own = jax.random.split(key)
            found[name] = _dropped(keep_mask(own, found[name].shape, rate), found[name], rate)
    return found


def drop_words(
    key: PRNGKeyArray, ids: Int[Array, "B T"], embedded: Float[Array, "B T H"], size: int, rate: Scalar
) -> Float[Array, "B T H"]:
    """Drops whole words: every occurrence of a dropped word in the batch becomes zero (Gal and Ghahramani 2016).

    `embedded` are the embeddings of the words `ids`, of a vocabulary of V = `size` words.
    """
    return _dropped(keep_mask(key, (size,), rate)[ids][..., None], embedded, rate)


def _dropped(keep: Array, x: Array, rate: Scalar) -> Array:
    return jnp.where(keep, x * jnp.asarray(1 / (1 - rate), x.dtype), 0).astype(x.dtype)


def activation_penalty(states: Float[Array, "B T H"], mask: Bool[Array, "B T"]) -> Float[Array, ""]:
    """Activation regularisation (AR): the mean over H of h_t^2, summed over real steps, where the mask is True."""
    squares = jnp.mean(jnp.square(states.astype(jnp.float32)), axis=-1)
    return jnp.sum(jnp.where(mask, squares, 0))


def temporal_penalty(states: Float[Array, "B T H"], mask: Bool[Array, "B T"]) -> Float[Array, ""]:
    """Temporal activation regularisation (TAR): `activation_penalty` of h_t - h_{t-1}, times T / (T - 1).

    The factor makes up for the missing difference of each row: divided by the number of steps of full segments, the
    result is the mean over all differences.
    """
    steps = states.shape[1]
    if steps < 2:
        return jnp.zeros((), jnp.float32)
    apart = states[:, 1:].astype(jnp.float32) - states[:, :-1].astype(jnp.float32)
    return activation_penalty(apart, mask[:, 1:]) * (steps / (steps - 1))
