"""Kalman filter and smoother, step by step or in parallel over time.

    x_0 ~ N(m, P)    x_t = F x_{t-1} + q_t, q_t ~ N(0, Q)    y_t = H x_t + r_t, r_t ~ N(0, R)

The functions take one sequence: `vmap` them over a batch. parallel=True computes the same by `lax.associative_scan`
(Särkkä and García-Fernández 2021).

Letters: T time, D width of the state, M width of an observation. Arguments:
ys: observations, any value where the mask is False
mask: False for steps without an observation, such as padding at the end; None: all are observed
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


class Model(NamedTuple):
    """The parameters of a linear Gaussian model."""

    mean: Float[Array, " D"]  # m of the first state
    cov: Float[Array, "D D"]  # P of the first state
    transition: Float[Array, "D D"]  # F
    noise: Float[Array, "D D"]  # Q
    observation: Float[Array, "M D"]  # H
    observation_noise: Float[Array, "M M"]  # R


class Gaussians(NamedTuple):
    """The distribution of the state at each step."""

    mean: Float[Array, "T D"]
    cov: Float[Array, "T D D"]


class Filtered(NamedTuple):
    """The result of `filter`."""

    log_likelihood: Float[Array, ""]  # log p(y)
    states: Gaussians  # p(x_t | y_0 ... y_t)


@jax.default_matmul_precision("highest")  # a GPU would multiply in TF32
def filter(model: Model, ys: Float[Array, "T M"], mask: Bool[Array, " T"] | None = None, parallel=False) -> Filtered:
    """The distribution of each state given the observations so far (Kalman 1960)."""
    mask = jnp.ones(len(ys), bool) if mask is None else mask
    ys = jnp.where(mask[:, None], ys, 0)  # unobserved values may be NaN
    states = _filter_parallel(model, ys, mask) if parallel else _filter(model, ys, mask)
    means, covs = jax.vmap(lambda m, P: _predict(model, m, P))(*jax.tree.map(lambda leaf: leaf[:-1], states))
    before = Gaussians(jnp.concatenate([model.mean[None], means]), jnp.concatenate([model.cov[None], covs]))
    log_probs = jax.vmap(lambda y, m, P: _log_prob(model, y, m, P))(ys, *before)
    return Filtered(jnp.sum(jnp.where(mask, log_probs, 0)), states)


@jax.default_matmul_precision("highest")  # a GPU would multiply in TF32
def smooth(model: Model, ys: Float[Array, "T M"], mask: Bool[Array, " T"] | None = None, parallel=False) -> Gaussians:
    """The distribution of each state given all observations (Rauch, Tung and Striebel 1965)."""
    filtered = filter(model, ys, mask, parallel).states
    steps = jax.vmap(lambda m, P: _backward_step(model, m, P))(*filtered)
    last = Gaussians(filtered.mean[-1], filtered.cov[-1])
    if parallel:
        nothing = _Backward(jnp.zeros_like(model.cov), *last)
        steps = jax.tree.map(lambda leaf, own: leaf.at[-1].set(own), steps, nothing)
        found = lax.associative_scan(jax.vmap(lambda later, earlier: _compose(earlier, later)), steps, reverse=True)
        return Gaussians(found.mean, found.cov)

    def step(after: Gaussians, back: _Backward) -> tuple[Gaussians, Gaussians]:
        composed = _compose(back, _Backward(jnp.zeros_like(back.gain), *after))
        return (before := Gaussians(composed.mean, composed.cov)), before

    _, others = lax.scan(step, last, jax.tree.map(lambda leaf: leaf[:-1], steps), reverse=True)
    return jax.tree.map(lambda leaf, end: jnp.concatenate([leaf, end[None]]), others, last)


# ---------------------------------------------------------------------------------------- the filter


def _predict(model: Model, mean: Array, cov: Array) -> tuple[Array, Array]:
    """p(x_t | y_0 ... y_{t-1})"""
    return model.transition @ mean, model.transition @ cov @ model.transition.T + model.noise


def _gain(model: Model, cov: Array) -> tuple[Array, Array]:
    """S = H P H' + R [M, M], and the gain P H' S^-1 [D, M]."""
    spread = model.observation @ cov @ model.observation.T + model.observation_noise
    return spread, jnp.linalg.solve(spread, model.observation @ cov).T


def _update(model: Model, y: Array, mean: Array, cov: Array) -> tuple[Array, Array]:
    """p(x_t | y_0 ... y_t). Joseph's form of the covariance stays symmetric and positive."""
    _, gain = _gain(model, cov)
    keep = jnp.eye(len(mean), dtype=cov.dtype) - gain @ model.observation
    new = keep @ cov @ keep.T + gain @ model.observation_noise @ gain.T
    return mean + gain @ (y - model.observation @ mean), new


