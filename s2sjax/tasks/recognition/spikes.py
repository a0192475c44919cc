"""A figure of CTC: the input frames, and below them the probability of each label over time.

Letters: T frames, F features, n frames stacked into one, V symbols including the blank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from s2sjax.evaluate.figures.attention_maps import ATTENTION_COLOURS, shortened
from s2sjax.evaluate.figures.style import BACKGROUND, GREY, GRID, Target, new_figure, save, text_style
from s2sjax.evaluate.figures.training_curves import SERIES

INCHES, PICTURE, CURVES = 8.0, 1.3, 0.9
"""width of the figure, height of the frames and of the curves below them"""


class Spikes(NamedTuple):
    """The frames of one example and its CTC probabilities."""

    frames: np.ndarray  # [T, F]
    probs: np.ndarray  # [ceil(T / n), V]; symbol 0 is the blank
    alphabet: Sequence[str]  # labels of the symbols from 1
    output: Sequence[int]  # symbols
    states: np.ndarray  # [ceil(T / n)] the alignment of the output: see `ctc.align`
    stack: int  # n
    title: str
    seconds: float = 0.0
    """duration of a frame in seconds; 0: the time axis counts frames"""


def spike_figure(path: Target, examples: Sequence[Spikes]) -> None:
    """Draws the frames and the probabilities of each example."""
    frame_figure(path, examples, lambda one: CURVES, _draw_probs)


def frame_figure(
    path: Target, examples: Sequence[Any], height: Callable[[Any], float], draw: Callable[[Axes, Any], None]
) -> None:
    """Draws one example below the other, on the same time scale: its frames, and below them what `draw` draws."""
    figure = new_figure()
    longest, top = max(len(one.frames) for one in examples), 0.0
    for one in examples:
        width, below = INCHES * len(one.frames) / longest, height(one)
        _draw_frames(figure.add_axes((0, top - PICTURE, width, PICTURE)), one.frames, one.title)
        draw(figure.add_axes((0, top - PICTURE - below - 0.06, width, below)), one)
        top -= PICTURE + below + 0.95
    save(figure, path)


def _draw_frames(panel: Axes, values: np.ndarray, title: str) -> None:
    """Draws values [T, F] with time to the right and features upwards."""
    low, high = np.percentile(values, [1, 99])
    T, F = values.shape
    panel.imshow(
        values.T, cmap=ATTENTION_COLOURS, vmin=low, vmax=max(high, low + 1e-6), aspect="auto", origin="lower",
        interpolation="nearest", extent=(0, T, 0, F),
    )  # fmt: skip
    panel.set_xlim(0, T)
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    panel.set_ylabel("features", **text_style(8) | {"color": GREY})
    panel.set_title(shortened(title, 100), loc="left", pad=6, fontweight="bold", **text_style(9))


def _draw_probs(panel: Axes, one: Spikes) -> None:
    T = len(one.frames)
    at = (np.arange(len(one.probs)) + 0.5) * one.stack
    panel.plot(at, one.probs[:, 0], color=GREY, linewidth=0.8, linestyle=":", label="blank")
    for symbol in range(1, one.probs.shape[1]):
        if one.probs[:, symbol].max() > 0.02:
            colour = SERIES[(symbol - 1) % len(SERIES)]
            panel.fill_between(at, one.probs[:, symbol], color=colour, alpha=0.25, linewidth=0)
            panel.plot(at, one.probs[:, symbol], color=colour, linewidth=1.2)
    for number, symbol in enumerate(one.output):
        (places,) = np.nonzero(one.states == 2 * number + 1)
        place = places[np.argmax(one.probs[places, symbol])]
        panel.annotate(
            one.alphabet[symbol - 1], (at[place], 1.02), ha="center", va="bottom", annotation_clip=False,
            bbox={"facecolor": BACKGROUND, "edgecolor": "none", "pad": 0.8}, **text_style(9),
        )  # fmt: skip
    panel.set_xlim(0, T)
    panel.set_ylim(0, 1.25)
    panel.set_yticks([0, 1])
    panel.grid(axis="y", color=GRID, linewidth=0.6)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(GREY)
    panel.tick_params(length=0, pad=4, labelsize=8, labelcolor=GREY)
    panel.set_ylabel("probability", **text_style(8) | {"color": GREY})
    time_axis(panel, T, one.seconds)


def time_axis(panel: Axes, frames: int, seconds: float) -> None:
    """Labels the time axis in seconds, or in frames if `seconds`, the duration of a frame, is 0."""
    if seconds:
        ticks = np.arange(0, frames * seconds + 1e-9, 0.5 if frames * seconds > 1 else 0.1)
        panel.set_xticks(ticks / seconds, [f"{tick:.1f}" for tick in ticks])
    panel.set_xlabel("seconds" if seconds else "frames", labelpad=2, **text_style(8) | {"color": GREY})
