"""Figures of `s2sjax bench layers`: time against length, and the roofline (Williams et al. 2009).

Positions are in inches from the top left corner (s2sjax/evaluate/figures/attention_maps.py).
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from s2sjax.bench import scaling
from s2sjax.bench.result_files import Row, si
from s2sjax.bench.timing import Ceilings
from s2sjax.evaluate.figures.style import BACKGROUND, GREY, GRID, TEXT, new_figure, save, text_style
from s2sjax.evaluate.figures.training_curves import SERIES

WIDTH, HEIGHT = 4.3, 2.9
"""size of a panel"""
ACROSS, DOWN = WIDTH + 0.75, HEIGHT + 0.95
"""distance between panels"""
TITLES = {"forward": "forward", "+backward": "forward and backward"}


def draw(folder: Path, rows: Sequence[Row], ceilings: Ceilings, where: str) -> list[Path]:
    """Draws time.png and roofline.png from the rows of layer_speed.py. `where` describes the device."""
    paths = [folder / "time.png", folder / "roofline.png"]
    draw_times(paths[0], rows, where)
    draw_roofline(paths[1], rows, ceilings, where)
    return paths


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    return dict(zip(dict.fromkeys(row["name"] for row in rows), itertools.cycle(SERIES)))


def _passes(rows: Sequence[Row]) -> list[str]:
    """The passes that were measured, in order."""
    return [way for way in TITLES if any(row["pass"] == way for row in rows)]


# ------------------------------------------------------------------------------ time against n


def draw_times(path: Path, rows: Sequence[Row], where: str) -> None:
    """Draws a row of panels for each batch and width, on log axes; rings mark where recurrence equals attention."""
    figure, colours, passes = new_figure(), _colours(rows), _passes(rows)
    times = [row[name] for row in rows for name in ("seconds", "peer_seconds") if row[name]]
    low, high = min(times) / 1.2, 1.2 * max(times)
    races = list(scaling.races(rows))
    for place, ((batch, width), group) in enumerate(scaling.grouped(rows, "batch", "width")):
        for column, way in enumerate(passes):
            panel = figure.add_axes((column * ACROSS, -HEIGHT - place * DOWN, WIDTH, HEIGHT))
            panel.set(xscale="log", yscale="log", ylim=(1e3 * low, 1e3 * high))
            _draw_lines(panel, [row for row in group if row["pass"] == way], colours)
            for race in races:
                if (race.way, race.batch, race.width) == (way, batch, width):
                    _mark_even(panel, race.points)
            _finish(panel, f"{TITLES[way]}, width {width}, batch {batch}", "sequence length n", "" if column else "ms")
            panel.xaxis.set_major_locator(FixedLocator(sorted({row["length"] for row in rows})))
            panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
            panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
            if (place, column) == (0, len(passes) - 1):
                _draw_key(panel, colours, _line_key(rows, any(race.points for race in races)))
    _save(figure, path, "Time of a layer", where)


def _draw_lines(panel: Axes, rows: Sequence[Row], colours: Mapping[str, str]) -> None:
    for (name,), group in scaling.grouped(rows, "name"):
        group = sorted(group, key=lambda row: row["length"])
        panel.plot(
            [row["length"] for row in group], [1e3 * row["seconds"] for row in group], color=colours[name],
            linewidth=1.6, marker="o", markersize=4.5, markeredgecolor=BACKGROUND, markeredgewidth=0.8, zorder=3,
        )  # fmt: skip
        theirs = [(row["length"], 1e3 * row["peer_seconds"]) for row in group if row["peer_seconds"]]
        if theirs:
            panel.plot(*zip(*theirs), color=colours[name], linewidth=1.1, linestyle=(0, (3, 2)), zorder=2)


def _mark_even(panel: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Draws a ring at each length at which recurrence and attention take the same time."""
    for length, seconds in points:
        panel.plot([length], [1e3 * seconds], marker="o", markersize=10, fillstyle="none", color=TEXT, zorder=4)
        panel.annotate(
            f"n = {length:,.0f}", (length, 1e3 * seconds), xytext=(0, 11), textcoords="offset points", ha="center",
            zorder=5, bbox={"facecolor": BACKGROUND, "edgecolor": "none", "pad": 1.0}, **text_style(8.5),
        )  # fmt: skip


def _line_key(rows: Sequence[Row], crossing: bool) -> list[tuple[dict[str, Any], str]]:
    found: list[tuple[dict[str, Any], str]] = []
    if any(row["peer_seconds"] for row in rows):
        found.append(({"color": GREY, "linewidth": 1.1, "linestyle": (0, (3, 2))}, "the same in PyTorch"))
    if crossing:
        ring = {"color": TEXT, "marker": "o", "markersize": 9, "fillstyle": "none", "linestyle": ""}
        found.append((ring, "recurrent and attention are even"))
    return found


# ---------------------------------------------------------------------------------- the roofline


