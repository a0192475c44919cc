"""The Kalman filter and smoother equal the conditional of one large Gaussian, by scan and by associative scan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core.chains import kalman

D, M, T = 3, 2, 4
MASK = np.array([True, False, True, True])


def spread(rng, size: int) -> np.ndarray:
    root = rng.normal(size=(size, size))
    return root @ root.T + 0.1 * np.eye(size)


def random_case(seed: int = 0) -> tuple[kalman.Model, np.ndarray]:
    rng = np.random.default_rng(seed)
    model = kalman.Model(
        rng.normal(size=D), spread(rng, D), 0.6 * rng.normal(size=(D, D)), spread(rng, D),
        rng.normal(size=(M, D)), spread(rng, M),
    )  # fmt: skip
    return model, rng.normal(size=(T, M))


def joint(m: kalman.Model, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The means of all states [T*D], their covariance, and the matrix and the noise that make all observations."""
    means = [m.mean]
    covs = np.zeros((steps, D, steps, D))
    covs[0, :, 0] = m.cov
    for t in range(1, steps):
        means.append(m.transition @ means[-1])
        covs[t, :, t] = m.transition @ covs[t - 1, :, t - 1] @ m.transition.T + m.noise
    for s in range(steps):
        for t in range(s + 1, steps):
            covs[t, :, s] = m.transition @ covs[t - 1, :, s]
            covs[s, :, t] = covs[t, :, s].T
    own = np.eye(steps)
    return (
        np.concatenate(means),
        covs.reshape(steps * D, -1),
        np.kron(own, m.observation),
        np.kron(own, m.observation_noise),
    )


def condition(m: kalman.Model, ys: np.ndarray, seen: np.ndarray, steps: int):
    """(log p(y), mean [T, D], cov [T, D, D]) of all states, given the observations that are seen."""
    mean, cov, H, R = joint(m, steps)
    rows = np.repeat(seen, M)
    H, R, y = H[rows], R[np.ix_(rows, rows)], ys[seen].ravel()
    S = H @ cov @ H.T + R
    error = y - H @ mean
    log_prob = -0.5 * (error @ np.linalg.solve(S, error) + np.linalg.slogdet(2 * np.pi * S)[1])
    gain = np.linalg.solve(S, H @ cov).T
    after = (cov - gain @ H @ cov).reshape(steps, D, steps, D)
    return log_prob, (mean + gain @ error).reshape(steps, D), np.stack([after[t, :, t] for t in range(steps)])


@jax.jit
def everything(model, ys, mask):
    return [(kalman.filter(model, ys, mask, p), kalman.smooth(model, ys, mask, p)) for p in (False, True)]


@pytest.fixture(scope="module")
def computed():
    """With NaN where nothing is observed, and one step of padding: [scan, associative scan]."""
    model, ys = random_case()
    ys[~MASK] = np.nan
    padded, mask = np.concatenate([ys, np.full((1, M), 9.0)]), np.append(MASK, False)
    with jax.enable_x64(True):
        return model, ys, jax.device_get(everything(model, padded, mask))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [False, True])
def test_classical_matched_case_kalman_filter_equals_the_joint_gaussian(computed, parallel):
    model, ys, found = computed
    filtered, smoothed = found[parallel]
    log_prob, means, covs = condition(model, ys, MASK, T)
    np.testing.assert_allclose(filtered.log_likelihood, log_prob, rtol=1e-9)
    np.testing.assert_allclose(smoothed.mean[:T], means, atol=1e-9)
    np.testing.assert_allclose(smoothed.cov[:T], covs, atol=1e-9)
    for t in range(T):
        _, means, covs = condition(model, ys, MASK & (np.arange(T) <= t), T)
        np.testing.assert_allclose(filtered.states.mean[t], means[t], atol=1e-9)
        np.testing.assert_allclose(filtered.states.cov[t], covs[t], atol=1e-9)


@pytest.mark.slow
def test_scan_and_associative_scan_agree_and_nothing_is_nan(computed):
    scan, parallel = computed[2]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), scan, parallel)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(scan))


@pytest.mark.exhaustive
def test_in_float32_a_long_series_stays_close_to_float64():
    """A point that moves at nearly constant speed, seen with noise, over 100 steps."""
    model = kalman.Model(
        np.zeros(2), np.eye(2), np.array([[1, 0.1], [0, 1]]), 0.01 * np.eye(2), np.array([[1.0, 0]]), np.eye(1)
    )
    ys = np.cumsum(np.random.default_rng(0).normal(size=(100, 1)), 0) * 0.1
    with jax.enable_x64(True):
        exact = jax.device_get(everything(model, ys, np.ones(100, bool))[0])
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), model)
    for filtered, smoothed in everything(single, jnp.asarray(ys, jnp.float32), jnp.ones(100, bool)):
        np.testing.assert_allclose(filtered.log_likelihood, exact[0].log_likelihood, rtol=1e-5)
        np.testing.assert_allclose(smoothed.mean, exact[1].mean, atol=1e-4)
        assert smoothed.mean.dtype == jnp.float32
