"""Any pictures as a film: the curves of a training, or attention maps from step to step."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

from s2sjax.errors import UserError
from s2sjax.interactive.figure import Figure

COLOURS = 64
"""a picture is stored with this many colours, which takes a third of the bytes"""
WIDEST = 1200
"""maximal number of pixels of a side: larger pictures are reduced"""


def frames(figures: Sequence[Any], captions: Sequence[str] | None = None, dpi: int = 80) -> Figure:
    """Pictures as a film with a slider.

    figures: Matplotlib figures, figures of s2sjax such as `run.attention(line)`, or the bytes of PNG files
    captions: one for each picture
    dpi: resolution of Matplotlib figures; 10 pictures of 6 x 4 inches take about 100 kB
    """
    if not figures:
        raise UserError("there are no figures: give at least one")
    if captions is not None and len(captions) != len(figures):
        raise UserError(f"there are {len(captions)} captions for {len(figures)} figures: give one for each")
    encoded = [base64.b64encode(_png(figure, dpi)).decode("ascii") for figure in figures]
    names = [str(caption) for caption in captions or [""] * len(figures)]
    # The last picture is the static form, and is not stored twice.
    static = f'<img alt="{html.escape(names[-1])}" style="max-width:100%" src="data:image/png;base64,{encoded[-1]}">'
    view = {"pictures": encoded[:-1], "captions": names}
    return Figure("picturesFilm", view, ("film.js", "pictures.js"), static, f"film of {len(encoded)} pictures")


def _png(figure: Any, dpi: int) -> bytes:
    """The bytes of a PNG file with few colours."""
    from PIL import Image  # Matplotlib requires Pillow

    if isinstance(figure, bytes):
        found = figure
    elif hasattr(figure, "savefig"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
        found = buffer.getvalue()
    elif hasattr(figure, "_repr_png_"):
        found = figure._repr_png_()
    else:
        raise UserError(f"{type(figure).__name__} is no figure: give Matplotlib figures or the bytes of PNG files")
    try:
        with Image.open(io.BytesIO(found)) as picture:
            plain = picture.convert("RGB")
    except OSError:
        raise UserError("these bytes are no picture: give Matplotlib figures or the bytes of PNG files") from None
    plain.thumbnail((WIDEST, WIDEST))
    few = plain.quantize(COLOURS, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    few.save(buffer, format="png", optimize=True)
    return buffer.getvalue()
