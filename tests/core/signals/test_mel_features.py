"""Log-mel features against a direct DFT, and the random changes of frames."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from s2sjax.core.signals import frame_augmentation, mel_features

RNG = np.random.default_rng(0)


def test_log_mel_is_its_equation():
    """The sum of the DFT itself, in float64."""
    window, hop, size, rate = 20, 8, 32, 1000.0
    samples = RNG.uniform(-1, 1, 75).astype(np.float32)
    samples[40:] = 0  # the floor
    triangles = mel_features.mel_triangles(6, size // 2 + 1, rate, 20, 500)
    found = jax.jit(partial(mel_features.log_mel, window=window, hop=hop, triangles=triangles))(samples)
    count = mel_features.frame_count(len(samples), window, hop)
    assert found.shape == (count, 6) == (7, 6)
    n = np.arange(window)
    for t in range(count):
        frame = samples[t * hop : t * hop + window] * (0.5 - 0.5 * np.cos(2 * np.pi * n / window))
        dft = [np.sum(frame * np.exp(-2j * np.pi * k * n / size)) for k in range(size // 2 + 1)]
        expected = np.log(np.maximum(np.abs(dft) ** 2 @ triangles, mel_features.FLOOR))
        np.testing.assert_allclose(found[t], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[-1], np.log(mel_features.FLOOR), rtol=1e-6)


def test_triangles_meet_at_their_neighbours():
    triangles = mel_features.mel_triangles(5, 4001, 8000, 0, 4000)
    np.testing.assert_allclose(triangles.max(0), 1, atol=5e-3)
    peaks = triangles.argmax(0)
    assert (np.diff(peaks) > 0).all()
    inside = slice(peaks[0] + 1, peaks[-1])
    np.testing.assert_allclose(triangles[inside].sum(1), 1, atol=1e-5)  # they add to 1 between two peaks
    assert mel_features.mel(0) == 0 and abs(mel_features.mel(1000) - 1000) < 1
    assert mel_features.frame_count(19, 20, 8) == 0 and mel_features.frame_count(20, 20, 8) == 1


def test_stacked_frames():
    frames = np.arange(1.0, 11).reshape(1, 5, 2)
    stacked, lengths = mel_features.stack_frames(frames, np.array([5]), 2)
    assert stacked.tolist() == [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 0, 0]]] and lengths.tolist() == [3]
    stacked, lengths = mel_features.stack_frames(frames, np.array([3]), 2)  # padding is zeros, whatever it was
    assert stacked.tolist() == [[[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0]]] and lengths.tolist() == [2]
    assert mel_features.stack_frames(frames, np.array([0]), 2)[1].tolist() == [0]


def test_normalized_examples():
    frames = RNG.normal(3, 2, size=(2, 6, 2)).astype(np.float32)
    frames[:, :, 1] = 5  # never changes
    found = jax.jit(mel_features.normalize_example)(frames, np.array([4, 0]))
    np.testing.assert_allclose(found[0, :4].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(found[0, :4].std(0), [1, 0], atol=1e-6)
    assert not found[0, 4:].any() and not found[1].any()


@pytest.mark.slow
def test_stretch_and_warp():
    frames = jnp.arange(6.0)[:, None] * jnp.ones((1, 3))
    stretch, warp = jax.jit(frame_augmentation.stretch), jax.jit(frame_augmentation.warp)
    same, length = stretch(frames, 4, 1.0)
    assert length == 4 and same[:4, 0].tolist() == [0, 1, 2, 3]
    longer, length = stretch(frames, 4, 1.5)
    assert length == 6
    np.testing.assert_allclose(longer[:, 0], np.clip((np.arange(6) + 0.5) / 1.5 - 0.5, 0, 3), atol=1e-6)
    assert stretch(frames, 4, 9.0)[1] == 6 and stretch(frames, 4, 0.01)[1] == 1 and stretch(frames, 0, 1.5)[1] == 0
    features = jnp.array([[0.0, 1, 2, 3]])
    assert warp(features, 1.0).tolist() == [[0, 1, 2, 3]]
    np.testing.assert_allclose(warp(features, 0.5), [[0, 0.5, 1, 1.5]])
    np.testing.assert_allclose(warp(features, 2.0), [[0, 2, 3, 3]])


@pytest.mark.slow
def test_masks_are_short_runs_of_real_places():
    keep = jax.jit(jax.vmap(lambda key: frame_augmentation.keep_runs(key, 12, 8, 1, 3)))
    kept = np.asarray(keep(jax.random.split(jax.random.key(0), 200)))
    hidden = (~kept).sum(1)
    assert set(hidden) == {0, 1, 2, 3} and kept[:, 8:].all() and not kept[:, :8].all(0).any()
    for row in ~kept[hidden > 0]:
        assert np.ptp(np.flatnonzero(row)) == row.sum() - 1  # one run


@pytest.mark.slow
def test_what_is_drawn_depends_on_the_key_alone():
    ranges = frame_augmentation.Ranges(0.2, 0.1, 0.1, time_masks=1, time_width=2, feature_masks=1, feature_width=2)
    one = jax.jit(partial(frame_augmentation.augment, ranges))
    frames = RNG.normal(size=(3, 10, 4)).astype(np.float32)
    keys, lengths = jax.random.split(jax.random.key(1), 3), jnp.array([10, 6, 0])
    together, new = jax.jit(jax.vmap(partial(frame_augmentation.augment, ranges)))(keys, frames, lengths)
    for row in range(3):
        alone, length = one(keys[row], frames[row], lengths[row])
        np.testing.assert_allclose(alone, together[row], atol=1e-6)
        assert length == new[row]
    assert np.isfinite(together).all() and new[2] == 0
    assert not np.array_equal(one(keys[0], frames[0], lengths[0])[0], one(keys[1], frames[0], lengths[0])[0])
    plain, length = frame_augmentation.augment(frame_augmentation.Ranges(), keys[0], frames[0], lengths[0])
    assert plain is frames[0] or np.array_equal(plain, frames[0])
    assert length == 10


def test_whisper_features_are_their_equation():
    """The sum of the DFT itself, in float64, of samples that are mirrored at both ends."""
    window, hop, rate = 20, 8, 1000.0
    samples = RNG.uniform(-1, 1, 80).astype(np.float32)
    samples[40:] = 0  # the least that is kept, 8 powers of ten below the largest
    triangles = mel_features.slaney_triangles(5, window // 2 + 1, rate, 0, 500)
    found = jax.jit(partial(mel_features.whisper_log_mel, window=window, hop=hop, triangles=triangles))(samples)
    assert found.shape == (10, 5)
    around = np.concatenate([samples[10:0:-1], samples, samples[-2:-12:-1]])
    n, power = np.arange(window), []
    for t in range(10):
        frame = around[t * hop : t * hop + window] * (0.5 - 0.5 * np.cos(2 * np.pi * n / window))
        dft = [np.sum(frame * np.exp(-2j * np.pi * k * n / window)) for k in range(window // 2 + 1)]
        power.append(np.abs(dft) ** 2 @ triangles)
    logs = np.log10(np.maximum(power, 1e-10))
    np.testing.assert_allclose(found, (np.maximum(logs, logs.max() - 8) + 4) / 4, atol=1e-4)
    np.testing.assert_allclose(found[-1], found.max() - 2, atol=1e-5)


def test_slaney_triangles_have_area_1_and_are_equally_wide_in_mel():
    triangles = mel_features.slaney_triangles(8, 8001, 16000, 0, 8000)
    np.testing.assert_allclose(triangles.sum(0) * 1.0, 1, atol=1e-3)  # bins of 1 hertz
    peaks = mel_features.slaney_mel(triangles.argmax(0))
    np.testing.assert_allclose(np.diff(peaks), np.diff(peaks).mean(), atol=0.015)  # a bin is at most 0.015 mel wide
    hertz = np.array([0.0, 440.0, 1000.0, 7000.0])
    np.testing.assert_allclose(mel_features.slaney_hertz(mel_features.slaney_mel(hertz)), hertz, atol=1e-9)
    assert mel_features.slaney_mel(1000.0) == 15
