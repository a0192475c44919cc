"""Losses as (sum, weight) pairs: added over micro-batches and devices, divided once."""

import jax
import jax.numpy as jnp
from jax import Array

Total = tuple[Array, Array]
"""(sum over real tokens, their number)"""


def cross_entropy(logits: Array, labels: Array, mask: Array, smoothing: float = 0.0) -> Total:
    """-sum_v q_v log p_v over real tokens, q = (1 - smoothing) one_hot + smoothing / V (Szegedy et al. 2016).

    logits [..., V] float32, labels [...], mask [...].
    """
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    # An iota compared with the labels fuses into the sum; a gather along V does not, and costs more on every backend.
    is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
    loss = normaliser - (1 - smoothing) * jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
    if smoothing:
        loss -= smoothing * jnp.mean(logits, axis=-1)
    return jnp.sum(jnp.where(mask, loss, 0)), jnp.sum(mask).astype(loss.dtype)


def log_likelihood(logits: Array, labels: Array, mask: Array) -> Array:
    """log p(labels) of each sequence: logits [B, T, V], labels and mask [B, T] -> [B]."""
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    return jnp.sum(jnp.where(mask, log_p, 0), axis=-1)
