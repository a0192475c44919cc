"""Learning rates computed by hand, and weight decay that leaves biases alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax import config
from s2sjax.training import optimizers


def rates(schedule, steps):
    return np.array([schedule(step) for step in steps])


def test_every_schedule_climbs_in_a_straight_line_to_its_peak():
    others = [make(2.0, 4, 100) for make in (optimizers.cosine, optimizers.linear, optimizers.wsd)]
    for rate in (optimizers.constant(2.0, 4), optimizers.inverse_sqrt(2.0, 4), *others):
        np.testing.assert_allclose(rates(rate, range(4)), [0.5, 1.0, 1.5, 2.0], rtol=1e-6)


def test_what_follows_the_peak():
    np.testing.assert_allclose(rates(optimizers.constant(2.0, 4), [4, 9, 10**6]), 2.0, rtol=1e-6)
    # the middle of the cosine is the mean of peak and end; the end is kept afterwards
    cosine = optimizers.cosine(2.0, 10, 110, final_fraction=0.1)
    np.testing.assert_allclose(rates(cosine, [10, 60, 110, 500]), [2.0, 1.1, 0.2, 0.2], rtol=1e-6)
    linear = optimizers.linear(2.0, 10, 110, final_fraction=0.1)
    np.testing.assert_allclose(rates(linear, [10, 60, 85, 110, 500]), [2.0, 1.1, 0.65, 0.2, 0.2], rtol=1e-6)
    # stable until the last fifth, or the last tenth
    wsd = optimizers.wsd(2.0, 10, 100, final_fraction=0.1)
    np.testing.assert_allclose(rates(wsd, [10, 79, 80, 90, 100, 500]), [2.0, 2.0, 2.0, 1.1, 0.2, 0.2], rtol=1e-6)
    np.testing.assert_allclose(rates(optimizers.wsd(2.0, 0, 10, decay=0.1), [0, 9, 10, 11]), [2, 2, 0, 0], atol=1e-6)
    # a warm-up that takes all steps leaves one step for the decay
    np.testing.assert_allclose(rates(optimizers.wsd(2.0, 10, 10), [9, 10, 11]), [2, 2, 0], atol=1e-6)
    # four times the warm-up: half the peak
    np.testing.assert_allclose(rates(optimizers.inverse_sqrt(2.0, 100), [99, 399, 1599]), [2.0, 1.0, 0.5], rtol=1e-6)


@pytest.mark.parametrize("warmup", [0, 1, 5, 40])
def test_every_step_follows_the_formula(warmup):
    step, w = np.arange(40), max(warmup, 1)
    climb, t = np.minimum((step + 1) / w, 1), step + 1
    fall = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * np.clip((step - warmup) / max(30 - warmup, 1), 0, 1)))
    np.testing.assert_allclose(rates(optimizers.constant(3.0, warmup), step), 3 * climb, rtol=1e-6)
    np.testing.assert_allclose(rates(optimizers.cosine(3.0, warmup, 30, 0.1), step), 3 * climb * fall, rtol=1e-5)
    expected = 3 * np.minimum(t / w, np.sqrt(w / t))
    np.testing.assert_allclose(rates(optimizers.inverse_sqrt(3.0, warmup), step), expected, rtol=1e-6)


@pytest.mark.parametrize("name", config.training.SCHEDULES)
def test_without_warm_up_the_first_step_is_at_the_peak_also_under_jit(name):
    rate = optimizers.schedule(config.Train(schedule=name, warmup_steps=0, learning_rate=0.5))
    assert float(jax.jit(rate)(jnp.int32(0))) == pytest.approx(0.5)


def test_weights_decay_and_biases_do_not():
    train = config.Train(weight_decay=0.1, learning_rate=0.5, schedule="constant", warmup_steps=0)
    optimizer = optimizers.optimizer(train)
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    gradient = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.5 * 0.1 * np.ones((2, 2)), rtol=1e-6)
    assert not updates["bias"].any()


def test_the_clipped_gradient_points_the_same_way_and_has_norm_one():
    gradient = {"w": jnp.array([[3.0, 4.0]])}
    moments = {}
    for clip in (0.0, 1.0):
        optimizer = optimizers.optimizer(config.Train(clip_norm=clip, b1=0.0))
        _, state = optimizer.update(gradient, optimizer.init(gradient), gradient)
        moments[clip] = next(leaf for leaf in jax.tree.leaves(state) if leaf.shape == (1, 2))  # mu, with b1 = 0
    np.testing.assert_allclose(moments[0.0], [[3.0, 4.0]], rtol=1e-6)
    np.testing.assert_allclose(moments[1.0], [[0.6, 0.8]], rtol=1e-6)
