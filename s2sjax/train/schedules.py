"""Learning rates as pure functions of the step, and the optimizer that follows them.

t counts updates from 1, W is the warm-up, N the number of steps. Every schedule first climbs as t / W to its peak.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from s2sjax import config

Schedule = Callable[[jax.typing.ArrayLike], jax.Array]


def constant(peak: float, warmup: int) -> Schedule:
    """peak * min(t / W, 1): `constant(1.0, 4)` gives 0.25, 0.5, 0.75, 1, 1, ... at steps 0, 1, 2, 3, 4."""

    def rate(step):
        return peak * jnp.minimum((step + 1) / max(warmup, 1), 1.0)

    return rate


def cosine(peak: float, warmup: int, steps: int, final_fraction: float = 0.0) -> Schedule:
    """Then half a cosine from peak down to final_fraction * peak at step N (Loshchilov and Hutter 2017)."""
    climb = constant(peak, warmup)

    def rate(step):
        progress = jnp.clip((step - warmup) / max(steps - warmup, 1), 0.0, 1.0)
        fall = final_fraction + (1 - final_fraction) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
        return climb(step) * fall

    return rate


def inverse_sqrt(peak: float, warmup: int) -> Schedule:
    """peak * min(t / W, sqrt(W / t)) (Vaswani et al. 2017, section 5.3, scaled so that the peak is `peak`)."""

    def rate(step):
        t, w = step + 1, max(warmup, 1)
        return peak * jnp.minimum(t / w, jnp.sqrt(w / t))

    return rate


def schedule(train: config.Train) -> Schedule:
    """The schedule that the configuration names."""
    if train.schedule == "cosine":
        return cosine(train.learning_rate, train.warmup, train.steps, train.final_fraction)
    if train.schedule == "inverse_sqrt":
        return inverse_sqrt(train.learning_rate, train.warmup)
    return constant(train.learning_rate, train.warmup)


def optimizer(train: config.Train) -> optax.GradientTransformation:
    """Adam (Kingma and Ba 2015) on the clipped gradient; matrices decay (Loshchilov and Hutter 2019), vectors not."""
    adam = optax.adamw(schedule(train), train.b1, train.b2, train.eps, weight_decay=train.weight_decay, mask=_is_matrix)
    return optax.chain(optax.clip_by_global_norm(train.clip), adam) if train.clip > 0 else adam


def _is_matrix(params):
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)
