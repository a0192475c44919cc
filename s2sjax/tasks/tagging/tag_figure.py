"""A figure for taggers: the share of correctly tagged words of each tag."""

from __future__ import annotations

from collections.abc import Sequence

from s2sjax.evaluate.figures.style import GREY, GRID, Target, new_figure, save, text_style
from s2sjax.tasks.tagging.tag_metrics import TagScore

MOST = 40
"""number of tags that are drawn, the most frequent ones"""
BAR, WIDTH, POINTS = 0.22, 4.5, 8.0
"""height of a bar and width of the longest, in inches; font size in points"""
RIGHT, WRONG = "#1f5a96", "#e8c4b8"


def tag_bars(path: Target, scores: Sequence[TagScore]) -> None:
    """Draws a bar for each tag of `by_tag`: its accuracy, its number of words and its most frequent wrong tag."""
    shown = scores[:MOST]
    figure = new_figure()
    panel = figure.add_axes((0, 0, WIDTH, BAR * max(len(shown), 1)))
    places = range(len(shown))
    shares = [100 * each.right / each.words for each in shown]
    panel.barh(places, [100.0] * len(shown), 0.72, color=WRONG)
    panel.barh(places, shares, 0.72, color=RIGHT)
    panel.set_yticks(places, [each.tag for each in shown], **text_style(POINTS))
    panel.set_ylim(len(shown) - 0.5, -0.5)
    panel.set_xlim(0, 100)
    grey = text_style(0.9 * POINTS) | {"color": GREY}
    for place, (each, share) in enumerate(zip(shown, shares)):
        mistake = f", mostly mistaken for {each.mistaken_for}" if each.mistaken_for else ""
        panel.text(102, place, f"{share:.1f}% of {each.words:,}{mistake}", va="center", **grey)
    panel.tick_params(length=0, labelsize=POINTS)
    panel.tick_params(axis="x", labelcolor=GREY, labelsize=0.9 * POINTS)
    panel.grid(axis="x", color=GRID, linewidth=0.6)
    panel.spines[:].set_visible(False)
    panel.set_xlabel("correctly tagged words of each tag, in percent", labelpad=0.4 * POINTS, **grey)
    left = len(scores) - len(shown)
    title = "Accuracy by tag" + (f" (the {MOST} most frequent; {left} rarer tags are not shown)" if left else "")
    panel.set_title(title, loc="left", pad=POINTS, fontweight="bold", **text_style(1.2 * POINTS))
    save(figure, path)
