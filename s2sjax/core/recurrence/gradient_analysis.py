"""Analysis of the memory and the gradients of a recurrent cell. Each function takes one sentence.

Letters: T time, D input width, H state width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from s2sjax.core.recurrence import cells
from s2sjax.core.recurrence.cells import Carry, Cell, Weights


class Unrolled(NamedTuple):
    """States as weighted sums: h_t = sum_s shares[t, s] candidates[s]. The shares of a step sum to one."""

    shares: Float[Array, "T 1+T H"]  # zero for s > t + 1
    candidates: Float[Array, "1+T H"]  # h_0, then h~_1 ... h~_T


def unroll_blend(cell: Cell, weights: Weights, xs: Float[Array, "T D"], h: Float[Array, " H"]) -> Unrolled:
    """Unrolls a GRU's states into weighted sums of its first state h and of all candidates so far.

    h_t = u_t h_{t-1} + (1 - u_t) h~_t gives h~_s the share (1 - u_s) u_{s+1} ... u_t, and h_0 the share u_1 ... u_t.
    With u = 1/2 throughout: h_2 = 1/4 h_0 + 1/4 h~_1 + 1/2 h~_2. For any cell with `blend`: the GRUs, minGRU, minLSTM.
    """
    blend = cell.blend
    if blend is None:
        raise ValueError("the cell has no `blend`: use one of the form h = u h' + (1 - u) h~, such as gru")
    steps = len(xs)

    def body(carry, inputs):
        h, shares = carry
        place, projected = inputs
        u, candidate = blend(weights, projected, h)
        shares = (shares * u[None]).at[place].set(1 - u)
        return (u * h + (1 - u) * candidate, shares), (shares, candidate)

    first = jnp.zeros_like(h, shape=(1 + steps, len(h))).at[0].set(1)
    _, (shares, candidates) = lax.scan(body, (h, first), (1 + jnp.arange(steps), cells.project(weights, xs)))
    return Unrolled(shares, jnp.concatenate([h[None], candidates]))


def forget_products(cell: Cell, weights: Weights, xs: Float[Array, "T D"], carry: Carry) -> Float[Array, "1+T H"]:
    """dc_T / dc_t = f_T ... f_{t+1} of an LSTM with its gates held constant, for t = 0 ... T.

    The last row is one. Forget gates of 1/2 over three steps give 1/8, 1/4, 1/2, 1.
    """
    place = cell.gates.index("forget")

    def body(carry, projected):
        h, c = carry
        f = jnp.split(cells.preactivations(weights, projected, h), len(cell.gates), axis=-1)[place]
        f = f + weights["peephole"][: len(c)] * c if "peephole" in weights else f
        return cells.step(cell, weights, carry, projected)[0], jax.nn.sigmoid(f)

    _, forgets = lax.scan(body, carry, cells.project(weights, xs))
    last = jnp.ones_like(forgets[:1])
    return jnp.cumprod(jnp.concatenate([forgets, last])[::-1], axis=0)[::-1]


def gradient_norms(cell: Cell, weights: Weights, xs: Float[Array, "T D"], carry: Carry) -> Float[Array, " 1+T"]:
    """|dh_T / dh_t|, the largest singular value, for the distances T - t = 0 ... T.

    For an LSTM, the paths from h_t through later cell states count; c_t itself is held constant.
    """
    width = carry[0].shape[-1]
    split = lambda flat: tuple(jnp.split(flat, cell.carries))

    def body(flat, projected):
        move = lambda flat: jnp.concatenate(cells.step(cell, weights, split(flat), projected)[0])
        return move(flat), jax.jacfwd(move)(flat)

    flat = jnp.concatenate(carry)
    _, jacobians = lax.scan(body, flat, cells.project(weights, xs))  # [T, C*H, C*H]

    def further(product, jacobian):
        product = product @ jacobian  # J_T ... J_{t+1}
        return product, product

    own = jnp.eye(len(flat), dtype=flat.dtype)
    _, products = lax.scan(further, own, jacobians, reverse=True)
    products = jnp.concatenate([own[None], products[::-1]])
    return jnp.linalg.norm(products[:, :width, :width], ord=2, axis=(1, 2))


def gradient_bound(state: Float[Array, "H H"], steps: int, gamma: float = 1.0) -> Float[Array, " 1+{steps}"]:
    """(gamma lambda_1)^d for the distances d = 0 ... steps, lambda_1 the largest singular value of W_h = `state`.

    An upper bound of the gradient of a plain RNN, where gamma is the maximum slope of its
    nonlinearity: 1 for tanh (Pascanu et al. 2013). If gamma lambda_1 is below 1 the gradient vanishes; above 1 it may
    explode. The bound does not hold for gated cells.
    """
    return (gamma * jnp.linalg.norm(state, ord=2)) ** jnp.arange(1 + steps)
