"""A figure of captions: the picture, and the regions that each word attends to.

Letters: H height, W width, T words of a caption, S positions of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from s2sjax.evaluate.figures.attention_maps import shortened
from s2sjax.evaluate.figures.style import Target, new_figure, save, text_style

SIDE, GAP, COLUMNS = 1.15, 0.06, 8
"""side of a picture and space between two pictures, in inches; number of pictures in a row"""


class CaptionAttention(NamedTuple):
    """A picture and the attention weights of its caption."""

    pixels: np.ndarray  # uint8 [H, W, 3]
    words: Sequence[str]  # T
    weights: np.ndarray  # [T, S], S = h * w of a square grid, by rows
    title: str


def draw(path: Target, examples: Sequence[CaptionAttention]) -> None:
    """Draws one example below the other. The picture of a word is brightest where its attention weight is largest."""
    figure, top = new_figure(), 0.0
    for one in examples:
        figure.text(0, top + 0.2, shortened(one.title, 110), va="bottom", fontweight="bold", **text_style(9))
        side = round(one.weights.shape[1] ** 0.5)
        tiles = [(None, ""), *zip(one.weights.reshape(-1, side, side), one.words)]
        for number, (weights, word) in enumerate(tiles):
            row, column = divmod(number, COLUMNS)
            left, below = column * (SIDE + GAP), top - row * (SIDE + 0.3) - SIDE
            panel = figure.add_axes((left, below, SIDE, SIDE))
            _tile(panel, one.pixels, weights)
            panel.set_title(shortened(word, 18), pad=3, **text_style(8))
        top -= -(-len(tiles) // COLUMNS) * (SIDE + 0.3) + 0.4
    save(figure, path)


def _tile(panel: Axes, pixels: np.ndarray, weights: np.ndarray | None) -> None:
    H, W, _ = pixels.shape
    extent = (0, W, H, 0)
    if weights is None:
        panel.imshow(pixels, extent=extent)
    else:
        grey = np.asarray(pixels, np.float32).mean(-1)
        panel.imshow(grey, cmap="gray", vmin=0, vmax=255, extent=extent)
        shade = np.zeros((*weights.shape, 4), np.float32)  # black; the last channel is the opacity
        shade[..., 3] = 0.85 * (1 - weights / max(float(weights.max()), 1e-6))
        panel.imshow(shade, interpolation="bicubic", extent=extent)
    panel.set_xlim(0, W)
    panel.set_ylim(H, 0)
    panel.axis("off")