def _log_prob(model: Model, y: Array, mean: Array, cov: Array) -> Array:
    """log N(y; H m, S)"""
    spread, _ = _gain(model, cov)
    error = y - model.observation @ mean
    _, log_det = jnp.linalg.slogdet(2 * jnp.pi * spread)
    return -0.5 * (error @ jnp.linalg.solve(spread, error) + log_det)


def _filter(model: Model, ys: Array, mask: Array) -> Gaussians:
    def step(before: tuple[Array, Array], inputs: tuple[Array, Array]):
        y, real = inputs
        updated = _update(model, y, *before)
        now = jax.tree.map(lambda new, old: jnp.where(real, new, old), updated, before)
        return _predict(model, *now), Gaussians(*now)

    return lax.scan(step, (model.mean, model.cov), (ys, mask))[1]


class _Forward(NamedTuple):
    """p(x_t | y_t, x_{t-1}) = N(A x_{t-1} + b, C), and p(y_t | x_{t-1}) as exp(eta' x - x' J x / 2)."""

    A: Float[Array, "D D"]
    b: Float[Array, " D"]
    C: Float[Array, "D D"]
    eta: Float[Array, " D"]
    J: Float[Array, "D D"]


def _filter_parallel(model: Model, ys: Array, mask: Array) -> Gaussians:
    F, H, Q = model.transition, model.observation, model.noise
    zeros = jnp.zeros_like(F)

    def element(y: Array, real: Array) -> _Forward:
        spread, gain = _gain(model, Q)
        back = jnp.linalg.solve(spread, H @ F).T  # F' H' S^-1
        keep = jnp.eye(len(F), dtype=F.dtype) - gain @ H
        seen = _Forward(keep @ F, gain @ y, keep @ Q, back @ y, back @ H @ F)
        return jax.tree.map(lambda a, b: jnp.where(real, a, b), seen, _Forward(F, zeros[0], Q, zeros[0], zeros))

    mean, cov = _update(model, ys[0], model.mean, model.cov)
    first = _Forward(zeros, jnp.where(mask[0], mean, model.mean), jnp.where(mask[0], cov, model.cov), zeros[0], zeros)
    elements = jax.tree.map(lambda leaf, own: leaf.at[0].set(own), jax.vmap(element)(ys, mask), first)
    found = lax.associative_scan(jax.vmap(_join), elements)
    return Gaussians(found.b, found.C)


def _join(i: _Forward, j: _Forward) -> _Forward:
    """Joins two neighbouring spans, i before j."""
    own = jnp.eye(len(i.A), dtype=i.A.dtype)
    ahead = jnp.linalg.solve((own + i.C @ j.J).T, j.A.T).T  # A_j (I + C_i J_j)^-1
    back = jnp.linalg.solve((own + j.J @ i.C).T, i.A).T  # A_i' (I + J_j C_i)^-1
    return _Forward(
        ahead @ i.A,
        ahead @ (i.b + i.C @ j.eta) + j.b,
        ahead @ i.C @ j.A.T + j.C,
        back @ (j.eta - j.J @ i.b) + i.eta,
        back @ j.J @ i.A + i.J,
    )


# -------------------------------------------------------------------------------------- the smoother


class _Backward(NamedTuple):
    """p(x_t | x_{t+1}, y_0 ... y_t) = N(G x_{t+1} + mean, cov)."""

    gain: Float[Array, "D D"]  # G
    mean: Float[Array, " D"]
    cov: Float[Array, "D D"]


def _backward_step(model: Model, mean: Array, cov: Array) -> _Backward:
    ahead_mean, ahead_cov = _predict(model, mean, cov)
    gain = jnp.linalg.solve(ahead_cov, model.transition @ cov).T  # P F' (F P F' + Q)^-1
    return _Backward(gain, mean - gain @ ahead_mean, cov - gain @ ahead_cov @ gain.T)


def _compose(earlier: _Backward, later: _Backward) -> _Backward:
    gain = earlier.gain
    return _Backward(gain @ later.gain, gain @ later.mean + earlier.mean, gain @ later.cov @ gain.T + earlier.cov)
