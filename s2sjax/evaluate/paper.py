"""What all figures are drawn on: a sheet, its colours, its type, and how it is saved."""

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
INK, QUIET, RULE, PAPER = "#23272e", "#6b7280", "#e5e7eb", "#ffffff"
FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Tamil",
    "Noto Sans Bengali", "Noto Sans Ethiopic", "Arial Unicode MS", "Hiragino Sans", "PingFang SC", "Microsoft YaHei",
)  # fmt: skip

PathLike = str | os.PathLike[str]


def sheet() -> Figure:
    return Figure(figsize=(1, 1), dpi=DPI, facecolor=PAPER)


def save(figure: Figure, path: PathLike) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with quietly():
        figure.savefig(path, dpi=DPI, bbox_inches="tight", pad_inches=0.15)


def text_style(points: float) -> dict[str, Any]:
    """How any text of ours is set; `$` is a dollar, not mathematics."""
    return {"fontsize": points, "color": INK, "fontfamily": _fonts(), "parse_math": False}


@cache
def _fonts() -> tuple[str, ...]:
    """The fonts of FONTS that are installed; a glyph is taken from the first that has it."""
    installed = set(font_manager.get_font_names())
    return tuple(font for font in FONTS if font in installed)


@contextmanager
def quietly() -> Iterator[None]:
    """A glyph that no installed font has is drawn as a box, without a warning for each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