def draw_roofline(path: Path, rows: Sequence[Row], ceilings: Ceilings, where: str) -> None:
    """Draws FLOP/s against FLOPs per byte, at the largest width and batch, below the measured ceilings.

    Larger dots are longer sequences.
    """
    figure, colours = new_figure(), _colours(rows)
    batch, width = max((row["batch"], row["width"]) for row in rows)
    drawn = [row for row in rows if (row["batch"], row["width"]) == (batch, width)]
    intensities = [row["flops"] / row["bytes"] for row in drawn]
    ridge = ceilings.flops / ceilings.bytes
    x = np.array([min(*intensities, ridge) / 3, max(*intensities, ridge) * 3])
    rates = [row["flops_per_second"] for row in drawn]
    y = min(*rates, ceilings.bytes * x[0]) / 2, max(*rates, ceilings.flops) * 2
    lengths = sorted({row["length"] for row in drawn})
    for column, way in enumerate(_passes(drawn)):
        panel = figure.add_axes((column * ACROSS, -HEIGHT, WIDTH, HEIGHT))
        panel.set(xscale="log", yscale="log", xlim=x, ylim=y)
        roof = np.array([x[0], ridge, x[1]])
        panel.plot(roof, np.minimum(ceilings.bytes * roof, ceilings.flops), color=TEXT, linewidth=1.4, zorder=2)
        _name_ceilings(panel, x, ridge, ceilings)
        for row in drawn:
            if row["pass"] == way:
                size = 4 + 6 * (lengths.index(row["length"]) + 1) / len(lengths)
                panel.plot(
                    [row["flops"] / row["bytes"]], [row["flops_per_second"]], marker="o", markersize=size, alpha=0.85,
                    color=colours[row["name"]], markeredgecolor=BACKGROUND, markeredgewidth=0.8, linestyle="", zorder=3,
                )  # fmt: skip
        _finish(panel, f"{TITLES[way]}, width {width}, batch {batch}", "FLOPs per byte", "" if column else "FLOP/s")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    dots = [({"color": GREY, "marker": "o", "linestyle": "", "markersize": size}, text)
            for size, text in ((5, f"n = {lengths[0]:,}"), (10, f"n = {lengths[-1]:,}"))]  # fmt: skip
    _draw_key(panel, colours, dots if len(lengths) > 1 else [], line=False)
    _save(figure, path, "Roofline", where)


def _name_ceilings(panel: Axes, x: np.ndarray, ridge: float, ceilings: Ceilings) -> None:
    """Labels the two lines of the ceilings."""
    style = text_style(8.5) | {"color": GREY}
    flat = f"matrix product: {si(ceilings.flops, 'FLOP/s')}"
    panel.annotate(flat, (x[1], ceilings.flops), xytext=(-4, 4), textcoords="offset points", ha="right", **style)
    at = (x[0] * ridge) ** 0.5
    panel.annotate(
        f"copy: {si(ceilings.bytes, 'B/s')}", (at, ceilings.bytes * at), xytext=(-3, 3), ha="center",
        va="bottom", textcoords="offset points", rotation=45, rotation_mode="anchor", transform_rotates_text=True,
        **style,
    )  # fmt: skip


# -------------------------------------------------------------------------------------- the rest


def _save(figure: Figure, path: Path, title: str, where: str) -> None:
    figure.text(0, 0.62, title, fontweight="bold", **text_style(13))
    figure.text(0, 0.40, where, **text_style(9.5) | {"color": GREY})
    save(figure, path)


def _short(value: float) -> str:
    """Formats a number: 20_000_000_000 -> 20G."""
    digits, prefix = re.fullmatch(r"([\d.,]+)(.*)", si(value)).groups()  # type: ignore[union-attr]
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}{prefix}"


def _finish(panel: Axes, title: str, x_label: str, y_label: str) -> None:
    panel.grid(color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(GREY)
    panel.tick_params(which="both", length=0, pad=6, labelsize=9, labelcolor=GREY)
    low, high = panel.get_ylim()
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,), numticks=12))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_minor_locator(NullLocator())
    panel.set_xlabel(x_label, labelpad=5, **text_style(10))
    panel.set_ylabel(y_label, labelpad=5, **text_style(10))
    panel.set_title(title, loc="left", pad=8, fontweight="bold", **text_style(10))


def _draw_key(
    panel: Axes, colours: Mapping[str, str], others: Sequence[tuple[dict[str, Any], str]], line: bool = True
) -> None:
    """Draws the legend of colours and lines to the right of a panel."""
    own = {"linewidth": 1.6} if line else {"linestyle": ""}
    dot = {"marker": "o", "markersize": 5.5, "markeredgecolor": BACKGROUND}
    entries = [(own | dot | {"color": colour}, name) for name, colour in colours.items()] + list(others)
    legend = panel.legend(
        [Line2D([], [], **style) for style, _ in entries], [text for _, text in entries], loc="upper left",
        bbox_to_anchor=(1.04, 1.0), frameon=False, borderaxespad=0, handlelength=2.2, borderpad=0, labelspacing=0.7,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set(**text_style(9))
