"""Figures of `s2sjax bench layers`: time against length, and the roofline (Williams et al. 2009).

Positions are in inches from the top left corner (s2sjax/evaluate/figures/attention_maps.py).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from s2sjax.bench import scaling
from s2sjax.bench.result_files import Row, si
from s2sjax.bench.timing import Ceilings
from s2sjax.evaluate.figures.style import BACKGROUND, GREY, GRID, TEXT, new_figure, save, text_style

WIDTH, HEIGHT = 4.3, 2.9
"""size of a panel; one with many lines is higher"""
LINE = 0.185
"""height of a line of text"""
LETTER = 0.072
"""width of a letter of a label"""
RIVALS = {"causal": "causal attention", "attention": "attention"}
"""the layers with which recurrences are compared, the fairer one first"""
TITLES = {"forward": "forward", "+backward": "forward and backward"}


def draw(folder: Path, rows: Sequence[Row], ceilings: Ceilings, where: str) -> list[Path]:
    """Draws time.png and roofline.png from the rows of layer_speed.py. `where` describes the device."""
    paths = [folder / "time.png", folder / "roofline.png"]
    draw_times(paths[0], rows, where)
    draw_roofline(paths[1], rows, ceilings, where)
    return paths


class Style(NamedTuple):
    """The colour and the marker of a line."""

    colour: str
    marker: str


STYLES = {
    "attention": Style("#6b7280", "o"), "causal": Style("#23272e", "s"), "restricted": Style("#a3a9b3", "^"),
    "convolution": Style("#a38560", "D"),
    "recurrent": Style("#b3371e", "o"), "slstm": Style("#dd7a45", "s"),
    "parallel": Style("#2f7d4a", "o"), "rg_lru": Style("#74b04c", "s"),
    "linear_attention": Style("#4fb0c6", "o"), "retention": Style("#4f93d2", "s"), "gla": Style("#3f6fd0", "^"),
    "ssd": Style("#1f4e9c", "D"), "mlstm": Style("#14306b", "v"),
    "delta": Style("#b48ad0", "o"), "gated_delta": Style("#7c3fa0", "s"),
}  # fmt: skip
"""A colour for each family: attention, scans over positions, scans of vectors, sums of outer products, delta rules"""


def _styles(rows: Sequence[Row]) -> dict[str, Style]:
    """The style of each name. Of several variants of a layer, the later ones are paler."""
    found: dict[str, Style] = {}
    for (layer,), group in scaling.grouped(rows, "layer"):
        names = list(dict.fromkeys(row["name"] for row in group))
        for place, name in enumerate(names):
            pale = 0.65 * place / len(names)
            colour = np.array(to_rgb(STYLES[layer].colour)) * (1 - pale) + pale
            found[name] = Style(to_hex(tuple(colour)), STYLES[layer].marker)
    return found


def _height(lines: int) -> float:
    return max(HEIGHT, LINE * lines)


def _passes(rows: Sequence[Row]) -> list[str]:
    """The passes that were measured, in order."""
    return [way for way in TITLES if any(row["pass"] == way for row in rows)]


# ------------------------------------------------------------------------------ time against n


def draw_times(path: Path, rows: Sequence[Row], where: str) -> None:
    """Draws a row of panels for each batch and width, on log axes, with the name of each line at its end.

    Rings mark where a recurrence is as fast as its rival, causal attention if that was measured, else attention. The
    lengths at which it is faster are beside its name.
    """
    figure, styles, passes = new_figure(), _styles(rows), _passes(rows)
    rival = next((each for each in RIVALS if any(row["layer"] == each for row in rows)), "")
    races = {(race.name, race.way, race.batch, race.width): race
             for race in scaling.races(rows) if race.rival == rival}  # fmt: skip
    labels = {key: f"{key[0]}: {_in_words(race)}" for key, race in races.items()}
    height = _height(len(styles))
    across = WIDTH + 0.75 + LETTER * max(map(len, [*labels.values(), *styles]))
    times = [row[name] for row in rows for name in ("seconds", "peer_seconds") if row[name]]
    low, high = min(times) / 1.2, 1.2 * max(times)
    panels = []
    for place, ((batch, width), group) in enumerate(scaling.grouped(rows, "batch", "width")):
        for column, way in enumerate(passes):
            panel = figure.add_axes((column * across, -height - place * (height + 0.95), WIDTH, height))
            panel.set(xscale="log", yscale="log", ylim=(1e3 * low, 1e3 * high))
            drawn = [row for row in group if row["pass"] == way]
            _draw_lines(panel, drawn, styles)
            found = {name: labels.get((name, way, batch, width), name) for name in styles}
            for name in styles:
                if race := races.get((name, way, batch, width)):
                    _mark_even(panel, race.points, styles[name].colour)
            _finish(panel, f"{TITLES[way]}, width {width}, batch {batch}", "sequence length n", "" if column else "ms")
            panel.xaxis.set_major_locator(FixedLocator(sorted({row["length"] for row in rows})))
            panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
            panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
            _label_lines(panel, drawn, styles, found, height)
            panels.append(panel)
    _draw_key(
        panels[-len(passes)], _line_key(rows, rival, any(race.points for race in races.values())), (0, -0.5 / height)
    )
    compared = f"; recurrences are compared with {RIVALS[rival]}" if races else ""
    _save(figure, path, "Time of a layer", where + compared)


def _in_words(race: scaling.Race) -> str:
    """Where a recurrence is faster than its rival: faster at n > 300."""
    found = scaling.faster_at(race)
    return {"all": "always faster", "none": "never faster"}.get(found, f"faster at {found}")


def _draw_lines(panel: Axes, rows: Sequence[Row], styles: Mapping[str, Style]) -> None:
    for (name,), group in scaling.grouped(rows, "name"):
        group = sorted(group, key=lambda row: row["length"])
        thick = group[0]["layer"] in scaling.RIVALS
        panel.plot(
            [row["length"] for row in group], [1e3 * row["seconds"] for row in group], color=styles[name].colour,
            linewidth=2.2 if thick else 1.4, marker=styles[name].marker, markersize=4.5, markeredgecolor=BACKGROUND,
            markeredgewidth=0.8, zorder=4 if thick else 3,
        )  # fmt: skip
        theirs = [(row["length"], 1e3 * row["peer_seconds"]) for row in group if row["peer_seconds"]]
        if theirs:
            panel.plot(*zip(*theirs), color=styles[name].colour, linewidth=1.1, linestyle=(0, (3, 2)), zorder=2)


def _mark_even(panel: Axes, points: Sequence[tuple[float, float]], colour: str) -> None:
    """Draws a ring at each length at which a recurrence and its rival take the same time."""
    for length, seconds in points:
        panel.plot(
            [length], [1e3 * seconds], marker="o", markersize=9, markeredgewidth=1.8, markerfacecolor=BACKGROUND,
            markeredgecolor=colour, zorder=5,
        )  # fmt: skip


def _label_lines(
    panel: Axes, rows: Sequence[Row], styles: Mapping[str, Style], labels: Mapping[str, str], height: float
) -> None:
    """Writes the name of each line beside its last point, without overlaps."""
    ends = {name: max(group, key=lambda row: row["length"]) for (name,), group in scaling.grouped(rows, "name")}
    low, high = np.log(panel.get_ylim())
    wanted = {name: float((np.log(1e3 * row["seconds"]) - low) / (high - low)) for name, row in ends.items()}
    names = sorted(wanted, key=lambda name: wanted[name])
    for name, y in zip(names, spread_out([wanted[name] for name in names], LINE / height)):
        panel.annotate(
            labels[name], (ends[name]["length"], 1e3 * ends[name]["seconds"]), xytext=(1.04, y),
            textcoords="axes fraction", va="center", **text_style(8.5) | {"color": styles[name].colour},
            arrowprops={"arrowstyle": "-", "color": styles[name].colour, "linewidth": 0.6, "alpha": 0.6,
                        "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)},
        )  # fmt: skip


def spread_out(places: Sequence[float], gap: float) -> list[float]:
    """The nearest places in [0, 1] that are at least `gap` apart, for ascending places.

    Places that are too close form a group, which is centred on their mean; groups that meet are joined.

    >>> [round(place, 2) for place in spread_out([0.1, 0.5, 0.5, 1.0], 0.2)]
    [0.1, 0.4, 0.6, 1.0]
    """
    groups: list[list[float]] = []  # of places, each without the gaps below it
    for number, place in enumerate(places):
        groups.append([place - number * gap])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    highest = max(0.0, 1 - (len(places) - 1) * gap)
    level = [float(np.clip(np.mean(group), 0, highest)) for group in groups for _ in group]
    return [place + number * gap for number, place in enumerate(level)]


def _line_key(rows: Sequence[Row], rival: str, crossing: bool) -> list[tuple[dict[str, Any], str]]:
    found: list[tuple[dict[str, Any], str]] = []
    if any(row["peer_seconds"] for row in rows):
        found.append(({"color": GREY, "linewidth": 1.1, "linestyle": (0, (3, 2))}, "the same in PyTorch"))
    if crossing:
        ring = {"color": GREY, "marker": "o", "markersize": 9, "fillstyle": "none", "linestyle": ""}
        found.append((ring, f"as fast as {RIVALS[rival]}"))
    return found


# ---------------------------------------------------------------------------------- the roofline


def draw_roofline(path: Path, rows: Sequence[Row], ceilings: Ceilings, where: str) -> None:
    """Draws FLOP/s against FLOPs per byte, at the largest width and batch, below the measured ceilings.

    Larger dots are longer sequences.
    """
    figure, styles = new_figure(), _styles(rows)
    batch, width = max((row["batch"], row["width"]) for row in rows)
    drawn = [row for row in rows if (row["batch"], row["width"]) == (batch, width)]
    intensities = [row["flops"] / row["bytes"] for row in drawn]
    ridge = ceilings.flops / ceilings.bytes
    x = np.array([min(*intensities, ridge) / 3, max(*intensities, ridge) * 3])
    rates = [row["flops_per_second"] for row in drawn]
    y = min(*rates, ceilings.bytes * x[0]) / 2, max(*rates, ceilings.flops) * 2
    lengths = sorted({row["length"] for row in drawn})
    height = _height(len(styles) + 2)
    for column, way in enumerate(_passes(drawn)):
        panel = figure.add_axes((column * (WIDTH + 0.75), -height, WIDTH, height))
        panel.set(xscale="log", yscale="log", xlim=x, ylim=y)
        roof = np.array([x[0], ridge, x[1]])
        panel.plot(roof, np.minimum(ceilings.bytes * roof, ceilings.flops), color=TEXT, linewidth=1.4, zorder=2)
        _name_ceilings(panel, x, ridge, ceilings)
        for row in drawn:
            if row["pass"] == way:
                size = 4 + 6 * (lengths.index(row["length"]) + 1) / len(lengths)
                style = styles[row["name"]]
                panel.plot(
                    [row["flops"] / row["bytes"]], [row["flops_per_second"]], marker=style.marker, markersize=size,
                    alpha=0.85, color=style.colour, markeredgecolor=BACKGROUND, markeredgewidth=0.8, linestyle="",
                    zorder=3,
                )  # fmt: skip
        _finish(panel, f"{TITLES[way]}, width {width}, batch {batch}", "FLOPs per byte", "" if column else "FLOP/s")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    dots = [({"color": GREY, "marker": "o", "linestyle": "", "markersize": size}, text)
            for size, text in ((5, f"n = {lengths[0]:,}"), (10, f"n = {lengths[-1]:,}"))]  # fmt: skip
    names = [({"color": style.colour, "marker": style.marker, "linestyle": "", "markersize": 5.5}, name)
             for name, style in styles.items()]  # fmt: skip
    _draw_key(panel, [*names, *(dots if len(lengths) > 1 else [])], (1.04, 1.0))
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


def _draw_key(panel: Axes, entries: Sequence[tuple[dict[str, Any], str]], at: tuple[float, float]) -> None:
    """Draws a legend whose upper left corner is at a place in the coordinates of the panel."""
    legend = panel.legend(
        [Line2D([], [], **style) for style, _ in entries], [text for _, text in entries], loc="upper left",
        bbox_to_anchor=at, frameon=False, borderaxespad=0, handlelength=2.2, borderpad=0, labelspacing=0.5,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set(**text_style(9))
