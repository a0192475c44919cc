"""Ensembles: several models combined into one.

    log     logits = 1/m sum_i log p_i            geometric mean, normalised by the softmax of the search
    linear  logits = ln(1/m sum_i p_i)            arithmetic mean of the probabilities

The models must share the target vocabulary. The attention is the mean of theirs, or None if one of them has none.
"""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from s2sjax.core.search.beam_interface import Beams

Mean = Literal["log", "linear"]


def mean_of_log_probs(logits: Sequence[Float[Array, "*shape V"]], mean: Mean) -> Float[Array, "*shape V"]:
    """Combines the logits of the models into those of the ensemble."""
    log_probs = jnp.stack([jax.nn.log_softmax(each) for each in logits])
    if mean == "log":
        return log_probs.mean(0)
    return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(len(logits))


def combine(members: Sequence[Beams], mean: Mean) -> Beams:
    """Combines several models into one, whose state is the tuple of their states."""

    def step(states: tuple, token: Int[Array, "B K"]):
        states, logits, attention = zip(*(one.step(state, token) for one, state in zip(members, states)))
        weights = None if any(each is None for each in attention) else sum(attention) / len(members)
        return states, mean_of_log_probs(logits, mean), weights

    each = lambda name: (
        lambda states, argument: tuple(getattr(one, name)(state, argument) for one, state in zip(members, states))
    )
    return Beams(each("tile"), step, each("reorder"))
