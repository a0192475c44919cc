"""Recurrences of vectors: h_t = a_t * h_{t-1} + x_t, elementwise, as in the RG-LRU (De et al. 2024, Griffin).

    a_t = exp(-c softplus(L) * r_t)      x_t = sqrt(1 - a_t^2) * i_t * u_t      c = 8

with the gates r_t and i_t of the input u_t. The factor sqrt(1 - a^2) keeps the variance of h that of u.

Letters: M chunks, B batch, T time, C positions of a chunk, H state width.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import softplus
from jaxtyping import Array, Float

from s2sjax.core.backend import device
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
    first = jnp.concatenate([sight.before[..., :1], jnp.diagonal(sight.pairs, -1, -2, -1)], axis=-1)  # [M, B, C]
    places = lambda x: jnp.moveaxis(x, (0, 1, 2), (2, 1, 0))  # [B, M, C, H] -> [C, M, B, H]
    sees = jnp.moveaxis(first, 2, 0)[..., None]  # a position that does not see the one before starts from zero
    decay = jnp.where(sees, jnp.exp(places(inputs["log_decay"])), 0)
    states = _states(decay, places(inputs["value"]), state)
    return states[-1, -1], places(states)


@jax.custom_vjp
def _states(
    decay: Float[Array, "C M B H"], value: Float[Array, "C M B H"], state: VectorState
) -> Float[Array, "C M B H"]:
    """All states. The chunks advance side by side, twice: the first time from zero, to learn how each of them starts.

    The gradients l are the same recurrence from the last position to the first: l_t = a_{t+1} l_{t+1} + dh_t.
    """
    return _side_by_side(decay, value, state)


def _side_by_side(decay: Array, value: Array, state: Array, reverse: bool = False) -> Array:
    scan = partial(lax.scan, reverse=reverse, unroll=device.scan_unroll())

    def one(state, now):
        decay, value = now
        state = decay * state + value
        return state, state

    identity = jnp.ones_like(decay[0]), jnp.zeros_like(value[0])
    ends, _ = scan(lambda chunk, now: (_combine(chunk, now), None), identity, (decay, value))
    _, after = scan(one, state, ends)
    starts = jnp.concatenate([after[1:], state[None]] if reverse else [state[None], after[:-1]])
    return scan(one, starts, (decay, value))[1]


def _states_forward(decay: Array, value: Array, state: Array):
    states = _states(decay, value, state)
    return states, (decay, state, states)


def _states_backward(saved, gradient):
    decay, state, states = saved
    in_time = lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])  # [T, B, H]
    places = lambda x: jnp.swapaxes(x.reshape(states.shape[1], states.shape[0], *x.shape[1:]), 0, 1)
    decay = in_time(decay)
    later = jnp.concatenate([decay[1:], jnp.zeros_like(decay[:1])])
    d_value = _side_by_side(places(later), gradient, jnp.zeros_like(state), reverse=True)
    before = jnp.concatenate([state[None], in_time(states)[:-1]])
    return d_value * places(before), d_value, decay[0] * in_time(d_value)[0]


_states.defvjp(_states_forward, _states_backward)

RG_LRU = Recurrence(_start, _step, {"log_decay": 0, "value": 0}, _chunks, _combine, _elements)
"""inputs: log_decay, value [B, T, H]: see `gates`"""
