"""A figure of scores against the share of training labels used: one panel per data set, one line per initialisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from s2sjax.evaluate.figures.style import GREY, GRID, Target, new_figure, save, text_style
from s2sjax.evaluate.figures.training_curves import SERIES


def curves(path: Target, shares: Sequence[float], scores: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Draws scores[data set][initialisation], one for each of `shares`; both are in percent."""
    figure = new_figure()
    width, height, gap = 3.6, 2.6, 0.9
    for number, (title, lines) in enumerate(scores.items()):
        panel = figure.add_axes((number * (width + gap), 0, width, height))
        highest = [max(values) for values in zip(*lines.values())]
        for colour, (label, values) in zip(SERIES, lines.items()):
            panel.plot(shares, values, marker="o", markersize=5, linewidth=2, color=colour, label=label)
            for share, value, top in zip(shares, values, highest):
                place = (0, 7) if value == top else (0, -14)
                text = text_style(8) | {"color": colour}
                panel.annotate(f"{value:.1f}", (share, value), place, textcoords="offset points", ha="center", **text)
        panel.set_xscale("log")
        panel.set_xticks(list(shares), [f"{share:g}%" for share in shares], **text_style(9))
        panel.set_xticks([], minor=True)
        for tick in panel.get_yticklabels():
            tick.set(fontsize=9)
        panel.margins(0.1, 0.18)
        panel.grid(axis="y", color=GRID)
        panel.set_axisbelow(True)
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
        panel.set_xlabel("labels used in training", **text_style(9) | {"color": GREY})
        panel.set_title(title, loc="left", pad=10, fontweight="bold", **text_style(10))
        if number == 0:
            panel.set_ylabel("accuracy in percent", **text_style(9) | {"color": GREY})
            panel.legend(frameon=False, loc="lower right", fontsize=9)
    save(figure, path)
