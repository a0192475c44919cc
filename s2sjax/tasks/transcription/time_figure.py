"""A figure of transcripts: the input frames, and below them the frames that each label attends to.

Letters: T frames, F features, n frames stacked into one, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from s2sjax.evaluate.figures.attention_maps import ATTENTION_COLOURS
from s2sjax.evaluate.figures.style import GREY, Target
from s2sjax.tasks.recognition.spikes import frame_figure, time_axis

ROW = 0.2
"""height of the row of a label"""


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
    """Draws the frames and the attention weights of each example; weights are from 0 to 1, large ones are dark."""
    frame_figure(path, examples, lambda one: ROW * len(one.labels), _draw_weights)


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
