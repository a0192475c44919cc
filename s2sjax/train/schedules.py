"""Learning rate schedules, and the optimizer that uses them.

t counts updates from 1, W is the number of warm-up steps, N the number of training steps. Every schedule first rises
as t / W to its peak.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from s2sjax import config


def constant(peak: float, warmup: int) -> optax.Schedule:
    """peak * min(t / W, 1): `constant(1.0, 4)` gives 0.25, 0.5, 0.75, 1, 1, ... at steps 0, 1, 2, 3, 4."""
    return optax.linear_schedule(peak / warmup, peak, warmup - 1) if warmup > 1 else optax.constant_schedule(peak)


def cosine(peak: float, warmup: int, steps: int, final_fraction: float = 0.0) -> optax.Schedule:
    """Warm-up, then half a cosine from peak to final_fraction * peak at step N (Loshchilov and Hutter 2017)."""
    decay = optax.cosine_decay_schedule(peak, max(steps - warmup, 1), alpha=final_fraction)
    return optax.join_schedules([constant(peak, warmup), decay], [warmup])


def inverse_sqrt(peak: float, warmup: int) -> optax.Schedule:
    """peak * min(t / W, sqrt(W / t)) (Vaswani et al. 2017, section 5.3, scaled so that the peak is `peak`)."""
    decay = lambda since: peak * jnp.sqrt(max(warmup, 1) / (warmup + since + 1))
    return optax.join_schedules([constant(peak, warmup), decay], [warmup])


def schedule(train: config.Train) -> optax.Schedule:
    """The schedule named by train.schedule."""
    if train.schedule == "cosine":
        return cosine(train.learning_rate, train.warmup, train.steps, train.final_fraction)
    if train.schedule == "inverse_sqrt":
        return inverse_sqrt(train.learning_rate, train.warmup)
    return constant(train.learning_rate, train.warmup)


def optimizer(train: config.Train) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter 2019) on the clipped gradient, with weight decay on matrices only."""
    adam = optax.adamw(schedule(train), train.b1, train.b2, train.eps, weight_decay=train.weight_decay, mask=_is_matrix)
    return optax.chain(optax.clip_by_global_norm(train.clip), adam) if train.clip > 0 else adam


def _is_matrix(params):
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)
