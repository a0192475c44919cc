"""Masked language modelling (Devlin et al. 2019): chooses the words of a sequence that a model has to predict.

Letters: S positions, K maximum number of predicted positions.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from s2sjax.core.nn.dropout import random_bits
from s2sjax.core.traced_numbers import Scalar


class Masked(NamedTuple):
    """The input and the predicted positions of one sequence."""

    ids: Int[Array, " S"]  # token ids that the model reads
    positions: Int[Array, " K"]  # positions to predict, those that count first
    counts: Bool[Array, " K"]  # whether a position counts


def most(length: int, rate: Scalar) -> int:
    """K, the maximum number of predicted words among `length` positions."""
    return max(1, math.ceil(rate * length))


def mask_words(key: PRNGKeyArray, ids: Int[Array, " S"], rate: Scalar, mask: int, first: int, size: int) -> Masked:
    """Chooses max(1, round(rate * n)) of the n words of a sequence. A chosen word becomes

        <mask>            with probability 0.8
        a random word     with probability 0.1
        itself            with probability 0.1

    Words are the ids from `first` up to `size`, exclusive: lower ids, such as <pad>, are never chosen nor drawn. `mask`
    is the id of <mask>. The choice depends on the key and the words, not on the padding after them.
    """
    (S,), is_word = ids.shape, ids >= first
    where, how, what = (random_bits(each, (S,)) for each in jax.random.split(key, 3))
    K, words = most(S, rate), jnp.sum(is_word)
    count = jnp.where(words > 0, jnp.clip(jnp.round(rate * words), 1, K), 0)
    score = jnp.where(is_word, (where >> 1).astype(jnp.int32), -1)
    _, positions = lax.top_k(score, K)
    counts = jnp.arange(K) < count
    chosen = jnp.zeros(S, bool).at[positions].set(counts)
    drawn = first + (what % jnp.uint32(size - first)).astype(jnp.int32)
    below = lambda probability: how < jnp.uint32(round(probability * 2**32))
    new = jnp.where(below(0.8), mask, jnp.where(below(0.9), drawn, ids))
    return Masked(jnp.where(chosen, new, ids), positions, counts)
