"""The sLSTM: an LSTM with exponential gates and a normalizer (Beck et al. 2024, xLSTM).

    z, i~, f~, o~ = W x_t + R h_{t-1} + b      m_t = max(log f_t + m_{t-1}, i~)
    c_t = f' c_{t-1} + i' tanh(z)              f' = exp(log f_t + m_{t-1} - m_t), log f_t = log sigmoid(f~)
    n_t = f' n_{t-1} + i'                      i' = exp(i~ - m_t)
    h_t = sigmoid(o~) c_t / n_t

R has one block for each head. The gates depend on h_{t-1}: there is no parallel form, and `scan` is the only one.

Letters: B batch, T time, N heads, D width of a head.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from s2sjax.core.backend.matmul import at_least_float32
from s2sjax.core.mixers.forms import Inputs, Recurrence
from s2sjax.core.mixers.mlstm import NEVER

GATES = ("candidate", "input", "forget", "output")


class SLSTMState(NamedTuple):
    """All [B, N, D]."""

    h: Float[Array, "B N D"]
    c: Float[Array, "B N D"]
    n: Float[Array, "B N D"]
    m: Float[Array, "B N D"]


def _start(inputs: Inputs) -> SLSTMState:
    rows, _, heads, width = inputs["gates"].shape
    empty = jnp.zeros((rows, heads, width // len(GATES)), at_least_float32(inputs["gates"].dtype))
    return SLSTMState(empty, empty, empty, empty + NEVER)  # so that the first input counts in full


def slstm(recurrent: Float[Array, "N D 4*D"]) -> Recurrence:
    """The recurrence with the matrices R of the heads. inputs: gates [B, T, N, 4D], which is W x + b."""

    dtype = recurrent.dtype
    recurrent = recurrent.astype(at_least_float32(dtype))  # so that the gradients of all positions are added in float32

    def step(state: SLSTMState, inputs: Inputs) -> tuple[SLSTMState, Array]:
        projected = inputs["gates"]
        exact = state.h.dtype
        from_state = jnp.einsum("bnd,ndg->bng", state.h.astype(dtype), recurrent.astype(dtype))
        z, log_input, f, o = jnp.split((projected + from_state).astype(exact), len(GATES), axis=-1)
        log_forget = jax.nn.log_sigmoid(f)
        m = jnp.maximum(log_forget + state.m, log_input)
        kept, written = jnp.exp(log_forget + state.m - m), jnp.exp(log_input - m)
        c = kept * state.c + written * jnp.tanh(z)
        n = kept * state.n + written
        h = jax.nn.sigmoid(o) * c / n
        return SLSTMState(h, c, n, m), h.astype(projected.dtype)

    return Recurrence(_start, step, {})
