"""The common style of all figures: colours, fonts, resolution, and how they are saved."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib import font_manager
from matplotlib.figure import Figure

DPI = 200
TEXT, GREY, GRID, BACKGROUND = "#23272e", "#6b7280", "#e5e7eb", "#ffffff"
FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Tamil",
    "Noto Sans Bengali", "Noto Sans Ethiopic", "Arial Unicode MS", "Hiragino Sans", "PingFang SC", "Microsoft YaHei",
)  # fmt: skip

PathLike = str | os.PathLike[str]


def new_figure() -> Figure:
    """An empty figure of one inch by one inch, so that figure coordinates are inches."""
    return Figure(figsize=(1, 1), dpi=DPI, facecolor=BACKGROUND)


def save(figure: Figure, path: PathLike) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with ignore_missing_glyphs():
        figure.savefig(path, dpi=DPI, bbox_inches="tight", pad_inches=0.15)


def text_style(points: float) -> dict[str, Any]:
    """Keyword arguments for the text of a figure. `$` is a dollar sign, not mathematics."""
    return {"fontsize": points, "color": TEXT, "fontfamily": _fonts(), "parse_math": False}


@cache
def _fonts() -> tuple[str, ...]:
    """The fonts of FONTS that are installed. Matplotlib takes a glyph from the first font that has it."""
    installed = set(font_manager.get_font_names())
    return tuple(font for font in FONTS if font in installed)


@contextmanager
def ignore_missing_glyphs() -> Iterator[None]:
    """Draws a glyph that no installed font has as a box, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
