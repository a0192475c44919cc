"""Random changes of pictures that keep their captions. Each is for one picture and is vmapped.

A draw depends on a key alone. The caller derives it from (seed, step, example), so that neither the batch nor the
devices nor a restart change it.

Letters: H height, W width, C channels.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Changes(NamedTuple):
    """How much is drawn; 0 changes nothing."""

    zoom: float = 0.0
    """a window with sides of 1 - zoom to 1 of the picture's is enlarged to all of it"""
    flip: float = 0.0
    """probability of a mirror image"""
    colour: float = 0.0
    """contrast is multiplied by a factor from [1 - colour, 1 + colour], and each channel moved by up to colour / 2 of
    its range"""


def change(changes: Changes, key: Array, picture: Array) -> Array:
    """Values from 0 to 255: [H, W, C] -> float32 [H, W, C]."""
    of_zoom, of_place, of_flip, of_contrast, of_shift = jax.random.split(key, 5)
    picture = picture.astype(jnp.float32)
    H, W, C = picture.shape
    scale = 1 - changes.zoom * jax.random.uniform(of_zoom)
    down, right = jax.random.uniform(of_place, (2,))
    rows, columns = window(H, scale, down), window(W, scale, right)
    columns = jnp.where(jax.random.bernoulli(of_flip, changes.flip), columns[::-1], columns)
    if changes.zoom or changes.flip:
        picture = jnp.einsum("ih,hwc,jw->ijc", rows, picture, columns)
    if changes.colour:
        contrast = 1 + changes.colour * jax.random.uniform(of_contrast, (), minval=-1, maxval=1)
        shift = 127.5 * changes.colour * jax.random.uniform(of_shift, (C,), minval=-1, maxval=1)
        picture = jnp.clip((picture - 127.5) * contrast + 127.5 + shift, 0, 255)
    return picture


def window(size: int, scale: Array, place: Array) -> Array:
    """[size, size]: row i has the weights of the pixels whose linear interpolation is pixel i of the enlarged window.

    The window has `scale` times `size` pixels; `place` 0 puts it at the beginning, 1 at the end. scale 1: the identity.
    """
    begin = place * (1 - scale) * size
    at = jnp.clip(begin + (jnp.arange(size) + 0.5) * scale - 0.5, 0, size - 1)  # [size]
    return jnp.maximum(0.0, 1 - jnp.abs(at[:, None] - jnp.arange(size)))
