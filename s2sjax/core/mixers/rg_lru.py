"""Recurrences of vectors: h_t = a_t * h_{t-1} + x_t, elementwise, as in the RG-LRU (De et al. 2024, Griffin).

    a_t = exp(-c softplus(L) * r_t)      x_t = sqrt(1 - a_t^2) * i_t * u_t      c = 8

with the gates r_t and i_t of the input u_t. The factor sqrt(1 - a^2) keeps the variance of h that of u.

Letters: B batch, T time, M chunks, C positions of a chunk, H state width.
"""

import jax.numpy as jnp
from jax import lax
from jax.nn import softplus
from jaxtyping import Array, Float

from s2sjax.core.backend.matmul import at_least_float32
from s2sjax.core.mixers.forms import Inputs, Recurrence, Sight

VectorState = Float[Array, "B H"]
SHARPNESS = 8.0
"""c above"""


def gates(
    u: Float[Array, "*shape H"], r: Float[Array, "*shape H"], i: Float[Array, "*shape H"], rate: Float[Array, " H"]
) -> dict[str, Float[Array, "*shape H"]]:
    """The inputs of `RG_LRU` from u, from its gates r and i in (0, 1), and from the parameter L, `rate`."""
    exact = at_least_float32(u.dtype)
    log_decay = -SHARPNESS * lax.broadcast_to_rank(softplus(rate.astype(exact)), u.ndim) * r.astype(exact)
    # 1 - a^2 by expm1, which is exact for a near 1; the bound keeps the gradient of the root finite at a = 1.
    scale = jnp.sqrt(jnp.maximum(-jnp.expm1(2 * log_decay), 1e-6))
    return {"log_decay": log_decay, "value": scale * (i * u).astype(exact)}


def _start(inputs: Inputs) -> VectorState:
    value = inputs["value"]
    return jnp.zeros((len(value), value.shape[-1]), at_least_float32(value.dtype))


def _step(state: VectorState, inputs: Inputs) -> tuple[VectorState, Array]:
    state = jnp.exp(inputs["log_decay"]) * state + inputs["value"]
    return state, state


def _combine(first: tuple[Array, Array], then: tuple[Array, Array]) -> tuple[Array, Array]:
    """c (a h + x) + y = (c a) h + (c x + y)."""
    return then[0] * first[0], then[0] * first[1] + then[1]


def _elements(state: VectorState, inputs: Inputs, starts: Array) -> tuple[Array, Array]:
    """The decays and inputs; the state before the row is part of the first input."""
    decay = jnp.where(starts[..., None], 0, jnp.exp(inputs["log_decay"]))
    return decay, inputs["value"].at[:, 0].add(decay[:, 0] * state)


def _chunks(state: VectorState, inputs: Inputs, sight: Sight) -> tuple[VectorState, Array]:
    decay, value = jnp.exp(inputs["log_decay"]), inputs["value"]  # [B, M, C, H]
    first = jnp.concatenate([sight.before[..., :1], jnp.diagonal(sight.pairs, -1, -2, -1)], axis=-1)  # [B, M, C]
    decay = jnp.where(first[..., None], decay, 0)  # a position that does not see the one before starts from zero
    factors, terms = lax.associative_scan(_combine, (decay, value), axis=2)

    def one(state, now):
        factor, term = now
        return factor * state + term, state

    ends = tuple(jnp.moveaxis(part[:, :, -1], 1, 0) for part in (factors, terms))
    last, before = lax.scan(one, state, ends)
    return last, factors * jnp.moveaxis(before, 0, 1)[:, :, None] + terms


RG_LRU = Recurrence(_start, _step, {"log_decay": 0, "value": 0}, _chunks, _combine, _elements)
"""inputs: log_decay, value [B, T, H]: see `gates`"""
