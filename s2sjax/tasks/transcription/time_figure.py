"""A figure of transcripts: the input frames, and below them the frames that each label attends to.

Letters: T frames, F features, n frames stacked into one, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from s2sjax.evaluate.figures.attention_maps import ATTENTION_COLOURS
from s2sjax.evaluate.figures.style import GREY, Target, new_figure, save
from s2sjax.tasks.recognition.spikes import draw_frames, time_axis

INCHES, PICTURE, ROW = 8.0, 1.3, 0.2
"""width of the figure, height of the frames and of the row of a label"""


class FrameAttention(NamedTuple):
    """The frames of one example and the attention weights of its transcript."""

    frames: np.ndarray  # [T, F]
    labels: Sequence[str]  # L
    weights: np.ndarray  # [L, ceil(T / n)]
    stack: int  # n
    title: str
    seconds: float = 0.0
    """duration of a frame in seconds; 0: the time axis counts frames"""


def draw(path: Target, examples: Sequence[FrameAttention]) -> None:
    """Draws one example below the other, on the same time scale; weights are from 0 to 1, large ones are dark."""
    figure = new_figure()
    longest, top = max(len(one.frames) for one in examples), 0.0
    for one in examples:
        width, height = INCHES * len(one.frames) / longest, ROW * len(one.labels)
        frames = figure.add_axes((0, top - PICTURE, width, PICTURE))
        looks = figure.add_axes((0, top - PICTURE - height - 0.06, width, height))
        draw_frames(frames, one.frames, one.title)
        _draw_weights(looks, one)
        top -= PICTURE + height + 0.95
    save(figure, path)


def _draw_weights(panel: Axes, one: FrameAttention) -> None:
    T, (L, S) = len(one.frames), one.weights.shape
    panel.imshow(
        one.weights, cmap=ATTENTION_COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="nearest",
        extent=(0, S * one.stack, L, 0),
    )  # fmt: skip
    panel.set_xlim(0, T)
    panel.set_yticks(np.arange(L) + 0.5, one.labels)
    panel.spines[:].set_visible(False)
    panel.tick_params(length=0, pad=4, labelsize=8, labelcolor=GREY)
    time_axis(panel, T, one.seconds)
