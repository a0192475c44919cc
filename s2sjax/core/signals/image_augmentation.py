"""Data augmentation of pictures that keeps their captions. The functions take one picture: `vmap` them.

Every draw depends on its key alone. The caller derives the key from (seed, step, example), so that the batch, the
devices and a restart do not change it.

Letters: H height, W width, C channels.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray


class Changes(NamedTuple):
    """Strengths of the random changes; 0 turns a change off."""

    zoom: float = 0.0
    """range of the zoom: a window with sides of 1 - zoom to 1 of the picture's is enlarged to the whole picture"""
    flip: float = 0.0
    """probability of a mirror image"""
    colour: float = 0.0
    """range of the colours: contrast is multiplied by a factor from [1 - colour, 1 + colour], and each channel shifted
    by up to colour / 2 of its range"""


def change(changes: Changes, key: PRNGKeyArray, picture: Num[Array, "H W C"]) -> Float[Array, "H W C"]:
    """Changes a picture with values from 0 to 255."""
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
        picture = jnp.clip((picture - 127.5) * contrast + 127.5 + shift[None, None], 0, 255)
    return picture


def window(
    size: int, scale: Float[Array, ""] | float, place: Float[Array, ""] | float
) -> Float[Array, "{size} {size}"]:
    """The matrix that enlarges a window: row i has the interpolation weights of the pixels for pixel i.

    The window has scale * size pixels; `place` 0 puts it at the beginning, 1 at the end. Scale 1 gives the identity.
    """
    begin = place * (1 - scale) * size
    at = jnp.clip(begin + (jnp.arange(size) + 0.5) * scale - 0.5, 0, size - 1)  # [size]
    return jnp.maximum(0.0, 1 - jnp.abs(at[:, None] - jnp.arange(size)[None]))
