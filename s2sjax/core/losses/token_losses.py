"""Losses as (sum, weight) pairs, which are added over micro-batches and devices, then divided once."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from s2sjax.core.backend import device
from s2sjax.core.traced_numbers import Scalar

Total = tuple[Float[Array, ""], Float[Array, ""]]
"""sum over real tokens, and their number"""


def cross_entropy(
    logits: Float[Array, "*shape V"], labels: Int[Array, "*shape"], mask: Bool[Array, "*shape"], smoothing: Scalar = 0.0
) -> Total:
    """-sum_v q_v log p_v over real tokens, q = (1 - smoothing) one_hot + smoothing / V (Szegedy et al. 2016).

    The logits are in float32; the mask is True for real tokens.

    >>> total, number = cross_entropy(jnp.zeros((2, 4)), jnp.array([3, 0]), jnp.array([True, False]))
    >>> jnp.exp(total / number).round(3)  # the perplexity of a uniform distribution is the size of the vocabulary
    Array(4., dtype=float32)
    """
    loss = _cross_entropies(logits, labels, jnp.asarray(smoothing, logits.dtype) if smoothing else None)
    return jnp.sum(jnp.where(mask, loss, 0)), jnp.sum(mask).astype(loss.dtype)


# The logits are the largest array of a step, so the number of reads determines the time: here one for the loss, and one
# for its gradient, p_v - q_v. JAX's own derivative reads them for each sum, and once more for the labels.


@jax.custom_vjp
def _cross_entropies(logits: Array, labels: Array, smoothing: Array | None) -> Array:
    """The cross-entropy of each token: logits [..., V], labels [...] -> [...]. No gradient for the smoothing."""
    return _forward(logits, labels, smoothing)[0]


def _forward(logits: Array, labels: Array, smoothing: Array | None):
    normaliser, mean = _normaliser_and_mean(logits)
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    loss = normaliser - (of_label if smoothing is None else (1 - smoothing) * of_label + smoothing * mean)
    return loss, (logits, labels, normaliser, smoothing)


def _backward(saved: tuple[Array, Array, Array, Array | None], gradient: Array) -> tuple[Array, None, None]:
    logits, labels, normaliser, smoothing = saved
    words = logits.shape[-1]
    smoothing = jnp.zeros((), logits.dtype) if smoothing is None else smoothing
    # An iota compared with the labels is computed where it is used; a scatter would write all logits.
    is_label = lax.broadcast_to_rank(jnp.arange(words), logits.ndim) == labels[..., None]
    q = jnp.where(is_label, 1 - smoothing + smoothing / words, smoothing / words).astype(logits.dtype)
    return (jnp.exp(logits - normaliser[..., None]) - q) * gradient[..., None], None, None


_cross_entropies.defvjp(_forward, _backward)


def _normaliser_and_mean(logits: Array) -> tuple[Array, Array]:
    """log sum_v exp(logits_v), and the mean of the logits: [..., V] -> [...] each."""
    if not device.reduces_together():
        return jax.nn.logsumexp(logits, axis=-1), jnp.mean(logits, axis=-1)

    def join(one, other):  # the highest so far, the sum of exp(logit - highest), and the sum of the logits
        lower = jnp.exp(-jnp.abs(one[0] - other[0]))  # factor of the sum with the lower maximum
        total = jnp.where(one[0] > other[0], one[1] + other[1] * lower, one[1] * lower + other[1])
        return jnp.maximum(one[0], other[0]), total, one[2] + other[2]

    zero, lowest = jnp.zeros((), logits.dtype), jnp.finfo(logits.dtype).min.astype(logits.dtype)
    each = logits, jnp.ones_like(logits), logits
    highest, total, plain = lax.reduce(each, (lowest, zero, zero), join, (logits.ndim - 1,))
    return highest + jnp.log(total), plain / logits.shape[-1]


def symmetric_divergence(
    one: Float[Array, "*shape V"], other: Float[Array, "*shape V"], mask: Bool[Array, "*shape"]
) -> Float[Array, ""]:
    """sum_v (p_v - q_v) (log p_v - log q_v) = KL(p, q) + KL(q, p), summed over real tokens, where the mask is True.

    p and q are the softmax of the logits `one` and `other`.
    """
    p, q = jax.nn.log_softmax(one), jax.nn.log_softmax(other)
    return jnp.sum(jnp.where(mask, jnp.sum((jnp.exp(p) - jnp.exp(q)) * (p - q), axis=-1), 0))


def log_likelihood(
    logits: Float[Array, "B T V"], labels: Int[Array, "B T"], mask: Bool[Array, "B T"]
) -> Float[Array, " B"]:
    """log p(labels) of each sequence; the mask is True for real tokens."""
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    return jnp.sum(jnp.where(mask, log_p, 0), axis=-1)


def doubly_stochastic(
    alpha: Float[Array, "B T S"], target: Bool[Array, "B T"], source: Bool[Array, "B S"]
) -> Float[Array, " B"]:
    """sum_s (1 - sum_t alpha_ts)^2: encourages equal total attention to all positions (Xu et al. 2015, 4.2.1).

    The masks `target` and `source` are True for real positions. The loss of a row of padding is 0.
    """
    received = jnp.sum(jnp.where(target[..., None], alpha, 0), axis=1)  # [B, S]
    missing = jnp.where(source & target.any(1, keepdims=True), 1 - received, 0)
    return jnp.sum(missing**2, axis=1)
