"""Sampled softmax: estimates the normaliser of a large vocabulary from a sample of words.

Bengio and Senecal 2008; Jean et al. 2015.

Letters: V vocabulary, K sampled words. Words are sampled from a proposal q, with replacement, once for a whole batch.
Each sampled word that is not the label has weight 1 / (K q):

    Z  = sum_v exp(s_v)
    Z^ = exp(s_y) + sum_k [w_k != y] exp(s_{w_k} - log(K q_{w_k}))         E[Z^] = Z, for every label y
    loss = log Z^ - s_y

Samples that equal the label are ignored, because the label is already in the sum. The loss is biased slightly low,
because log is concave; the bias vanishes as K grows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, PRNGKeyArray, Shaped, UInt32

from s2sjax.core.losses.token_losses import Total

Logits = Float[Array, "*shape"]
Labels = Int[Array, "*shape"]
Sampled = Float[Array, "*shape K"]
Words = Int[Array, " K"]
LogQ = Float[Array, " K"]


class Proposal(NamedTuple):
    """A distribution over words that is sampled exactly: word v has 2^32 q_v of the 32-bit integers, at least one."""

    bounds: UInt32[np.ndarray, " V-1"]  # the first integer of each word but word 0, ascending
    log_q: Float32[np.ndarray, " V"]


def proposal(weights: Sequence[float] | Shaped[np.ndarray, " V"]) -> Proposal:
    """A proposal with q proportional to `weights`, to within 2^-32: [1, 3] -> bounds [2^30], q = 1/4, 3/4."""
    weights = np.asarray(weights, np.float64)
    shares = np.maximum(np.floor(weights / weights.sum() * 2.0**32).astype(np.int64), 1)
    shares[np.argmax(shares)] += 2**32 - shares.sum()  # the rounding error
    return Proposal(np.cumsum(shares)[:-1].astype(np.uint32), np.log(shares / 2.0**32).astype(np.float32))


def log_uniform(size: int) -> Proposal:
    """Zipf's law for ids sorted from frequent to rare: q_v = log((v + 2) / (v + 1)) / log(V + 1)."""
    return proposal(np.log1p(1 / (np.arange(size) + 1.0)))


def draw(q: Proposal, key: PRNGKeyArray, count: int) -> Int[Array, " {count}"]:
    """Samples K = `count` words from q."""
    numbers = jax.random.bits(key, (count,), jnp.uint32)
    return jnp.searchsorted(jnp.asarray(q.bounds), numbers, side="right").astype(jnp.int32)


def log_normaliser(true: Logits, others: Sampled, words: Words, log_q: LogQ, labels: Labels) -> Logits:
    """The estimate log Z^, from the logits of the labels, and of the sampled words with their log-probabilities."""
    words, log_q = (jax.lax.broadcast_to_rank(each, others.ndim) for each in (words, log_q))
    corrected = others - (jnp.log(words.shape[-1]) + log_q)
    corrected = jnp.where(words == labels[..., None], -jnp.inf, corrected)
    return jax.nn.logsumexp(jnp.concatenate([true[..., None], corrected], axis=-1), axis=-1)


def cross_entropy(
    true: Logits, others: Sampled, words: Words, log_q: LogQ, labels: Labels, mask: Bool[Array, "*shape"]
) -> Total:
    """log Z^ - s_y where the mask is True. Other arguments: see `log_normaliser`."""
    loss = log_normaliser(true, others, words, log_q, labels) - true
    return jnp.sum(jnp.where(mask, loss, 0)), jnp.sum(mask).astype(loss.dtype)
