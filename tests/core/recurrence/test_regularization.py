"""The regularisation of Merity et al. 2017, each against its formula."""

import jax
import jax.numpy as jnp
import numpy as np

from s2sjax.core.recurrence import regularization as reg

KEY = jax.random.key(3)


def test_weight_drop_hides_entries_of_the_state_matrix_alone_and_scales_the_others():
    weights = {name: jnp.full((40, 160), 2.0) for name in ("input", "state")} | {"bias": jnp.ones(160)}
    found = reg.drop_weights(KEY, weights, 0.25)
    assert set(np.unique(found["state"])) == {np.float32(0), np.float32(2 / 0.75)}
    assert 0.72 < np.mean(found["state"] != 0) < 0.78
    assert found["input"] is weights["input"] and found["bias"] is weights["bias"]
    both = reg.drop_weights(KEY, {"state": weights["state"], "candidate": weights["state"]}, 0.25)
    assert not np.array_equal(both["state"], both["candidate"]), "a cell with two matrices draws two masks"


def test_word_dropout_hides_every_occurrence_of_a_word():
    ids = np.arange(60).reshape(2, 30) % 10
    found = np.asarray(reg.drop_words(KEY, ids, jnp.ones((2, 30, 3)), 10, 0.5))
    for word in range(10):
        assert len(np.unique(found[ids == word])) == 1
    assert set(np.unique(found)) == {0.0, 2.0}


def test_activation_and_temporal_penalties_equal_their_formulas():
    states = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32)
    everything = np.ones((3, 5), bool)
    ar = float(reg.activation_penalty(states, everything)) / everything.sum()
    tar = float(reg.temporal_penalty(states, everything)) / everything.sum()
    np.testing.assert_allclose(ar, np.mean(states**2), rtol=1e-6)
    np.testing.assert_allclose(tar, np.mean((states[:, 1:] - states[:, :-1]) ** 2), rtol=1e-6)
    mask = everything & (np.arange(5) < [[5], [2], [0]])
    real = [states[0], states[1, :2]]
    np.testing.assert_allclose(
        reg.activation_penalty(states, mask), sum((part**2).mean(-1).sum() for part in real), rtol=1e-6
    )
    apart = sum(((part[1:] - part[:-1]) ** 2).mean(-1).sum() for part in real)
    np.testing.assert_allclose(reg.temporal_penalty(states, mask), apart * 5 / 4, rtol=1e-6)
    assert float(reg.temporal_penalty(states[:, :1], everything[:, :1])) == 0
