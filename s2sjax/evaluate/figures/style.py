"""The common style of all figures: colours, fonts and resolution; saves figures to files."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from s2sjax import config
from s2sjax.errors import UserError
from s2sjax.files import as_path, in_storage, naming

DPI = 200
MOST_PIXELS, LONGEST_SIDE = 60e6, 30_000
"""limits of a .png file: a larger figure gets fewer dots per inch"""
FORMATS = (".png", ".svg", ".pdf")
TEXT, GREY, GRID, BACKGROUND = "#23272e", "#6b7280", "#e5e7eb", "#ffffff"
FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Tamil",
    "Noto Sans Bengali", "Noto Sans Ethiopic", "Noto Emoji", "WenQuanYi Zen Hei", "Droid Sans Fallback",
    "Arial Unicode MS", "Hiragino Sans", "PingFang SC", "Microsoft YaHei", "Malgun Gothic", "Nirmala UI",
)  # fmt: skip

PathLike = str | os.PathLike[str]
Target = PathLike | io.BytesIO
"""a file, whose suffix chooses the format, or a buffer for a PNG"""


def new_figure() -> Figure:
    """An empty figure of one inch by one inch, so that figure coordinates are inches."""
    return Figure(figsize=(1, 1), dpi=DPI, facecolor=BACKGROUND)


class Drawing:
    """A figure that notebooks display, and that `save` writes as .png, .svg or .pdf."""

    def __init__(self, draw: Callable[[Target], None]):
        self._draw = draw

    def save(self, path: PathLike) -> Path:
        self._draw(check_format(path))
        return config.as_path(path)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self._draw(buffer)
        return buffer.getvalue()


def check_format(path: PathLike, what: str = "") -> Path:
    """Returns the path, or raises a UserError if its image format is not supported.

    what: the option that names the path, the beginning of the error.
    """
    path = config.as_path(path)
    if not str(path).lower().endswith(FORMATS):
        raise UserError(f"{what}{path} is not a supported image format: use .png, .svg or .pdf")
    return path


def save(figure: Figure, target: Target, format: str = "png") -> None:
    """Writes a figure, cropped to its content. format: that of a figure in memory; a file has it in its name."""
    if not isinstance(target, io.BytesIO) and in_storage(target):
        buffer = io.BytesIO()
        save(figure, buffer, format=str(target).rpartition(".")[2].lower())
        as_path(target).write_bytes(buffer.getvalue())
        return
    if not isinstance(target, io.BytesIO):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
    with ignore_missing_glyphs(), naming(target):
        box = figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer())  # in inches
        dpi = min(DPI, LONGEST_SIDE / max(box.width, box.height), (MOST_PIXELS / (box.width * box.height)) ** 0.5)
        kind = format if isinstance(target, io.BytesIO) else None
        figure.savefig(target, dpi=dpi, bbox_inches="tight", pad_inches=0.15, format=kind)


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
    """Suppresses the warning about a glyph that no installed font has; it is drawn as a box."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
