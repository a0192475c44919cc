"""A model that advances several prefixes of each sentence at once.

Letters: B batch, K prefixes of a sentence, V vocabulary, S source.

A model is given as `step(state, token [B]) -> state, logits [B, V], attention [B, S] or None`, every leaf of the state
[B, ...]. `as_beams` extends it to K prefixes by `vmap`: the memory, which `step` closes over, is shared by the K
prefixes, not copied. A model can define its own `Beams` if it can reorder them faster: see
models/families/transformer.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from s2sjax.core.search.hypotheses import gather

State = Any
Step = Callable[[State, Int[Array, " B"]], tuple[State, Float[Array, "B V"], Float[Array, "B S"] | None]]


class Beams(NamedTuple):
    """The functions that advance K prefixes of each sentence."""

    tile: Callable[[State, int], State]  # copies the state of one prefix per sentence K times
    step: Callable[[State, Int[Array, "B K"]], tuple[State, Float[Array, "B K V"], Float[Array, "B K S"] | None]]
    reorder: Callable[[State, Int[Array, "B K"]], State]  # origin: the new prefix k continues the old prefix origin[k]


def as_beams(step: Step | Beams) -> Beams:
    """Extends a step to K prefixes by `vmap`: every leaf of their state is [B, K, ...]. Leaves `Beams` unchanged."""
    if isinstance(step, Beams):
        return step
    tile = lambda state, width: jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], width, axis=1), state)
    reorder = lambda state, origin: jax.tree.map(lambda leaf: gather(leaf, origin), state)
    return Beams(tile, jax.vmap(step, in_axes=1, out_axes=1), reorder)
