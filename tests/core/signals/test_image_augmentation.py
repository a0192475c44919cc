"""Pictures: random changes, group norm, and the penalty of unevenly spread attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core.losses.token_losses import doubly_stochastic
from s2sjax.core.nn.normalization import group_norm
from s2sjax.core.signals.image_augmentation import Changes, change, window

PICTURE = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)


def test_a_window_is_read_by_linear_interpolation():
    np.testing.assert_array_equal(window(4, jnp.array(1.0), jnp.array(0.7)), np.eye(4))
    half = np.asarray(window(4, jnp.array(0.5), jnp.array(1.0)))  # places 1.75, 2.25, 2.75, 3.25: the last is cut
    np.testing.assert_allclose(half @ np.arange(4), [1.75, 2.25, 2.75, 3.0], rtol=1e-6)
    np.testing.assert_allclose(half.sum(1), 1, rtol=1e-6)


def test_a_mirror_image_and_nothing_at_all():
    key = jax.random.key(0)
    np.testing.assert_array_equal(change(Changes(), key, jnp.array(PICTURE)), PICTURE)
    np.testing.assert_allclose(change(Changes(flip=1.0), key, jnp.array(PICTURE)), PICTURE[:, ::-1], rtol=1e-5)


@pytest.mark.slow
def test_changes_depend_on_the_key_alone_and_stay_in_range():
    changes = Changes(zoom=0.5, flip=0.5, colour=0.5)
    keys = jax.random.split(jax.random.key(1), 3)
    together = jax.vmap(lambda key: change(changes, key, jnp.array(PICTURE)))(keys)
    alone = change(changes, keys[1], jnp.array(PICTURE))
    np.testing.assert_allclose(together[1], alone, atol=1e-3)
    assert together.shape == (3, *PICTURE.shape) and together.min() >= 0 and together.max() <= 255
    assert not np.allclose(together[0], together[2], atol=1)


def test_group_norm_normalises_each_picture_and_group():
    x = np.random.default_rng(0).normal(2, 3, (2, 3, 2, 4)).astype(np.float32)
    scale, bias = np.array([1, 2, 3, 4], np.float32), np.array([0, 1, 0, 1], np.float32)
    expected = np.empty_like(x)
    for row in range(2):
        for channels in (slice(0, 2), slice(2, 4)):
            part = x[row, :, :, channels]
            expected[row, :, :, channels] = (part - part.mean()) / np.sqrt(part.var() + 1e-6)
    np.testing.assert_allclose(group_norm(x, scale, bias, 2), expected * scale + bias, atol=1e-5)


def test_doubly_stochastic_attention_counts_real_places_and_words():
    rng = np.random.default_rng(0)
    alpha = rng.dirichlet(np.ones(3), (3, 2)).astype(np.float32)  # [B, T, S]
    target = np.array([[True, True], [True, False], [False, False]])
    source = np.array([[True, True, True], [True, True, False], [True, True, True]])
    expected = [
        sum((1 - sum(alpha[b, t, s] for t in range(2) if target[b, t])) ** 2 for s in range(3) if source[b, s])
        for b in range(2)
    ]
    np.testing.assert_allclose(doubly_stochastic(alpha, target, source), [*expected, 0.0], rtol=1e-5)
