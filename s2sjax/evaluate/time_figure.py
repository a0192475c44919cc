"""A figure of transcripts: the frames that were read, and below them the time that each label looks at.

Letters: T frames, F features, n frames read as one, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from s2sjax.evaluate.figures import ATTENTION_COLOURS, shortened
from s2sjax.evaluate.style import GREY, Target, new_figure, save, text_style

INCHES, PICTURE, ROW = 8.0, 1.3, 0.2
"""width of the figure, height of the frames and of the row of a label"""


class FrameAttention(NamedTuple):
    """One transcript."""

    frames: np.ndarray  # [T, F]
    labels: Sequence[str]  # L
    weights: np.ndarray  # [L, ceil(T / n)]
    stack: int
    title: str
    seconds: float = 0.0
    """of a frame; 0: the time axis counts frames"""


def draw(path: Target, examples: Sequence[FrameAttention]) -> None:
    """One example below the other, on one scale of time; the weights are from 0 to 1, large ones dark."""
    figure = new_figure()
    longest, top = max(len(one.frames) for one in examples), 0.0
    for one in examples:
        width, height = INCHES * len(one.frames) / longest, ROW * len(one.labels)
        frames = figure.add_axes((0, top - PICTURE, width, PICTURE))
        looks = figure.add_axes((0, top - PICTURE - height - 0.06, width, height))
        _draw_frames(frames, one)
        _draw_weights(looks, one)
        top -= PICTURE + height + 0.95
    save(figure, path)


def _draw_frames(panel: Axes, one: FrameAttention) -> None:
    low, high = np.percentile(one.frames, [1, 99])
    T, F = one.frames.shape
    panel.imshow(
        one.frames.T, cmap=ATTENTION_COLOURS, vmin=low, vmax=max(high, low + 1e-6), aspect="auto", origin="lower",
        interpolation="nearest", extent=(0, T, 0, F),
    )  # fmt: skip
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    panel.set_ylabel("features", **text_style(8) | {"color": GREY})
    panel.set_title(shortened(one.title, 100), loc="left", pad=6, fontweight="bold", **text_style(9))


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
    if one.seconds:
        ticks = np.arange(0, T * one.seconds + 1e-9, 0.5 if T * one.seconds > 1 else 0.1)
        panel.set_xticks(ticks / one.seconds, [f"{tick:.1f}" for tick in ticks])
    panel.set_xlabel("seconds" if one.seconds else "frames", labelpad=2, **text_style(8) | {"color": GREY})
