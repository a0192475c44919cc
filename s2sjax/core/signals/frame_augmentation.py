"""Data augmentation of frames [T, F] that keeps their labels. The functions take one example: `vmap` them.

Every draw depends on its key alone. The caller derives the key from (seed, step, example), so that the batch, the
devices and a restart do not change it.

Letters: T frames, F features of a frame. The first `length` frames are real.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from s2sjax.core.traced_numbers import Scalar

AUGMENT = 0x617567
"""separates the random numbers of augmentation from those of dropout"""


def example_keys(seed: Scalar, step: Int[Array, ""] | int, example: Int[Array, " B"]) -> Key[Array, " B"]:
    """Derives a key for each example from (seed, step, example), independently of the other rows."""
    now = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), AUGMENT)
    return jax.vmap(partial(jax.random.fold_in, now))(example)


class Ranges(NamedTuple):
    """Strengths of the random changes; 0 turns a change off."""

    speed: float = 0.0  # range of the duration: a factor from [1 - speed, 1 + speed] (after Ko et al. 2015)
    pitch: float = 0.0  # range of the feature axis: a factor from [1 - pitch, 1 + pitch] (after Jaitly and Hinton 2013)
    noise: float = 0.0  # standard deviation of the Gaussian noise
    time_masks: int = 0  # number of runs of frames that are set to 0 (SpecAugment, Park et al. 2019)
    time_width: int = 0  # maximum number of frames in a run
    feature_masks: int = 0  # number of runs of features that are set to 0
    feature_width: int = 0  # maximum number of features in a run


def augment(
    ranges: Ranges, key: PRNGKeyArray, frames: Float[Array, "T F"], length: Int[Array, ""]
) -> tuple[Float[Array, "T F"], Int[Array, ""]]:
    """Changes frames, of which the first `length` are real. A stretched example never has more than T frames."""
    keys = jax.random.split(key, 5)
    draw = lambda key, spread: jax.random.uniform(key, (), frames.dtype, 1 - spread, 1 + spread)
    if ranges.speed:
        frames, length = stretch(frames, length, draw(keys[0], ranges.speed))
    if ranges.pitch:
        frames = warp(frames, draw(keys[1], ranges.pitch))
    if ranges.noise:
        frames = frames + ranges.noise * jax.random.normal(keys[2], frames.shape, frames.dtype)
    if ranges.time_masks and ranges.time_width:
        keep = keep_runs(keys[3], len(frames), length, ranges.time_masks, ranges.time_width)
        frames = jnp.where(keep[:, None], frames, 0)
    if ranges.feature_masks and ranges.feature_width:
        keep = keep_runs(keys[4], frames.shape[1], frames.shape[1], ranges.feature_masks, ranges.feature_width)
        frames = jnp.where(keep, frames, 0)
    return frames, length


def stretch(
    frames: Float[Array, "T F"], length: Int[Array, ""], factor: Float[Array, ""] | float
) -> tuple[Float[Array, "T F"], Int[Array, ""]]:
    """Stretches the first `length` frames by `factor`, to at most T frames, by linear interpolation."""
    T = len(frames)
    new = jnp.clip(jnp.round(length * factor), jnp.minimum(length, 1), T).astype(length.dtype)
    place = (jnp.arange(T) + 0.5) * (length / jnp.maximum(new, 1)) - 0.5
    return _read(frames, jnp.clip(place, 0, jnp.maximum(length - 1, 0))), new


def warp(frames: Float[Array, "T F"], factor: Float[Array, ""] | float) -> Float[Array, "T F"]:
    """Warps the features of frames, as another vocal tract does, by linear interpolation.

    Feature f becomes feature f * factor, or the last one beyond it.
    """
    F = frames.shape[1]
    return _read(frames.T, jnp.clip(jnp.arange(F) * factor, 0, F - 1)).T


def _read(rows: Array, place: Array) -> Array:
    """Rows at fractional positions, by linear interpolation: [R, C], [P] -> [P, C]."""
    below = jnp.floor(place).astype(int)
    share = (place - below).astype(rows.dtype)[:, None]
    return rows[below] * (1 - share) + rows[jnp.minimum(below + 1, len(rows) - 1)] * share


def keep_runs(
    key: PRNGKeyArray, size: int, length: Int[Array, ""] | int, runs: int, width: int
) -> Bool[Array, " {size}"]:
    """Mask, False in `runs` runs of 0 to `width` positions below `length`; runs may overlap."""
    of_width, of_start = jax.random.split(key)
    widths = jax.random.randint(of_width, (runs,), 0, width + 1)
    starts = jax.random.randint(of_start, (runs,), 0, jnp.maximum(length - widths, 0) + 1)
    place = jnp.arange(size)[:, None]
    return ~jnp.any((place >= starts[None]) & (place < (starts + widths)[None]), axis=1)
