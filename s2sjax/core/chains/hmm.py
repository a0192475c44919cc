"""Hidden Markov models with discrete states: filter, smoother, Viterbi and EM, step by step or in parallel over time.

    p(x, y) = p(x_0) prod_t p(x_t | x_{t-1}) prod_t p(y_t | x_t)        (Rabiner 1989)

The functions take one sequence: `vmap` them over a batch. Everything is in logarithms. parallel=True computes the same
by `lax.associative_scan`: products of [K, K] matrices, in log T steps on a device with enough parallelism, at K times
the work (Särkkä and García-Fernández 2021; Hassan et al. 2021).

Letters: T time, K states, V symbols, N sequences. Arguments:
initial: log p(x_0)
transition: log p(x_t = j | x_{t-1} = i) at [i, j]
observed: log p(y_t | x_t = k), so that observations may be of any kind; for symbols see `Model.observe`. A step
without an observation has a row of zeros
mask: False for padding, which is at the end and has no effect; None: no padding
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import logsumexp
from jaxtyping import Array, Bool, Float, Int

Initial = Float[Array, " K"]
Transition = Float[Array, "K K"]
Observed = Float[Array, "T K"]
Mask = Bool[Array, " T"]


class Model(NamedTuple):
    """The parameters of a model with discrete symbols, all as logarithms."""

    initial: Initial  # p(x_0)
    transition: Transition  # p(x_t = j | x_{t-1} = i) at [i, j]
    emission: Float[Array, "K V"]  # p(y | x)

    def observe(self, symbols: Int[Array, " T"]) -> Observed:
        """The log-probabilities of the symbols in each state."""
        return self.emission.T[symbols]


class Filtered(NamedTuple):
    """The result of `filter`."""

    log_likelihood: Float[Array, ""]  # log p(y), -inf if the observations are impossible
    states: Float[Array, "T K"]  # log p(x_t | y_0 ... y_t)


class Smoothed(NamedTuple):
    """The result of `smooth`. If the observations are impossible, `states` and `transitions` are zero."""

    log_likelihood: Float[Array, ""]  # -inf if the observations are impossible
    states: Float[Array, "T K"]  # p(x_t | y), zero at padding
    transitions: Float[Array, "K K"]  # expected number of steps from i to j


class Path(NamedTuple):
    """The result of `viterbi`."""

    states: Int[Array, " T"]  # the most probable x, -1 at padding
    log_prob: Float[Array, ""]  # log p(x, y)


def filter(
    initial: Initial, transition: Transition, observed: Observed, mask: Mask | None = None, parallel=False
) -> Filtered:
    """Filters: a_t(j) = p(y_t | j) sum_i a_{t-1}(i) p(j | i), normalised."""
    forward = _forward(initial, transition, observed, _mask(observed, mask), parallel)
    return Filtered(logsumexp(forward[-1]), _normalized(forward))


def smooth(
    initial: Initial, transition: Transition, observed: Observed, mask: Mask | None = None, parallel=False
) -> Smoothed:
    """Smooths by forward-backward: p(x_t | y) = a_t b_t / p(y), b_t(i) = sum_j p(j | i) p(y_{t+1} | j) b_{t+1}(j)."""
    mask = _mask(observed, mask)
    forward = _forward(initial, transition, observed, mask, parallel)
    backward = _backward(transition, observed, mask, parallel)
    total = logsumexp(forward[-1])
    real = jnp.isfinite(total) & mask
    # The sum over states is p(y) at every t. Each t uses its own sum: log p(y) of a long sequence has few exact digits.
    states = jnp.exp(_normalized(forward + backward))
    steps = forward[:-1, :, None] + transition[None] + (observed + backward)[1:, None, :]  # [T-1, K, K]
    steps = jnp.exp(_normalized(steps.reshape(len(steps), -1)).reshape(steps.shape))
    transitions = jnp.sum(jnp.where(real[1:, None, None], steps, 0), axis=0)
    return Smoothed(total, jnp.where(real[:, None], states, 0), transitions)


def viterbi(
    initial: Initial, transition: Transition, observed: Observed, mask: Mask | None = None, parallel=False
) -> Path:
    """The most probable states, argmax_x p(x, y). Ties go to the lowest state."""
    mask = _mask(observed, mask)
    scores = _forward(initial, transition, observed, mask, parallel, reduce=jnp.max)
    before = jnp.argmax(scores[:-1, :, None] + transition[None], axis=1)  # [T-1, K] the best state before each state
    before = jnp.where(mask[1:, None], before, jnp.arange(len(initial)))
    last = jnp.argmax(scores[-1])
    if parallel:  # composing all later choices gives x_t
        after = lambda later, earlier: jnp.take_along_axis(earlier, later, axis=-1)
        composed = lax.associative_scan(after, before, reverse=True)
        states = jnp.append(composed[:, last], last)
    else:
        _, states = lax.scan(lambda state, choice: (choice[state], choice[state]), last, before, reverse=True)
        states = jnp.append(states, last)
    return Path(jnp.where(mask, states, -1), jnp.max(scores[-1]))


class Counts(NamedTuple):
    """Expected counts, which the M-step normalises."""

    initial: Float[Array, " K"]
    transition: Float[Array, "K K"]
    emission: Float[Array, "K V"]


def expected_counts(
    model: Model, symbols: Int[Array, " T"], mask: Mask | None = None, parallel=False
) -> tuple[Float[Array, ""], Counts]:
    """The E-step of one sequence -> (log-likelihood, expected counts)."""
    found = smooth(model.initial, model.transition, model.observe(symbols), mask, parallel)
    emission = jax.ops.segment_sum(found.states, symbols, model.emission.shape[1]).T  # [K, V]
    return found.log_likelihood, Counts(found.states[0], found.transitions, emission)


def em_step(
    model: Model, symbols: Int[Array, "N T"], mask: Bool[Array, "N T"] | None = None, parallel=False
) -> tuple[Model, Float[Array, ""]]:
    """One step of EM (Baum et al. 1970) -> (new model, log-likelihood of the given one).

    The log-likelihood never decreases. A state that is never visited keeps its probabilities.
    """
    mask = jnp.ones(symbols.shape, bool) if mask is None else mask
    each = jax.vmap(lambda y, real: expected_counts(model, y, real, parallel))
    log_likelihoods, counts = each(symbols, mask)

    def maximize(count: Array, old: Array) -> Array:
        count = count.sum(0)
        total = count.sum(-1, keepdims=True)
        return jnp.where(total > 0, jnp.log(count) - jnp.log(jnp.where(total > 0, total, 1)), old)

    return Model(*(maximize(*pair) for pair in zip(counts, model))), log_likelihoods.sum()


def em(
    model: Model, symbols: Int[Array, "N T"], mask: Bool[Array, "N T"] | None = None, steps: int = 10, parallel=False
) -> tuple[Model, Float[Array, " {steps}"]]:
    """Several steps of EM -> (model, log-likelihood before each step)."""
    return lax.scan(lambda now, _: em_step(now, symbols, mask, parallel), model, length=steps)


# -------------------------------------------------------------------- forward and backward recursions


def _mask(observed: Array, mask: Array | None) -> Array:
    return jnp.ones(len(observed), bool) if mask is None else mask


def _normalized(logs: Array) -> Array:
    """Normalises rows of log-probabilities. Subtracts the maximum first, to keep precision for large values."""
    most = jnp.max(logs, axis=-1, keepdims=True)
    logs = logs - jnp.where(jnp.isfinite(most), most, 0)
    return jnp.where(jnp.isfinite(most), logs - logsumexp(logs, axis=-1, keepdims=True), -jnp.inf)


def _forward(
    initial: Array, transition: Array, observed: Array, mask: Array, parallel: bool, reduce=logsumexp
) -> Array:
    """log a_t [T, K]; `reduce` is over the previous state: logsumexp, or the maximum for Viterbi."""
    first = jnp.where(mask[0], initial + observed[0], initial)
    if parallel:
        steps = _step_matrices(transition, observed, mask)
        steps = steps.at[0].set(jnp.broadcast_to(first, steps[0].shape))
        return lax.associative_scan(lambda a, b: _product(a, b, reduce), steps)[:, 0]

    def step(before: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        row, real = inputs
        after = jnp.where(real, reduce(before[:, None] + transition, axis=0) + row, before)
        return after, after

    _, others = lax.scan(step, first, (observed[1:], mask[1:]))
    return jnp.concatenate([first[None], others])


def _backward(transition: Array, observed: Array, mask: Array, parallel: bool) -> Array:
    """log b_t [T, K]."""
    last = jnp.zeros_like(observed[:1])
    if parallel:
        steps = _step_matrices(transition, observed, mask)[1:]
        products = lax.associative_scan(lambda later, earlier: _product(earlier, later), steps, reverse=True)
        return jnp.concatenate([logsumexp(products, axis=-1), last])

    def step(after: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        row, real = inputs
        before = jnp.where(real, logsumexp(transition + row[None] + after[None], axis=1), after)
        return before, before

    _, others = lax.scan(step, last[0], (observed[1:], mask[1:]), reverse=True)
    return jnp.concatenate([others, last])


def _step_matrices(transition: Array, observed: Array, mask: Array) -> Array:
    """log p(y_t, x_t = j | x_{t-1} = i) [T, K, K]; the identity at padding."""
    nothing = jnp.where(jnp.eye(len(transition), dtype=bool), 0, -jnp.inf)
    return jnp.where(mask[:, None, None], transition[None] + observed[:, None, :], nothing)


def _product(a: Array, b: Array, reduce=logsumexp) -> Array:
    """The product of two matrices [..., K, K] given as logarithms."""
    return reduce(a[..., :, :, None] + b[..., None, :, :], axis=-2)
