"""The train state and the pure function that advances it by one step.

Letters: B rows of the global batch, m micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from s2sjax import config
from s2sjax.errors import UserError

if TYPE_CHECKING:  # it is slow to import, and decoding does not need it
    import optax

Tree = Any
WeightedSums = dict[str, tuple[jax.Array, jax.Array]]
"""metrics as (sum, weight): added over micro-batches and devices, divided once"""
Loss = Callable[..., Any]
"""loss(params, batch, key, step) -> sums; sum / weight of sums["loss"] is minimised.

Tasks with a carry: loss(params, batch, key, step, carry) -> sums, carry.
"""
TrainStep = Callable[..., tuple["TrainState", dict[str, Any]]]
"""train_step(state, batch) -> state, metrics; a third argument are numbers, such as the learning rate, by name"""


class TrainState(NamedTuple):
    """Everything that a step reads and writes. Resuming needs only this, the data and the seed."""

    step: jax.Array
    """number of batches seen"""
    params: Tree
    optimizer: Tree
    ema: Tree | None
    """average of params, or None"""
    skipped: jax.Array
    """number of consecutive non-finite steps"""
    skipped_total: jax.Array
    """number of steps without an update: non-finite, or a batch of weight 0"""
    carry: Tree | None = None
    """state passed from each batch to the next, every leaf [B, ...]; None for most tasks"""


def create(
    params: Tree, optimizer: optax.GradientTransformation, ema: bool = False, carry: Tree | None = None
) -> TrainState:
    """The state before the first step. With `ema`, the average starts as a copy of the parameters."""
    average = jax.tree.map(jnp.copy, params) if ema else None
    return TrainState(jnp.int32(0), params, optimizer.init(params), average, jnp.int32(0), jnp.int32(0), carry)


def evaluation_params(state: TrainState) -> Tree:
    """The parameters to decode with: the average if one is kept."""
    return state.params if state.ema is None else state.ema


def make_train_step(loss: Loss, optimizer: optax.GradientTransformation, train: config.Train, seed: int) -> TrainStep:
    """Makes train_step(state, batch) -> state, metrics, a pure function to be jitted with the state donated.

    The gradient is d(sum)/d(params) / weight, with sum and weight taken over the whole global batch.
    A step whose loss or gradient is not finite changes only the counters. Frozen parameters (train.frozen) have no
    gradient, and the average of a frozen parameter is the parameter itself.
    The metrics are the weighted sums of `loss` and the scalars grad_norm, learning_rate, skipped.
    """
    import optax

    from s2sjax.training import fine_tuning
    from s2sjax.training.optimizers import schedule

    rate = schedule(train)

    def train_step(state: TrainState, batch: Tree) -> tuple[TrainState, dict[str, Any]]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        trained, frozen = fine_tuning.split(state.params, train.frozen)
        average, frozen_average = (None, None) if state.ema is None else fine_tuning.split(state.ema, train.frozen)
        of_trained = lambda params, *rest: loss(fine_tuning.join(params, frozen), *rest)
        sums, gradient, carry = _sum_gradient(of_trained, trained, state, batch, key, parts=train.grad_accum_steps)
        total, weight = sums["loss"]
        gradient = jax.tree.map(lambda g: g / jnp.where(weight > 0, weight, 1), gradient)
        norm = optax.global_norm(gradient)
        finite = jnp.isfinite(total) & jnp.isfinite(norm)
        updated = finite & (weight > 0)

        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(trained, updates)
        ema = None if average is None else _average(average, params, state.step - state.skipped_total, train)
        old = (trained, state.optimizer, average)
        new = (params, optimizer_state, ema)
        params, optimizer_state, ema = jax.tree.map(lambda n, o: jnp.where(updated, n, o), new, old)
        params, ema = fine_tuning.join(params, frozen), fine_tuning.join(ema, frozen_average)
        carry = jax.tree.map(lambda n, o: jnp.where(finite, n, o), carry, state.carry)

        skipped = jnp.where(updated, 0, state.skipped + ~finite)
        metrics = {
            **sums,
            "grad_norm": norm,
            "learning_rate": rate(state.step - state.skipped_total),  # the optimizer counts only updates
            "skipped": skipped,
        }
        idle = state.skipped_total + ~updated
        return TrainState(state.step + 1, params, optimizer_state, ema, skipped, idle, carry), metrics

    return train_step


def _sum_gradient(
    loss: Loss, params: Tree, state: TrainState, batch: Tree, key: jax.Array, parts: int
) -> tuple[WeightedSums, Tree, Tree | None]:
    """The weighted sums of a batch, the gradient of the *sum* of its loss, and the new carry.

    Sums and gradient are accumulated over `parts` micro-batches. Each reads and writes its own rows of the carry.
    """

    def loss_and_sums(params, batch, key, carry):
        if carry is None:
            sums = loss(params, batch, key, state.step)
        else:
            sums, carry = loss(params, batch, key, state.step, carry)
        return sums["loss"][0], (sums, carry)

    def part(index, rows):
        of_params = jax.grad(loss_and_sums, has_aux=True)
        gradient, (sums, carry) = of_params(params, rows[0], jax.random.fold_in(key, index), rows[1])
        return (sums, gradient), carry

    if parts == 1:
        (sums, gradient), carry = part(0, (batch, state.carry))
        return sums, gradient, carry
    rows = jax.tree.map(lambda leaf: _split(leaf, parts), (batch, state.carry))
    first = jax.tree.map(lambda leaf: leaf[0], rows)
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(part, 0, first)[0])

    def add(total, xs):
        found, carry = part(*xs)
        return jax.tree.map(jnp.add, total, found), carry

    (sums, gradient), carry = jax.lax.scan(add, zero, (jnp.arange(parts), rows))
    return sums, gradient, jax.tree.map(_join, carry)


def _split(leaf: jax.Array, parts: int) -> jax.Array:
    """[B, ...] -> [m, B/m, ...]: micro-batch i gets the rows i, m+i, 2m+i, ...

    Each device holds consecutive rows, so every micro-batch takes an equal share of the rows of each device and no row
    moves: with B=4, m=2 on two devices, rows 01|23 become 0|2 and 1|3.
    """
    rows = leaf.shape[0]
    if rows % parts:
        raise UserError(
            f"a batch of {rows} rows cannot be split into train.grad_accum_steps {parts}: use a divisor of {rows}"
        )
    return jnp.moveaxis(leaf.reshape(rows // parts, parts, *leaf.shape[1:]), 1, 0)


def _join(leaf: jax.Array) -> jax.Array:
    """[m, B/m, ...] -> [B, ...]: the inverse of `_split`."""
    return jnp.moveaxis(leaf, 0, 1).reshape(-1, *leaf.shape[2:])


def _average(ema: Tree, params: Tree, updates: jax.Array, train: config.Train) -> Tree:
    """d * ema + (1 - d) * params with d = min(decay, (1 + t) / (10 + t)), so that early values fade quickly.

    t counts updates. With `average_from` f, d = n / (n + 1) with n = max(t - f, 0): the parameters themselves up to
    update f, then the mean over all later updates (Polyak and Juditsky 1992).
    """
    import optax

    if train.average_from:
        past = jnp.maximum(updates - train.average_from, 0).astype(jnp.float32)
        return optax.incremental_update(params, ema, 1 / (past + 1))
    return optax.incremental_update(params, ema, 1 - jnp.minimum(train.ema, (1.0 + updates) / (10.0 + updates)))
